"""The graph that a session of onnxruntime runs, with the shapes known at load.

A model goes in, a ``SessionGraph`` comes out: nodes in the order of execution, the planner's
shapes, and the control flow. Begin with ``optimization``, which lets onnxruntime optimize the model
in a child process, or emulates its graph optimizer if it is not installed. ``loaded`` reads the
result.
"""
