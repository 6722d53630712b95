"""Transposes pushed towards each other until they meet and cancel."""
