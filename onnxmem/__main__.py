"""``python -m onnxmem``."""

import sys

from onnxmem.commands import main

if __name__ == "__main__":
    sys.exit(main())
