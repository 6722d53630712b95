"""``python -m onnxmem``.

The package has taken the current folder off ``sys.path`` by now, before its own imports.
"""

import sys

from onnxmem.cli import main

if __name__ == "__main__":
    sys.exit(main())
