"""The version, in a module of its own: every layer reads it, and so does the build."""

__version__ = "0.1.0"
