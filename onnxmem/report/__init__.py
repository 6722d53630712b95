"""Faces of an analysis: text for a terminal, JSON by a contract. Pure functions to text."""
