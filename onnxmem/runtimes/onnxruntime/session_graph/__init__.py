"""The graph that a session of onnxruntime runs, and what it knows of its shapes at load.

A model goes in and a ``SessionGraph`` comes out: nodes in running order, shapes as the planner sees
them, and what control flow does. Begin reading at ``opening``: onnxruntime is asked where it is at
hand, in a child process, and emulated otherwise; ``loaded`` makes the records.
"""
