"""Optimizers: the state of each, and the temporaries that one step allocates.

State has the element size of the parameters, except counters and block scales. Temporaries are
those of the implementation that runs: ``foreach``, PyTorch's default on CUDA, handles all
parameters at once and has whole copies of them; ``single`` loops over the parameters; ``fused``
allocates nothing.

A new optimizer is one record of ``OF_TORCH`` or ``OF_OTHERS``: its state (``moments`` and others)
and, as scripts, the tensors that a step allocates and releases.

A Python loop over parameters keeps its variables from one parameter to the next, and a variable
releases its old tensor only after the new one is allocated: what is alive together depends on
neighboring parameters, and is neither a copy of all nor one of the largest. A script is therefore
replayed over the parameters in their order. Its words, separated by blanks, are

- ``denom``: allocates a tensor as large as the parameter and binds it to that name;
- ``mask:bytes``: allocates one of another size, see ``_SIZES``;
- ``-root``: releases a name, ``estimate>update``: renames a variable;
- ``grad?``: only with weight decay, ``numerator!``: only without.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from types import MappingProxyType

from onnxmem.errors import UsageError

Dims = tuple[int, ...]

_HALF_BYTES = 2
_VECTOR_DIMS = 1


def _half(shape: Dims, _: int) -> int:
    return prod(shape) * _HALF_BYTES


def _cast(shape: Dims, element_bytes: int) -> int:
    return 0 if element_bytes == _HALF_BYTES else prod(shape) * _HALF_BYTES


_SIZES: Mapping[str, Callable[[Dims, int], int]] = MappingProxyType(
    {
        "whole": lambda shape, element_bytes: prod(shape) * element_bytes,
        "bytes": lambda shape, _: prod(shape),
        "half": _half,
        "cast": _cast,
        "gram": lambda shape, _: min(shape, default=1) ** 2 * _HALF_BYTES,
        "rows": lambda shape, element_bytes: prod(shape[:-1]) * element_bytes,
        "columns": lambda shape, element_bytes: prod((*shape[:-2], shape[-1])) * element_bytes,
        "matrices": lambda shape, element_bytes: prod(shape[:-2]) * element_bytes,
    }
)
"""Bytes by dims and element bytes. ``whole``: as large as the parameter; ``bytes``: one byte per
element, a mask; ``half``: in bfloat16; ``cast``: the cast to it, which allocates nothing where the
parameter is bfloat16 already; ``gram``: a matrix by its own transpose, in bfloat16; ``rows`` and
``columns``: the means over the last dim and over the last but one; ``matrices``: over both."""

_WORD = re.compile(
    r"(?P<drop>-)?(?P<name>[a-z_]+)(:(?P<size>[a-z]+))?(>(?P<target>[a-z_]+))?(?P<decay>[?!])?"
)


@dataclass(frozen=True, slots=True)
class _Word:
    name: str
    size: str
    is_drop: bool
    target: str
    decay: bool | None
    """Whether it runs only with or only without weight decay; ``None``: with both."""


@dataclass(frozen=True, slots=True)
class _Part:
    is_together: bool
    """Whether each word runs for all parameters before the next word."""
    words: tuple[_Word, ...]
    words_of_vectors: tuple[_Word, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """What a step allocates: parts that run one after the other."""

    parts: tuple[_Part, ...] = ()

    def peak_blocks(
        self, shapes: tuple[Dims, ...], element_bytes: int, *, weight_decay: bool
    ) -> tuple[int, ...]:
        """Bytes of each block alive at the peak, in the order of allocation; the first of equal
        peaks.

        ``shapes`` are in the order in which the optimizer has the parameters.
        """
        replay = _Replay(element_bytes)
        for part in self.parts:
            for words, group in _passes(part, shapes):
                for word in words:
                    if word.decay in {None, weight_decay}:
                        replay.run(word, group)
        return tuple(size_bytes for size_bytes in chain(*replay.peak) if size_bytes)


def together(text: str) -> Script:
    """Script that runs each word for all parameters at once, as ``foreach`` does."""
    words = _words(text)
    return Script((_Part(is_together=True, words=words, words_of_vectors=words),))


def each(text: str, *, vectors: str | None = None) -> Script:
    """Script that runs for one parameter after another.

    ``vectors`` is the script of those with one dim or none, where it differs.
    """
    of_vectors = _words(text if vectors is None else vectors)
    return Script((_Part(is_together=False, words=_words(text), words_of_vectors=of_vectors),))


def in_sequence(*scripts: Script) -> Script:
    """One script after the other; variables that one leaves bound stay bound in the next."""
    return Script(tuple(part for script in scripts for part in script.parts))


def _words(text: str) -> tuple[_Word, ...]:
    return tuple(_word(one) for one in text.split())


def _word(text: str) -> _Word:
    found = _WORD.fullmatch(text)
    if found is None or (found["size"] or "whole") not in _SIZES:
        message = f"not a word of a script: {text!r}"
        raise ValueError(message)
    return _Word(
        name=found["name"],
        size=found["size"] or "whole",
        is_drop=found["drop"] is not None,
        target=found["target"] or "",
        decay=None if found["decay"] is None else found["decay"] == "?",
    )


def _passes(
    part: _Part, shapes: tuple[Dims, ...]
) -> Iterator[tuple[tuple[_Word, ...], tuple[Dims, ...]]]:
    if part.is_together:
        yield part.words, shapes
        return
    for shape in shapes:
        is_vector = len(shape) <= _VECTOR_DIMS
        yield part.words_of_vectors if is_vector else part.words, (shape,)


class _Replay:
    """The variables that are bound, and the blocks alive at the peak so far."""

    def __init__(self, element_bytes: int) -> None:
        self.peak: tuple[tuple[int, ...], ...] = ()
        self._element_bytes = element_bytes
        self._bound: dict[str, tuple[int, ...]] = {}
        self._peak_bytes = 0

    def run(self, word: _Word, shapes: tuple[Dims, ...]) -> None:
        """Run one word for these parameters."""
        if word.is_drop:
            self._bound.pop(word.name, None)
        elif word.target:
            self._bound[word.target] = self._bound.pop(word.name)
        else:
            size_of = _SIZES[word.size]
            self._allocate(word.name, tuple(size_of(one, self._element_bytes) for one in shapes))

    def _allocate(self, name: str, blocks: tuple[int, ...]) -> None:
        # Python evaluates the right side first: what the name was bound to is alive beside the
        # new blocks, and released by the assignment.
        alive = (*self._bound.values(), blocks)
        alive_bytes = sum(map(sum, alive))
        if alive_bytes > self._peak_bytes:
            self._peak_bytes, self.peak = alive_bytes, alive
        self._bound.pop(name, None)
        self._bound[name] = blocks


StateOf = Callable[[Dims, int], int]

COUNTER_BYTES = 4
"""PyTorch counts the steps of each parameter in a float32 tensor, whatever the parameter's type."""

