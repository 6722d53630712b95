"""Fused attention in default exports: the table of what `attention_exports.py` found.

It reads `attention_exports.csv` beside it.
"""

import csv
from itertools import groupby
from operator import itemgetter
from pathlib import Path

DATA = Path(__file__).with_name("attention_exports.csv")


def table() -> str:
    """One row for each network: its exports, the kernels seen, how far apart its peaks are, and how
    far from the peak that was counted.
    """
    with DATA.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    heads = ("network", "files read", "attention seen", "largest spread", "largest error", "failed")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for network, found in groupby(rows, itemgetter("network")):
        lines.append(_line(network, list(found)))
    read = [row for row in rows if not row["error"]]
    right = sum(row["seen"] == row["calls"] for row in read)
    lines.append(f"| all | {len(read)} | {right} of {len(read)} | | | {len(rows) - len(read)} |")
    return "\n".join(lines)


def _line(network: str, rows: list[dict[str, str]]) -> str:
    read = [row for row in rows if not row["error"]]
    right = sum(row["seen"] == row["calls"] for row in read)
    calls = {row["calls"] for row in read}
    what = "none to see" if calls == {"0"} else "all"
    seen = f"{right} of {len(read)}" if right < len(read) else what
    spread = f"{_spread_percent(read):.1f} %" if read else "-"
    error = f"{_worst_percent(read):+.1f} %" if read else "-"
    return f"| {network} | {len(read)} | {seen} | {spread} | {error} | {len(rows) - len(read)} |"


def _spread_percent(rows: list[dict[str, str]]) -> float:
    """The largest peak over the smallest, of exports in the same mode and with the same inputs."""
    groups: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        groups.setdefault((row["mode"], row["mask"]), []).append(int(row["peak_bytes"]))
    return max(100 * (max(peaks) / min(peaks) - 1) for peaks in groups.values())


def _worst_percent(rows: list[dict[str, str]]) -> float:
    """The error of the prediction that is furthest from the peak that was counted."""
    errors = (100 * (int(row["peak_bytes"]) / int(row["counted_bytes"]) - 1) for row in rows)
    return max(errors, key=abs)


if __name__ == "__main__":
    print(table())
