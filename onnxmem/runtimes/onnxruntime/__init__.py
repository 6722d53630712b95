"""Emulates a session of onnxruntime: its graph optimizer, its plan, its runs and its arena.

``session_graph`` creates the graph that runs, ``allocation`` plans it and records its runs as
Programs, ``prediction`` replays them on a ``BfcArena`` with the session's settings, ``process``
adds the memory of the process, and ``providers`` has the differences between CPU and CUDA. Begin
with ``prediction``.
"""
