"""How onnxruntime allocates a graph's tensors: the plan at load, and each run of it as a Program.

A graph in running order and its shapes at load go in (``planning``); ``frames`` simulates the runs
of the plan, and ``recording`` writes each of them down. Begin reading with ``planning``.
"""
