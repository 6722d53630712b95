"""Floats of 16 bits, and writing over what is no longer read."""

from collections.abc import Iterator
from dataclasses import replace

from onnxmem.decisions.advise.figures import Figure, Subject
from onnxmem.decisions.advise.proposals import Idea, Price, Proposal

HALF = Idea(
    id="half_precision",
    group="half_precision",
    what="convert to float16 or bfloat16: weights, inputs and activations",
    price=Price.ACCURACY,
    cost="float16 ends at 65,504, bfloat16 has 8 bits of fraction; CPUs compute in float32 anyway",
    change=lambda subject: replace(subject, has_half_floats=True),
    settings={"precision": "float16"},
)


def in_place_proposal(subject: Subject) -> Iterator[Proposal]:
    """What a runtime saves that writes over dead inputs and makes views, beside one that does not.

    The figures of RUN have it in them already: it is what to look for in a runtime.
    """
    terms = subject.terms()
    memory = terms.activations
    if not terms.is_whole or memory.peak_bytes is None or memory.in_place_peak_bytes is None:
        return
    idea = Idea(
        id="in_place",
        group="in_place",
        what="run where activations and views share buffers (as onnxruntime does; RUN counts so)",
        price=Price.NOTHING,
        cost="none",
    )
    yield Proposal(
        idea=idea,
        figure=Figure.PEAK,
        before_bytes=memory.peak_bytes,
        after_bytes=memory.in_place_peak_bytes,
        is_exact=True,
    )
