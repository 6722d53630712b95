"""The type of every tensor that can be known, from the types of the graph's inputs.

A model whose inputs have numbers for dims comes in (``inference.with_shapes``); the same model goes
out with ``value_info`` for what its nodes make, and what had to be assumed. Begin with
``inference``, which applies three engines in turn; ``type_memo`` is the shortcut for large graphs,
``batch_rewrite`` another batch for a model that fixes one, ``microsoft`` and ``onnx_rules`` the
rules that the libraries lack.
"""
