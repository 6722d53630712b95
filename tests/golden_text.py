"""Expected texts, a file each under ``golden/``.

``ONNXMEM_UPDATE_GOLDEN=1 pytest`` writes what is there now; read the difference before keeping it.
"""

import os
from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def assert_golden(text: str, name: str) -> None:
    """Compare a text with the file of that name."""
    file = _FOLDER / name
    if os.environ.get("ONNXMEM_UPDATE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
    reported = f"{file.name} differs; ONNXMEM_UPDATE_GOLDEN=1 pytest writes it anew"
    assert text == file.read_text(encoding="utf-8"), reported
