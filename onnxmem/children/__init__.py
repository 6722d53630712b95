"""Work that may crash, loop or take all memory, done in a process of its own.

What comes in is the name of a function with JSON arguments and limits; what goes out is its JSON
object, or a fault that says how the child ended. A child is started afresh, with nothing of this
process's memory, environment or open files, and neither it nor its folder outlives the call.
Begin with ``running``; ``serving`` is the child's side, ``safe_path`` keeps untrusted folders off
the import path.
"""
