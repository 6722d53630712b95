"""What onnxruntime infers of its values' shapes while it loads and optimises a graph."""
