"""Run a model in onnxruntime and say what it took; every run is in a process of its own.

Nothing is imported here before it is asked for: what a child imports counts as memory of its
process, and the modules that run in one (``session``, ``tracing``, ``process_run``) import neither
onnx nor ``onnxmem.model``.
"""
