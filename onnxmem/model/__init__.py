"""What the file says: a model without its weights, shapes bound and inferred, as typed records.

A path, bytes or a ModelProto come in, and the dims to bind (``binding.Request``); a ``Graph`` of
tensors and nodes goes out. Begin with ``graph`` for the nouns and ``building`` for the stages in
their order: ``files.load``, ``building.prepare``, ``building.build``.
"""
