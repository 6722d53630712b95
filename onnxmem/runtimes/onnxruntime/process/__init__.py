"""What onnxruntime's process takes of the system: while a session is made, and when it has run.

In go a model, its session's graph and the regions of its arena; out come resident bytes. Begin
reading with ``figures``, which reads rows of bytes off the two graphs; ``loading`` runs them
through the C library's heap (``heap``, which knows nothing of onnxruntime).
"""
