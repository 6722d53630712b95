"""Read a model without its weights, bind its dims, infer shapes, and make a ``Graph`` of it.

Begin with ``graph`` for the types and ``building`` for the stages in order: ``files.load`` reads
the file, ``building.prepare`` does what does not depend on dims, ``building.build`` binds the dims
of a ``binding.Request``.
"""
