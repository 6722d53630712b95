"""The time of a run with other memory options than by default, in one process.

Usage: python advice_time.py < request.json > ratios.json

The sessions run in turn, so that a busy machine slows all alike: a ratio is the median over rounds
of a session's seconds to those of the first session in the same round. The request is that of
``session_run.py`` with ``options`` (reuse, pattern, arena; the default first), ``threads``,
``num_rounds`` and ``most_seconds``.
"""

import json
import sys
import time
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

import onnxruntime as ort
import session_run
from advice_run import configured, register_arena

WARM_UP = 2
FEWEST_ROUNDS = 3


def main() -> None:
    """Time one request: the ratio of each session, the first one's being 1."""
    request = json.load(sys.stdin)
    if any(arena == "same_as_requested" for _, _, arena in request["options"]):
        register_arena()
    sessions = [
        ort.InferenceSession(
            request["model"],
            configured({**request, "reuse": reuse, "pattern": pattern, "arena": arena}),
            providers=session_run.PROVIDERS,
        )
        for reuse, pattern, arena in request["options"]
    ]
    rounds = list(_rounds(request, sessions))[WARM_UP:]
    ratios = [
        median(new / first[0] for new, first in zip(column, rounds, strict=True))
        for column in zip(*rounds, strict=True)
    ]
    json.dump({"ratios": [round(ratio, 4) for ratio in ratios]}, sys.stdout)


def _rounds(
    request: Mapping[str, Any], sessions: list[ort.InferenceSession]
) -> Iterator[list[float]]:
    """Seconds of every session's run, round after round, until the time is up."""
    feeds = session_run.made_up(request)
    end = time.perf_counter() + request["most_seconds"]
    for index in range(WARM_UP + request["num_rounds"]):
        if index < WARM_UP + FEWEST_ROUNDS or time.perf_counter() < end:
            yield [_seconds(session, feeds) for session in sessions]


def _seconds(session: ort.InferenceSession, feeds: Mapping[str, object]) -> float:
    start = time.perf_counter()
    session.run(None, feeds)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
