"""The graph that a session of onnxruntime runs, and what it knows of its shapes at load.

With onnxruntime at hand it is asked, in a process of its own; else its optimiser is emulated.
"""
