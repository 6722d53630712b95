"""How a session is opened: the settings that onnxruntime's own advice knows, as ideas."""

from collections.abc import Iterator
from dataclasses import replace

from onnxmem.decisions.advise.changes import with_options
from onnxmem.decisions.advise.figures import Change, Figure
from onnxmem.decisions.advise.proposals import Idea, Price, Proposal
from onnxmem.runtimes.asking import Advice
from onnxmem.runtimes.onnxruntime.session_options import Strategy

_WORDS = {
    "enable_mem_pattern=False": ("pattern", "every tensor is asked for by itself in each run"),
    "enable_mem_reuse=False": ("reuse", "none known"),
    "kSameAsRequested": ("growth", "more calls for memory as the arena grows"),
    "arena shrinkage after each run": ("shrinkage", "each run asks the system for memory again"),
    "disable_prepacking": ("prepacking", "weights are packed in every run: slower products"),
    "fixed dims": ("dims", "the session serves this shape alone"),
    "symbolic dims": ("dims", "the plan is made without the numbers"),
    "ORT_DISABLE_ALL": ("off", "nothing is fused: slower"),
    "ORT_ENABLE_BASIC": ("basic", "fewer nodes are fused: slower"),
    "ORT_ENABLE_EXTENDED": ("extended", "no blocks of channels: slower convolutions on CPU"),
    "ORT_ENABLE_ALL": ("all", "a session opens more slowly"),
}
"""What a change is called in an id, and what it costs, by onnxruntime's name for it."""
_FREE = frozenset({"enable_mem_reuse=False", "kSameAsRequested", "fixed dims"})


def resident_proposals(advice: Advice) -> Iterator[Proposal]:
    """What the best combination and each setting alone save of what the arena has resident."""
    own = advice.runtime.own
    best = advice.runtime.advice[0]
    for choice in (best, *advice.singles):
        if choice.changes and (choice is best or choice.changes != best.changes):
            idea = _named(choice.changes, lambda subject: subject)
            yield Proposal(
                idea=replace(idea, id="session_best") if choice is best else idea,
                figure=Figure.RESIDENT,
                before_bytes=own.resident_bytes,
                after_bytes=choice.resident_bytes,
                is_exact=True,
            )


def session_ideas(runtime: str) -> Iterator[Idea]:
    """The same settings, to be worked out in the figure of a whole process or device."""
    grown: Strategy = "kSameAsRequested"
    changes = {
        "enable_mem_pattern=False": with_options(enable_mem_pattern=False),
        "kSameAsRequested": with_options(arena_extend_strategy=grown),
        "enable_mem_pattern=False, kSameAsRequested": with_options(
            enable_mem_pattern=False, arena_extend_strategy=grown
        ),
        "arena shrinkage after each run": with_options(shrinks_arena=True),
        "disable_prepacking": with_options(disable_prepacking=True),
    }
    for words, change in changes.items():
        if runtime == "ort-cpu" or words != "disable_prepacking":
            yield _named(tuple(words.split(", ")), change)


def _named(words: tuple[str, ...], change: Change) -> Idea:
    known = [_WORDS.get(word, (word.split("=")[0], "see the table below")) for word in words]
    return Idea(
        id="_".join(("session", *(short for short, _ in known))),
        group="session",
        what="a session with " + ", ".join(words),
        price=Price.NOTHING if _FREE.issuperset(words) else Price.TIME,
        cost="; ".join(dict.fromkeys(cost for _, cost in known)),
        change=change,
        settings={"session": list(words)},
    )
