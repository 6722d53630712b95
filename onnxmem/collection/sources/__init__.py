"""From the names of a command line to model files: folders, patterns, lists, stdin, URLs."""
