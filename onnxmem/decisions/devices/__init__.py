"""What a model may run on: memory, bandwidth and arithmetic peaks, each with its source.

The catalogue is read where one is asked for.
"""
