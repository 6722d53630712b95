"""Work that may crash, loop or take all memory, done in a process of its own.

A child is started afresh: nothing of this process's memory, environment or open files is in it. It
lives under limits, answers with one JSON object, and neither it nor its folder outlives the call.
"""
