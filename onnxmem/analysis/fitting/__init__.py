"""Models and a device in, whether they fit out: the verdict, the largest that fits, what limits it.

Begin reading with ``assessing.fit``: ``footprints`` has what models take, ``verdicts`` the rule by
which that is compared, ``searching`` the search for the largest number.
"""
