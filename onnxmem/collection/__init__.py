"""Many models: worked out side by side, one row each whatever happens, and summed up.

One model needs little of this: the rest is imported when it is asked for.
"""
