"""What onnxruntime's process takes of the system: while a session is made, and when it has run.

``terms`` are the rows of bytes that go in, ``describing`` reads them off a model and its optimized
graph, and ``loading`` runs them through the C library's heap. Begin reading with ``loading``.
"""
