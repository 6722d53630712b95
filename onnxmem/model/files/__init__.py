"""A model's file: opened once, read without its weights."""
