"""Yes or no, by how much, and how far it goes: one question of models and a device."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.capacity import LARGEST_BATCH, BytesAt
from onnxmem.errors import OnnxmemError, UsageError
from onnxmem.escaping import shortened
from onnxmem.fitting.bases import Basis
from onnxmem.fitting.holding import Fleet, Held, NoFigureError, combined, held_by
from onnxmem.fitting.searching import Reach, largest_fitting
from onnxmem.fitting.sessions import Sessions
from onnxmem.question import Question

_AHEAD: Final = 4
"""Numbers beyond a crossing that are tried, where an allocator's figures may fall again."""
_FALLING: Final = frozenset({Basis.TORCH, Basis.ORT_CPU, Basis.ORT_CUDA})
_POWERS: Final = 4
"""Powers of two up to the largest that fits that the table shows."""
_WORTH: Final = 10
"""A power of two is the better pick where it gives up at most a part in so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What there is, and what is to be found."""

    memory_bytes: int
    reserve_bytes: int = 0
    """Kept free, for the system or for others."""
    flash_bytes: int | None = None
    basis: Basis = Basis.TOTAL
    is_asked: bool = False
    """Whether the basis was asked for; else a model that lacks it is held by its total."""
    fleet: Fleet = field(default_factory=Fleet)
    dim: str | None = None
    """The dim whose largest number is sought; ``None``: the batch."""

    @property
    def limit_bytes(self) -> int:
        """What is left to be held against."""
        return max(self.memory_bytes - self.reserve_bytes, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    number: int
    num_bytes: int | None
    is_whole: bool

    def fits(self, limit_bytes: int) -> bool | None:
        """Whether it does; ``None`` is unknown. What is too large in part is too large."""
        if self.num_bytes is None or (self.num_bytes <= limit_bytes and not self.is_whole):
            return None
        return self.num_bytes <= limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a question."""

    setup: Setup
    asked: Row
    """What was asked about; ``number`` is 1 where the model has no batch."""
    has_number: bool
    """Whether the model has the batch, or the dim, at all."""
    held: Held
    dims: Mapping[str, int]
    """Of the first model, those in effect; a dim that nothing binds is 1."""
    reach: Reach | None
    """``None``: nothing to vary, or bytes are unknown."""
    limiting: Held | None
    """At the first number that does not fit."""
    power_of_two: Row | None
    """The largest within reach."""
    table: tuple[Row, ...]
    instances: int | None
    """The largest number of instances; ``None`` where one more takes nothing."""
    remarks: tuple[str, ...]

    @property
    def verdict(self) -> bool | None:
        """Whether it fits; ``None`` is unknown."""
        flash_bytes = self.setup.flash_bytes
        if flash_bytes is not None and (self.held.weight_bytes or 0) > flash_bytes:
            return False
        return self.asked.fits(self.setup.limit_bytes)

    @property
    def is_power_better(self) -> bool:
        """Whether a power of two gives up at most a tenth: a rule of thumb, for kernels' tiles."""
        if self.power_of_two is None or self.reach is None or not self.reach.number:
            return False
        given_up = self.reach.number - self.power_of_two.number
        return 0 < given_up * _WORTH <= self.reach.number


@dataclass(slots=True)
class Holdings:
    """Every number tried, each worked out once and in full."""

    questions: tuple[Question, ...]
    setup: Setup
    sessions: Sessions = field(default_factory=Sessions)
    _held: dict[int, Held | None] = field(default_factory=dict)

    def asked(self) -> int | None:
        """The number that is asked about; ``None`` where a model has no batch, or no such dim.

        :raises UsageError: a dim that no model has, or models that are asked at different batches.
        """
        numbers = {self._number(question) for question in self.questions}
        if len(numbers) > 1:
            message = "the models have different batches; pass --batch N"
            raise UsageError(message)
        return numbers.pop()

    def at(self, number: int) -> Held | None:
        """What all models take at a number; ``None`` where they cannot be worked out."""
        if number not in self._held:
            try:
                self._held[number] = self.worked_out(self._at(number))
            except OnnxmemError:
                self._held[number] = None
        return self._held[number]

    def bytes_at(self, number: int) -> int | None:
        """The same in bytes; ``None`` also where something is left out."""
        held = self.at(number)
        return held.total_bytes if held is not None and held.is_whole else None

    def row(self, number: int) -> Row:
        """A line of the table."""
        held = self.at(number)
        return Row(number, None if held is None else held.total_bytes, bool(held and held.is_whole))

    def worked_out(self, questions: Sequence[Question]) -> Held:
        """What these take together.

        :raises OnnxmemError: one of them cannot be worked out.
        """
        held = self.each(questions)
        return combined(held, self.setup.fleet)

    def each(self, questions: Sequence[Question]) -> list[Held]:
        """What one instance of each takes."""
        return [held_by(question, self.setup.basis, self.sessions) for question in questions]

    def _at(self, number: int) -> list[Question]:
        name = self.setup.dim
        if name is None:
            return [question.at(number) for question in self.questions]
        return [_with_dim(question, name, number) for question in self.questions]

    def _number(self, question: Question) -> int | None:
        binding = question.terms().bound.binding
        name = self.setup.dim
        if name is None:
            return binding.batch
        if name not in binding.dims:
            known = ", ".join(map(shortened, binding.dims)) or "it has none"
            message = f"--dim {shortened(name)}=?: the model has no such dim; its dims: {known}"
            raise UsageError(message)
        return binding.dims[name]


def fit(questions: Sequence[Question], setup: Setup) -> Answer:
    """Hold models against a device, and find how far they go.

    :raises OnnxmemError: a model cannot be worked out at what is asked.
    """
    holdings = Holdings(tuple(questions), setup)
    try:
        each = holdings.each(questions)
    except NoFigureError as fault:
        if setup.is_asked or setup.basis not in {Basis.ORT_CPU, Basis.ORT_CUDA}:
            raise
        remark = f"no figure of {setup.basis.value} ({fault}): weights + inputs + peak count"
        answer = fit(questions, replace(setup, basis=Basis.TOTAL))
        return replace(answer, remarks=(remark, *answer.remarks))
    number, held = holdings.asked(), combined(each, setup.fleet)
    asked = Row(number or 1, held.total_bytes, held.is_whole)
    reach = None if number is None else reach_of(setup, holdings.bytes_at)
    return Answer(
        setup=setup,
        asked=asked,
        has_number=number is not None,
        held=held,
        dims=questions[0].terms().bound.binding.dims,
        reach=reach,
        limiting=_limiting(holdings, reach),
        power_of_two=_power(holdings, reach),
        table=() if number is None else _table(holdings, number, reach),
        instances=setup.fleet.largest(each, setup.limit_bytes),
        remarks=(*_remarks(setup, held), *_cache_remarks(questions)),
    )


def _with_dim(question: Question, name: str, number: int) -> Question:
    dims: Mapping[str, int] = {**question.settings.dims, name: number}
    return replace(question, settings=replace(question.settings, dims=dims))


def reach_of(setup: Setup, bytes_at: BytesAt) -> Reach | None:
    """The largest number within what there is; ``None`` where bytes are unknown at 1."""
    ahead = _AHEAD if setup.basis in _FALLING else 0
    return largest_fitting(bytes_at, setup.limit_bytes, ahead=ahead)


def _limiting(holdings: Holdings, reach: Reach | None) -> Held | None:
    if reach is None or reach.number is None:
        return None
    return holdings.at(reach.number + 1)


def _power(holdings: Holdings, reach: Reach | None) -> Row | None:
    """The largest power of two up to what fits, worked out itself: an allocator may surprise."""
    if reach is None or not reach.number:
        return None
    row = holdings.row(1 << (reach.number.bit_length() - 1))
    return row if row.fits(holdings.setup.limit_bytes) else None


def _table(holdings: Holdings, asked: int, reach: Reach | None) -> tuple[Row, ...]:
    numbers = {1, asked}
    if reach is not None and reach.number is not None:
        top = reach.number.bit_length()
        numbers |= {1 << power for power in range(max(top - _POWERS, 0), top + 1)}
        numbers |= {reach.number, reach.number + 1}
    return tuple(holdings.row(number) for number in sorted(numbers) if 0 < number <= LARGEST_BATCH)


def _cache_remarks(questions: Sequence[Question]) -> Iterator[str]:
    """A cache whose length nothing asks for is as good as empty."""
    caches = (question.cache for question in questions if question.context is None)
    if any(part.follows_context for cache in caches if cache for part in cache.parts):
        yield "it has a key-value cache: --context N is how many tokens that holds"


def _remarks(setup: Setup, held: Held) -> tuple[str, ...]:
    remarks = []
    if setup.flash_bytes is not None and (held.weight_bytes or 0) > setup.flash_bytes:
        remarks.append("the weights are more than the flash holds")
    if setup.basis is Basis.MCU and setup.flash_bytes is None:
        remarks.append("where the weights lie is not checked: no flash is known")
    if not held.is_whole:
        remarks.append("something is left out, and the figure is a lower bound: see analyze")
    return tuple(remarks)
