"""An extension of Google's Model Explorer: ONNX graphs, and what they take laid over them.

A path comes in, by the server of Model Explorer; a graph or node data goes out. Model Explorer
imports ``main``, which holds all of it: ``model-explorer net.onnx
--extensions=onnxmem.model_explorer``. Only this package imports model_explorer (``pip install
'onnxmem[model-explorer]'``), and nothing imports this package.
"""
