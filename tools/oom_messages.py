"""Count the posted out-of-memory messages that are read right, in all and by field.

    python tools/oom_messages.py [SET ...]

The messages and what they say are ``tests/data/oom_messages.json``. A message is right if every
field is: nothing that it says is missing, and nothing is read that it does not say.
"""

import json
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

from onnxmem.decisions.explain.messages import OutOfMemory, read_message

MESSAGES = Path(__file__).parents[1] / "tests" / "data" / "oom_messages.json"
_PARTS = ("allocated", "reserved", "unallocated")
_WITHOUT_PARTS = {
    *(None, "second", "third", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh"),
}
"""Sets whose reserved memory was not written down."""
UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def in_bytes(size: str | None) -> int | None:
    """A size as the data has it, in bytes."""
    if size is None:
        return None
    number, unit = size.split()
    return round(Fraction(number) * UNITS[unit])


def fields(row: dict[str, Any], message: OutOfMemory | None) -> dict[str, tuple[object, object]]:
    """What a message says and what is read, by field; a request is right if it is included."""
    requested = in_bytes(row.get("requested"))
    sizes = None if message is None else message.sizes
    includes = sizes is not None and requested is not None and sizes.includes(requested)
    stated = {
        "free": in_bytes(row.get("free")),
        "capacity": in_bytes(row.get("capacity")),
        "used": in_bytes(row.get("used")),
        "shape": tuple(row["shape"]) if "shape" in row else None,
    }
    if "set" in row:
        stated["element_type"] = row.get("element_type")
    names = {"free": "free_bytes", "capacity": "capacity_bytes", "used": "used_bytes"}
    pairs = {
        name: (value, None if message is None else getattr(message, names.get(name, name)))
        for name, value in stated.items()
    }
    if row.get("set") not in {None, "second", "third"}:
        pairs["device"] = (row.get("device"), None if message is None else message.device)
    for name in () if row.get("set") in _WITHOUT_PARTS else _PARTS:
        if name != "allocated" or name in row:
            read = None if message is None else getattr(message, f"{name}_bytes")
            pairs[name] = (in_bytes(row.get(name)), read)
    return {
        "kind": (True, None if message is None else True),
        "requested": (requested, requested if includes else sizes),
        **pairs,
    }


def main(sets: list[str]) -> None:
    """Print the counts."""
    rows = [
        row
        for row in json.loads(MESSAGES.read_text("utf-8"))
        if not sets or row.get("set", "first") in sets
    ]
    counts: dict[str, Counter[str]] = {}
    num_right = 0
    for row in rows:
        pairs = fields(row, read_message(row["text"]))
        num_right += all(stated == found for stated, found in pairs.values())
        for name, (stated, found) in pairs.items():
            count = counts.setdefault(name, Counter())
            count["stated"] += stated is not None
            count["read"] += found is not None
            count["right"] += stated is not None and stated == found
    print(f"{num_right} of {len(rows)} messages right")
    for name, count in counts.items():
        print(f"{name:13} stated {count['stated']:4} read {count['read']:4} right {count['right']}")


if __name__ == "__main__":
    main(sys.argv[1:])
