"""A fault as a line on stderr."""

import os
import sys
import traceback
from typing import Final

from onnxmem.errors import Fault, shortened

_LONGEST: Final = 2000
"""Characters of a message, which may name a few long names."""


def tell(fault: Fault, error: BaseException | None = None, path: str | None = None) -> int:
    """Write a fault as one line and return its exit code; ``path`` is the model at fault."""
    place = "" if path is None else f"{shortened(path)}: "
    # An internal error says so at the head of its line, where others say their code after the file.
    kind, code = (
        ("internal error", "") if fault.code == "internal" else ("error", f"{fault.code}: ")
    )
    print(f"{kind}: {place}{code}{shortened(fault.message, _LONGEST)}", file=sys.stderr)
    if error is not None and os.environ.get("ONNXMEM_DEBUG"):
        traceback.print_exception(error)
    return fault.exit_code
