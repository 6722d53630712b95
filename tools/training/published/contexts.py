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


CARDS = {"up to 8 GiB": (0, 8.1), "10 to 16 GiB": (8.1, 16.1), "24 GiB": (16.1, 24.1)}
CARDS["32 GiB and more"] = (24.1, 1000)
"""The smallest and the largest capacity in GiB of each class of cards."""


def contexts_gib(*, of_process: bool, card: tuple[float, float] = (0, 1000)) -> list[float]:
    """The contexts in GiB, ascending: of messages that tell of the process, or of the device."""
    with DATA.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    found = []
    for row in rows:
        if bool(row["process_gib"]) is not of_process:
            continue
        if not card[0] < float(row["capacity_gib"]) <= card[1]:
            continue
        taken = row["process_gib"] or float(row["capacity_gib"]) - float(row["free_gib"])
        found.append(float(taken) - float(row["reserved_gib"]))
    return sorted(found)


def line(name: str, found: list[float]) -> str:
    """A row of the table: how many, the quartiles, the least and the most."""
    low, median, high = quantiles(found, n=4)
    cells = (found[0], low, median, high, found[-1])
    return f"| {name} | {len(found)} | {' | '.join(f'{cell:.2f}' for cell in cells)} |"


def _lines(name: str, *, of_process: bool) -> list[str]:
    """All messages of a kind, and those of each class of cards."""
    return [
        line(name, contexts_gib(of_process=of_process)),
        *(
            line(f"- cards of {card}", found)
            for card, sizes in CARDS.items()
            if len(found := contexts_gib(of_process=of_process, card=sizes)) > 1
        ),
    ]


def table() -> str:
    """The distribution of both kinds of messages, in GiB."""
    return "\n".join(
        (
            "| message | count | least | 25 % | median | 75 % | most |",
            "|---|---|---|---|---|---|---|",
            *_lines("of the process (PyTorch 2.1 on)", of_process=True),
            *_lines("of the device, other processes in it", of_process=False),
        )
    )


if __name__ == "__main__":
    print(table())
