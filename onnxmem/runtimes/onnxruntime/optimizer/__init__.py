"""An emulation of onnxruntime's graph optimizer; it needs no onnxruntime and reads no weights.

A model goes in, and out comes the graph that a session on a CPU would run, in order of execution,
with the shapes that its planner sees. Begin reading at ``pipeline``, which has the passes of each
level in sequence. Above each group of functions stands the file of onnxruntime that it emulates.
"""
