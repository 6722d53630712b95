"""How onnxruntime allocates a graph's tensors: the plan at load, and each run as a Program.

A graph in its order of execution and the shapes known at load go in. ``planning`` makes the plan,
``frames`` simulates its runs, and ``recording`` records each run. Begin with ``planning``.
"""
