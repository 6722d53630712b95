"""The shape of every tensor that can be known."""
