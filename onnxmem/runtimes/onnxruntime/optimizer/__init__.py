"""onnxruntime's graph optimizer, emulated: no onnxruntime needed, no weights read.

A model goes in, and out comes the graph that a session on a CPU would run, in running order, with
the shapes that its planner sees. Begin reading at ``pipeline``, which says which pass runs when.
"""
