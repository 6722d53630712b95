"""A model on disk as a session can open it: hollow weights filled, and refusals told early."""
