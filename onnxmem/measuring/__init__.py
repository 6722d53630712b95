"""Runs a model in onnxruntime and measures its memory, always in a process of its own.

A model and ``MeasureSettings`` go in, a ``Measurement`` or a finding comes out. Begin with
``measuring.measure``. Imports of a child count as memory of its process: nothing is imported here,
and ``process_run``, ``tracing`` and ``run_request``, which run in children, import neither onnx nor
``onnxmem.model``.
"""
