"""Many models side by side: one row each whatever happens, and a summary of them.

Names come in (``sources``), outcomes go out in their order (``many``, where reading begins), from
this process, ``workers`` or ``executors``; ``cache`` keeps rows, ``summary`` adds them up.
One model needs little of this: the rest is imported where it is used.
"""
