"""How figures grow with the batch and other dims."""
