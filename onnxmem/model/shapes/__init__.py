"""Infer the types of all tensors from the types of the graph's inputs.

``inference.with_shapes`` takes a model and numbers for the dims of its inputs, and returns it with
``value_info`` for all activations, and with the assumptions that were needed. Begin with
``inference``, which applies three engines in turn. ``type_memo`` is a shortcut for large graphs,
``batch_rewrite`` changes the batch of a model with a fixed one, ``microsoft`` and ``onnx_rules``
have the rules that the libraries lack.
"""
