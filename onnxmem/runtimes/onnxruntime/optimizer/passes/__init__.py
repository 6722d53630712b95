"""Graph transformers: one file per pass, each a function that says whether it changed the graph."""
