"""A gate for CI: budgets and models in, a check for each limit out.

Begin reading with ``checking.Gate``; ``budgets`` has what a configuration file says.
"""
