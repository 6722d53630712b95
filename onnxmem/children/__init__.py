"""Runs functions that may crash, hang or exhaust memory in a process of their own.

A function's name, JSON arguments and limits go in; its JSON result, or a fault that says how the
child ended, comes out. A child inherits nothing of this process's memory, environment or open
files, and neither the child nor its folder outlives the call. Begin with ``running``; ``serving``
runs in the child, and ``safe_path`` keeps untrusted folders off the import path.
"""
