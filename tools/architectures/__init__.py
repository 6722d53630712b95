"""Networks in torch, written from their papers; weights are random."""
