"""How onnxruntime allocates a graph's tensors: the plan at load, and what each run makes of it."""
