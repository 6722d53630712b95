"""What follows from an analysis: what fits, what passes a gate, what to change, what changed."""
