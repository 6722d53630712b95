"""The key-value cache of a language model: what it is in the file, what it takes at a length.

Most models have none: what it is and what it takes are imported where there is one.
"""
