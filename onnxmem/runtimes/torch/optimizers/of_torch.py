"""The optimizers of torch.optim, as torch 2.13.0 was watched to step them.

The scripts follow ``_single_tensor_*`` and ``_multi_tensor_*`` of torch/optim/*.py. Their ``grad``
is the copy of a gradient that the L2 weight decay is added to; what decouples its decay (AdamW,
Muon, Adafactor) scales weights in place and has no such copy. Default options otherwise.
"""

from collections.abc import Mapping
from types import MappingProxyType

from onnxmem.runtimes.torch.optimizers.optimizer import Optimizer
from onnxmem.runtimes.torch.optimizers.scripts import Script, each, in_turn, together
from onnxmem.runtimes.torch.optimizers.states import by_matrix, factors, moments

_SOURCE = "torch 2.13.0, state and temporaries probed: torch.optim."


def _known(
    name: str,
    made: str,
    kept: tuple[str, ...],
    scripts: tuple[Script, Script],
    *,
    counters: int = 1,
    is_fused: bool = False,
) -> Optimizer:
    """Describe an optimizer that keeps tensors as large as the parameter, named in ``kept``.

    ``scripts`` are those of the loop and of foreach.
    """
    what = f"{len(kept)} x parameters ({', '.join(kept)})" if kept else "0"
    return Optimizer(
        name=name,
        state_of=moments(len(kept), counters=counters),
        step_tensors_on_cpu=counters,
        single=scripts[0],
        foreach=scripts[1],
        is_fused=is_fused,
        formula=f"{what} + {4 * counters} bytes a tensor" if counters else what,
        source=_SOURCE + made,
    )


_SGD = each("-grad grad?"), together("grad?")
_NESTEROV = each("-grad grad? grad"), together("grad?")
"""In foreach it is added to the gradients in place."""
_RMSPROP = each("-grad grad? average"), together("grad? average")
_ADAGRAD = each("-grad grad? deviation"), together("grad? deviation numerator!")
_ADADELTA = each("-grad grad? deviation delta"), together("grad? deviation delta")
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
_ADAMAX = each("-grad grad? absolute -absolute"), together("grad? absolute!")
_NADAM = each("-grad grad? quotient denom -quotient"), together("grad? root")
_RADAM = each("-grad grad? corrected scaled root reciprocal rate -reciprocal -root -scaled -rate")
"""Rectified, as from the sixth step on."""
_RPROP = each("-grad product sign -product grad turned -turned")
_RPROP_TOGETHER = in_turn(together("sign"), each("mask:bytes chosen -mask -chosen"))
_ASGD = each("-grad grad?"), together("sum -sum difference")
"""Before the averaging starts, at its default a million steps in; then the loop makes a tensor."""

_ADAMW_KNOWN = _known("adamw", "AdamW", ("first moment", "second moment"), _ADAMW, is_fused=True)

_MUON = each(
    "update -kept kept:cast "
    "gram:gram polynomial:gram kept:half gram:gram polynomial:gram kept:half "
    "-gram -polynomial -update"
)
"""Two of the Newton-Schulz iterations, which are all alike from the second on."""

_MOMENTS = ("first moment", "second moment")
_WITH_MAXIMUM = (*_MOMENTS, "its maximum")

OF_TORCH = (
    _known("sgd", "SGD", (), _SGD, counters=0, is_fused=True),
    _known("momentum", "SGD(momentum=...)", ("momentum",), _SGD, counters=0, is_fused=True),
    _known("nesterov", "SGD(nesterov=True)", ("momentum",), _NESTEROV, counters=0, is_fused=True),
    _known("rmsprop", "RMSprop", ("squares",), _RMSPROP),
    _known("rmsprop-momentum", "RMSprop(momentum=...)", ("squares", "momentum"), _RMSPROP),
    _known("rmsprop-centered", "RMSprop(centered=True)", ("squares", "means"), _RMSPROP),
    _known(
        "rmsprop-centered-momentum",
        "RMSprop(centered=True, momentum=...)",
        ("squares", "means", "momentum"),
        _RMSPROP,
    ),
    _known("adagrad", "Adagrad", ("sum of squares",), _ADAGRAD, is_fused=True),
    _known("adadelta", "Adadelta", ("squares", "squared steps"), _ADADELTA),
    _known("adam", "Adam", _MOMENTS, _ADAM, is_fused=True),
    _known("adam-amsgrad", "Adam(amsgrad=True)", _WITH_MAXIMUM, _ADAM, is_fused=True),
    _ADAMW_KNOWN,
    _known("adamw-amsgrad", "AdamW(amsgrad=True)", _WITH_MAXIMUM, _ADAMW, is_fused=True),
    _known("adamax", "Adamax", ("first moment", "largest"), _ADAMAX),
    _known("nadam", "NAdam", _MOMENTS, _NADAM, counters=2),
    _known("radam", "RAdam", _MOMENTS, (_RADAM, together("grad? -grad root"))),
    _known("rprop", "Rprop", ("gradients", "step sizes"), (_RPROP, _RPROP_TOGETHER)),
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
        step_tensors_on_cpu=1,
        single=each(
            "row:rows column:columns estimate mean:matrices -mean estimate>update",
            vectors="square estimate estimate>update",
        ),
        formula="rows + columns of each matrix, 1 x each vector, + 4 bytes a tensor",
        source=_SOURCE + "Adafactor, whose default is the loop",
    ),
)
