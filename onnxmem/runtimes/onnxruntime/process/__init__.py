"""The resident memory of onnxruntime's process, during the load of a session and after its runs.

A model, its session's graph and the regions of the arena go in, resident bytes come out. Begin with
``figures``, which derives the weights of a load from the two graphs; ``loading`` simulates the load
on the C library's heap (``heap``, which is independent of onnxruntime).
"""
