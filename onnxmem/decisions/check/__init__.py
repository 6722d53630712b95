"""A gate for CI: compare models with budgets, one check for each limit.

Begin reading with ``checking.Gate``; ``budgets`` reads configuration files.
"""
