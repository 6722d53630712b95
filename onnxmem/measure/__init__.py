"""Run a model in onnxruntime and measure its memory, always in a process of its own.

A model and ``MeasureSettings`` come in, a ``Measurement`` or a finding goes out: begin with
``measuring.measure``. Nothing is imported here: what a child imports counts as memory of its
process, so ``process_run``, ``tracing`` and ``run_request``, which run there, import neither onnx
nor ``onnxmem.model``.
"""
