"""What a session of onnxruntime makes of a graph: its optimizer, its plan, its runs, its arena.

``session_graph`` is the graph that runs, ``allocation`` plans it and writes its runs down as
Programs, ``prediction`` replays them on a ``BfcArena`` with a session's settings, ``process`` adds
what the process takes, and ``providers`` has what differs between CPU and CUDA. Begin reading with
``prediction``.
"""
