"""Faces of an analysis: text for a terminal, JSON by a contract. Pure functions to text.

Each is imported where it is asked for.
"""
