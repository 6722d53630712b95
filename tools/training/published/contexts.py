"""What a process of PyTorch takes of a GPU beside its allocator, by public out-of-memory messages.

    python tools/training/published/contexts.py

Since PyTorch 2.1 a message says what the process has in use: less what the allocator reserved, that
is CUDA's context, loaded kernels and what other libraries of the process take. Before, it said the
device's capacity, what is free and what is reserved: what is left also holds other processes and a
desktop's, and is an upper bound. `contexts.csv` has the figures of each message with its address,
in GiB, as rounded there.
"""

import csv
from pathlib import Path
from statistics import quantiles

DATA = Path(__file__).with_name("contexts.csv")


def contexts_gib(*, of_process: bool) -> list[float]:
    """The contexts in GiB, ascending: of messages that tell of the process, or of the device."""
    with DATA.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        if bool(row["process_gib"]) is not of_process:
            continue
        taken = row["process_gib"] or float(row["capacity_gib"]) - float(row["free_gib"])
        found.append(float(taken) - float(row["reserved_gib"]))
    return sorted(found)


def line(name: str, found: list[float]) -> str:
    """A row of the table: how many, the quartiles, the least and the most."""
    low, median, high = quantiles(found, n=4)
    cells = (found[0], low, median, high, found[-1])
    return f"| {name} | {len(found)} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


def table() -> str:
    """The distribution of both kinds of messages, in GiB."""
    return "\n".join(
        (
            "| message | count | least | 25 % | median | 75 % | most |",
            "|---|---|---|---|---|---|---|",
            line("of the process (PyTorch 2.1 on)", contexts_gib(of_process=True)),
            line("of the device, other processes in it", contexts_gib(of_process=False)),
        )
    )


if __name__ == "__main__":
    print(table())