_FLOAT_BYTES = 4
_MATRIX_DIMS = 2
_MIN_8BIT_ELEMENTS = 4096
"""Smaller tensors have float32 state (bitsandbytes: min_8bit_size)."""
_BLOCK_ELEMENTS = 256
"""Elements that share one float32 scale; 2048 before bitsandbytes 0.44."""
CODE_BYTES = 256 * _FLOAT_BYTES
"""The table of the 256 values that a byte of state stands for."""


def moments(count: int, *, counters: int = 0) -> StateOf:
    """``count`` tensors as large as the parameter, and ``counters`` float32 scalars."""
    return lambda shape, element_bytes: (
        count * prod(shape) * element_bytes + counters * COUNTER_BYTES
    )


def factors(shape: Dims, element_bytes: int) -> int:
    """Row and column means over the last two dims, of a vector all elements; and a step counter."""
    if len(shape) < _MATRIX_DIMS:
        return prod(shape) * element_bytes + COUNTER_BYTES
    rows, columns = prod(shape[:-1]), prod((*shape[:-2], shape[-1]))
    return (rows + columns) * element_bytes + COUNTER_BYTES


def bytewise_moments(shape: Dims, element_bytes: int) -> int:  # noqa: ARG001 - of its own size
    """Two bytes per element, and a float32 scale for each block of both moments."""
    count = prod(shape)
    if count < _MIN_8BIT_ELEMENTS:
        return 2 * count * _FLOAT_BYTES
    blocks = -(-count // _BLOCK_ELEMENTS)
    return 2 * (count + blocks * _FLOAT_BYTES)


def by_matrix(of_matrices: StateOf, of_others: StateOf) -> StateOf:
    """One rule for parameters of exactly two dims, another for the rest."""
    return lambda shape, element_bytes: (of_matrices if len(shape) == _MATRIX_DIMS else of_others)(
        shape, element_bytes
    )


FORMS = ("foreach", "single", "fused")
"""The implementations: all parameters at once; a loop; one kernel, which allocates nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """One optimizer, in all the implementations (forms) that its library has."""

    name: str
    state_of: StateOf
    """Bytes of state of one parameter, by its dims and its bytes per element.

    It includes step counters, 4 bytes each, although PyTorch has most of them on the CPU unless
    the form is ``fused`` or the optimizer ``capturable``.
    """
    shared_state_bytes: int = 0
    """State that all parameters share."""
    single: Script
    """Temporaries of the loop over the parameters, which every optimizer has."""
    foreach: Script | None = None
    """Temporaries of ``foreach``; ``None`` where that is not the library's default."""
    is_fused: bool = False
    """Whether the library has ``fused``."""
    of_others: "Optimizer | None" = None
    """The optimizer that steps parameters other than matrices; ``None``: this one steps all."""
    formula: str
    """The state, in words."""
    source: str

    def form_used(self, form: str) -> str:
        """The form that runs where ``form`` is requested.

        An optimizer without ``fused`` uses ``foreach``, and one without that ``single``.

        :raises UsageError: there is no form of that name.
        """
        if form not in FORMS:
            message = f"optimizer form {form!r}: not known; one of {', '.join(FORMS)}"
            raise UsageError(message)
        if form == "single" or (form == "fused" and self.is_fused):
            return form
        return "single" if self.foreach is None else "foreach"

    def state_bytes(self, shapes: tuple[Dims, ...], element_bytes: int) -> int:
        """Bytes kept from step to step for parameters of these shapes."""
        per_parameter = sum(self.state_of(shape, element_bytes) for shape in shapes)
        return per_parameter + self.shared_state_bytes if shapes else 0

    def temporaries(
        self,
        shapes: tuple[Dims, ...],
        element_bytes: int,
        *,
        form: str = "foreach",
        weight_decay: bool = False,
    ) -> tuple[int, ...]:
        """Bytes of each block that is alive at the peak of a step, one per tensor.

        ``shapes`` are those of the trained parameters, in the order in which the optimizer has
        them: in the form ``single`` the peak depends on neighbors. Tensors without dims and vectors
        of one value per parameter are left out.

        :raises UsageError: there is no form of that name.
        """
        used = self.form_used(form)
        script = {"foreach": self.foreach, "single": self.single, "fused": None}[used] or Script()
        if self.of_others is None:
            return script.peak_blocks(shapes, element_bytes, weight_decay=weight_decay)
        own = tuple(shape for shape in shapes if len(shape) == _MATRIX_DIMS)
        rest = tuple(shape for shape in shapes if len(shape) != _MATRIX_DIMS)
        of_rest = self.of_others.temporaries(
            rest, element_bytes, form=form, weight_decay=weight_decay
        )
        return max(
            script.peak_blocks(own, element_bytes, weight_decay=weight_decay), of_rest, key=sum
        )


OF_OTHERS = (
    Optimizer(
        name="lion",
        state_of=moments(1),
        single=each("clone update -clone -update"),
        formula="1 x parameters (momentum)",
        source="Chen et al. 2023 (arXiv 2302.06675); temporaries probed: lion-pytorch 0.2.5, whose "
        "Lion is a loop",
    ),
    Optimizer(
        name="lamb",
        state_of=moments(2),
        single=each("-grad grad root denom -root update"),
        foreach=together("grad denom update"),
        formula="2 x parameters (first moment, second moment)",
        source="You et al. 2019 (arXiv 1904.00962); temporaries probed: timm 1.0.31, gradients "
        "clipped, foreach in one piece as on GPUs with less than 64 MiB of level 2 cache",
    ),
    Optimizer(
        name="adam8bit",
        state_of=bytewise_moments,
        shared_state_bytes=2 * CODE_BYTES,
        single=Script(),
        formula="2 bytes a parameter + 2 x 4 bytes for each 256; "
        "8 bytes a parameter in tensors below 4096 elements; + 2048 bytes of tables",
        source="Dettmers et al. 2021 (arXiv 2110.02861); bitsandbytes Optimizer2State, a kernel a "
        "tensor",
    ),
)


# torch.optim of torch 2.13.0, whose steps were traced. The scripts follow ``_single_tensor_*`` and
# ``_multi_tensor_*`` of torch/optim/*.py. Their ``grad`` is the copy of a gradient that the L2
# weight decay is added to; optimizers with decoupled decay (AdamW, Muon, Adafactor) scale weights
# in place and have no such copy. Other options have their defaults.
_SOURCE = "torch 2.13.0, state and temporaries probed: torch.optim."


def _of_torch(
    name: str,
    call: str,
    state: tuple[str, ...],
    scripts: tuple[Script, Script],
    *,
    counters: int = 1,
    is_fused: bool = False,
) -> Optimizer:
    """Describe an optimizer whose state are tensors as large as the parameter, named in ``state``.

    ``scripts`` are those of ``single`` and of ``foreach``.
    """
    what = f"{len(state)} x parameters ({', '.join(state)})" if state else "0"
    return Optimizer(
        name=name,
        state_of=moments(len(state), counters=counters),
        single=scripts[0],
        foreach=scripts[1],
        is_fused=is_fused,
        formula=f"{what} + {4 * counters} bytes a tensor" if counters else what,
        source=_SOURCE + call,
    )


# SGD: ``grad.add(param, alpha=weight_decay)``. The loop variable ``grad`` keeps the last copy until
# the next parameter's gradient is bound to it, so each loop begins with ``-grad``.
_SGD = each("-grad grad?"), together("grad?")
_NESTEROV = each("-grad grad? grad"), together("grad?")
"""``_foreach_add_`` adds the momentum to the gradients in place."""
# The average is ``square_avg.sqrt()``, or ``addcmul`` and ``sqrt_`` if centered: one tensor.
_RMSPROP = each("-grad grad? average"), together("grad? average")
# ``foreach`` scales the gradients by the learning rate: in place if weight decay has copied them,
# else into ``numerator``.
_ADAGRAD = each("-grad grad? deviation"), together("grad? deviation numerator!")
# ``std`` and ``delta`` are sums with eps, of which the roots are taken in place.
_ADADELTA = each("-grad grad? deviation delta"), together("grad? deviation delta")
# ``(exp_avg_sq.sqrt() / bias_correction2_sqrt).add_(eps)``: the root is alive until the quotient is
# there. ``foreach`` divides in place, and deletes its gradients before (``del device_grads``).
_ADAM = each("-grad grad? root denom -root"), together("grad? -grad root")
_ADAMW = each("root denom -root"), together("root")
_ADAM_OF_2_0, _ADAMW_OF_2_0 = together("grad? root denom"), together("root denom")
FOREACH_OF_2_0: Mapping[str, Script] = MappingProxyType(
    {
        "adam": _ADAM_OF_2_0,
        "adam-amsgrad": _ADAM_OF_2_0,
        "adamw": _ADAMW_OF_2_0,
        "adamw-amsgrad": _ADAMW_OF_2_0,
    }
)
"""``_multi_tensor_adam`` and ``_multi_tensor_adamw`` of torch 2.0.1: eps is not added in place."""
# ``torch.maximum(..., grad.abs().add_(eps), out=exp_inf)`` frees the absolute values at once. In
# ``foreach`` they take the place of the copies of weight decay, if there are any.
_ADAMAX = each("-grad grad? absolute -absolute"), together("grad? absolute!")
# ``exp_avg_sq.div(bias_correction2).sqrt()``; ``foreach`` takes the root and divides it in place.
_NADAM = each("-grad grad? quotient denom -quotient"), together("grad? root")
# ``exp_avg / bias_correction1`` stays bound. ``bias_correction2**0.5 / root`` is a reciprocal and a
# product (``Tensor.__rdiv__``), while the root is a local variable.
_RADAM = each("-grad grad? corrected scaled root reciprocal rate -reciprocal -root -scaled -rate")
"""Rectified, as from the sixth step on."""
# ``grad.mul(prev).sign()``, then a copy of the gradient and its sign. ``foreach`` has the signs of
# all, and in a loop over the parameters a mask and what it selects.
_RPROP = each("-grad product sign -product grad update -update")
_RPROP_TOGETHER = in_sequence(together("sign"), each("mask:bytes chosen -mask -chosen"))
# ``foreach``: the gradient plus ``lambd`` times the parameter, deleted before the difference of
# parameter and average.
_ASGD = each("-grad grad?"), together("sum -sum difference")
"""Before the averaging starts, by default after a million steps; then the loop allocates a
tensor."""

_ADAMW_KNOWN = _of_torch("adamw", "AdamW", ("first moment", "second moment"), _ADAMW, is_fused=True)

# With X: [m, n] in bfloat16, m <= n: A = X @ X.T and b A + c A @ A are [m, m], a X + (...) @ X is
# [m, n]. Names are bound as in the loop of the source, so the old X lives until the new one is
# there.
_MUON = each(
    "update -ortho ortho:cast "
    "gram:gram polynomial:gram ortho:half gram:gram polynomial:gram ortho:half "
    "-gram -polynomial -update"
)
"""Two of the Newton-Schulz iterations (``_zeropower_via_newtonschulz`` of torch/optim/_muon.py);
from the second on all are the same."""

_MOMENTS = ("first moment", "second moment")
_WITH_MAXIMUM = (*_MOMENTS, "its maximum")

OF_TORCH = (
    _of_torch("sgd", "SGD", (), _SGD, counters=0, is_fused=True),
    _of_torch("momentum", "SGD(momentum=...)", ("momentum",), _SGD, counters=0, is_fused=True),
    _of_torch(
        "nesterov", "SGD(nesterov=True)", ("momentum",), _NESTEROV, counters=0, is_fused=True
    ),
    _of_torch("rmsprop", "RMSprop", ("squares",), _RMSPROP),
    _of_torch("rmsprop-momentum", "RMSprop(momentum=...)", ("squares", "momentum"), _RMSPROP),
    _of_torch("rmsprop-centered", "RMSprop(centered=True)", ("squares", "means"), _RMSPROP),
    _of_torch(
        "rmsprop-centered-momentum",
        "RMSprop(centered=True, momentum=...)",
        ("squares", "means", "momentum"),
        _RMSPROP,
    ),
    _of_torch("adagrad", "Adagrad", ("sum of squares",), _ADAGRAD, is_fused=True),
    _of_torch("adadelta", "Adadelta", ("squares", "squared steps"), _ADADELTA),
    _of_torch("adam", "Adam", _MOMENTS, _ADAM, is_fused=True),
    _of_torch("adam-amsgrad", "Adam(amsgrad=True)", _WITH_MAXIMUM, _ADAM, is_fused=True),
    _ADAMW_KNOWN,
    _of_torch("adamw-amsgrad", "AdamW(amsgrad=True)", _WITH_MAXIMUM, _ADAMW, is_fused=True),
    _of_torch("adamax", "Adamax", ("first moment", "largest"), _ADAMAX),
    _of_torch("nadam", "NAdam", _MOMENTS, _NADAM, counters=2),
    _of_torch("radam", "RAdam", _MOMENTS, (_RADAM, together("grad? -grad root"))),
    _of_torch("rprop", "Rprop", ("gradients", "step sizes"), (_RPROP, _RPROP_TOGETHER)),
    Optimizer(
        name="asgd",
        state_of=moments(1, counters=3),
        single=_ASGD[0],
        foreach=_ASGD[1],
        formula="1 x parameters (average) + 12 bytes a tensor",
        source=_SOURCE + "ASGD",
    ),
    Optimizer(
        name="muon",
        state_of=by_matrix(moments(1), _ADAMW_KNOWN.state_of),
        single=_MUON,
        of_others=_ADAMW_KNOWN,
        formula="1 x parameters of two dims (momentum), the others AdamW's: "
        "2 x parameters (first moment, second moment) + 4 bytes a tensor",
        source=_SOURCE + "Muon, which takes matrices alone and has no foreach; assumed to step all "
        "of them, embeddings too, and AdamW the rest",
    ),
    Optimizer(
        name="adafactor",
        state_of=factors,
        # ``var_estimate`` = rows @ columns, divided by the mean of the rows; ``update`` is the same
        # tensor.
        single=each(
            "row:rows column:columns estimate mean:matrices -mean estimate>update",
            vectors="square estimate estimate>update",
        ),
        formula="rows + columns of each matrix, 1 x each vector, + 4 bytes a tensor",
        source=_SOURCE + "Adafactor, whose default is the loop",
    ),
)


OPTIMIZERS: Mapping[str, Optimizer] = MappingProxyType(
    {known.name: known for known in (*OF_TORCH, *OF_OTHERS)}
)


_OLDER: Mapping[str, Mapping[str, Script]] = MappingProxyType(
    {"1.12": FOREACH_OF_2_0, "2.0": FOREACH_OF_2_0}
)
"""By release of PyTorch: the scripts of ``foreach`` that differ from today's."""


def optimizer_named(name: str, torch: str = "latest") -> Optimizer:
    """Find an optimizer, as a release of PyTorch has it.

    :raises UsageError: there is none of that name.
    """
    if name not in OPTIMIZERS:
        message = f"optimizer {name!r}: not known; one of {', '.join(OPTIMIZERS)}"
        raise UsageError(message)
    found = OPTIMIZERS[name]
    older = _OLDER.get(torch, {}).get(name)
    return found if older is None else replace(found, foreach=older)
