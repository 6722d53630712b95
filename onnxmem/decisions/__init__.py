"""An analysis or a request in, and what follows from it out.

``fit`` and ``devices`` say how far models go on which device, ``check`` whether they keep budgets,
``advise`` what would lower their memory, ``diff`` what changed, ``explain`` what a figure or an
out-of-memory message means. Begin reading with ``fit.rank``.
"""
