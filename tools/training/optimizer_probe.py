"""Watch optimizers step: what state they keep, and which blocks are alive at the step's peak.

Writes `tests/data/optimizer_state.json`: one row an optimizer, form, weight decay, element size and
order of the parameters. It needs torch, and for the two that torch has not lion-pytorch 0.2.5 and
timm 1.0.31, both without their dependencies:

    pip install --no-deps lion-pytorch==0.2.5 timm==1.0.31
    python tools/training/optimizer_probe.py

The parameters are real tensors on the CPU: Adafactor, ASGD and Muon read values while they step, so
fake ones do not do. No two have the same size, and sizes neither grow nor fall, so that sums of
all, of the largest and of two neighbors differ. Ten steps are taken, since RAdam rectifies only
from the sixth on. Tensors without dims are left out of the blocks, as most of them are counters and
scalars on the CPU, and so are LAMB's vectors of one norm a parameter.
"""

import argparse
import importlib
import importlib.util
import json
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_OUT = Path(__file__).parents[2] / "tests" / "data" / "optimizer_state.json"
_SHAPES = ((31,), (13, 101), (7, 5, 3, 3), (43, 29), (19,), (23,), (11, 17))
_NUM_STEPS = 10
_TYPES = (torch.float32, torch.bfloat16)

_Options = dict[str, Any]
_Make = Callable[..., torch.optim.Optimizer]


class PeakBlocks(TorchDispatchMode):
    """The storages that operators make, and those alive together where they are most."""

    def __init__(self, num_parameters: int, known: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.peak: list[int] = []
        self._left_out = ((), (num_parameters,))
        self._known = {tensor.untyped_storage()._cdata for tensor in known}  # noqa: SLF001
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}

    def __torch_dispatch__(  # the name and signature are torch's
        self,
        func: Any,  # noqa: ANN401  # an OpOverload, which has no public type
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        outputs = func(*args, **(kwargs or {}))
        for leaf in tree_iter(outputs):
            if isinstance(leaf, torch.Tensor) and tuple(leaf.shape) not in self._left_out:
                self._add(leaf.untyped_storage())
        sizes = [size_bytes for size_bytes, _ in self._alive.values()]
        if sum(sizes) > sum(self.peak):
            self.peak = sizes
        return outputs

    def _add(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata  # noqa: SLF001  # its address, the one identity a storage has
        if key not in self._known and key not in self._alive:
            freed = weakref.ref(storage, lambda _: self._alive.pop(key, None))
            self._alive[key] = storage.nbytes(), freed


class MatricesByMuon:
    """Muon for parameters of two dims, which is all it takes, and AdamW for the others."""

    def __init__(self, parameters: list[torch.nn.Parameter], **options: Any) -> None:  # noqa: ANN401
        matrices = [one for one in parameters if one.ndim == 2]  # noqa: PLR2004
        others = [one for one in parameters if one.ndim != 2]  # noqa: PLR2004
        decay = options["weight_decay"]
        self._both = (
            torch.optim.Muon(matrices, weight_decay=decay),
            torch.optim.AdamW(others, **options),
        )
        self.state = {**self._both[0].state, **self._both[1].state}

    def step(self) -> None:
        """Step one after the other."""
        for one in self._both:
            one.step()
        self.state = {**self._both[0].state, **self._both[1].state}


@cache
def _module_of_timm(name: str) -> types.ModuleType:
    """Import one module of timm without timm itself, which imports torchvision."""
    found = importlib.util.find_spec("timm")
    if found is None or found.origin is None:
        message = "timm is not installed"
        raise ModuleNotFoundError(message)
    root = Path(found.origin).parent
    for package, folder in (("timm", root), ("timm.optim", root / "optim")):
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [str(folder)]
    return importlib.import_module(name)


def _lion(parameters: list[torch.nn.Parameter], *, foreach: bool, **options: Any) -> Any:  # noqa: ANN401, ARG001
    return importlib.import_module("lion_pytorch").Lion(parameters, **options)


def _lamb(parameters: list[torch.nn.Parameter], **options: Any) -> Any:  # noqa: ANN401
    return _module_of_timm("timm.optim.lamb").Lamb(parameters, **options)


_OPTIM = torch.optim
# Adafactor and Lion loop unless told otherwise, also on CUDA: no form for all at once is probed.
_DECAYED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "sgd": (_OPTIM.SGD, ("foreach", "single", "fused")),
    "momentum": (partial(_OPTIM.SGD, momentum=0.9), ("foreach", "single", "fused")),
    "nesterov": (partial(_OPTIM.SGD, momentum=0.9, nesterov=True), ("foreach", "single", "fused")),
    "rmsprop": (_OPTIM.RMSprop, ("foreach", "single")),
    "rmsprop-momentum": (partial(_OPTIM.RMSprop, momentum=0.9), ("foreach", "single")),
    "rmsprop-centered": (partial(_OPTIM.RMSprop, centered=True), ("foreach", "single")),
    "rmsprop-centered-momentum": (
        partial(_OPTIM.RMSprop, centered=True, momentum=0.9),
        ("foreach", "single"),
    ),
    "adagrad": (_OPTIM.Adagrad, ("foreach", "single", "fused")),
    "adadelta": (_OPTIM.Adadelta, ("foreach", "single")),
    "adam": (_OPTIM.Adam, ("foreach", "single", "fused")),
    "adam-amsgrad": (partial(_OPTIM.Adam, amsgrad=True), ("foreach", "single", "fused")),
    "adamw": (_OPTIM.AdamW, ("foreach", "single", "fused")),
    "adamw-amsgrad": (partial(_OPTIM.AdamW, amsgrad=True), ("foreach", "single", "fused")),
    "adamax": (_OPTIM.Adamax, ("foreach", "single")),
    "nadam": (_OPTIM.NAdam, ("foreach", "single")),
    "radam": (_OPTIM.RAdam, ("foreach", "single")),
    "asgd": (_OPTIM.ASGD, ("foreach", "single")),
    "muon": (MatricesByMuon, ("foreach", "single")),
    "adafactor": (_OPTIM.Adafactor, ("single",)),
    "lion": (_lion, ("single",)),
    "lamb": (_lamb, ("foreach", "single")),
}


def _cases() -> Iterator[tuple[str, str, bool, _Make]]:
    """Name, form, whether weight decays, and what makes the optimizer."""
    for name, (make, forms) in _DECAYED.items():
        for form in forms:
            named: _Options = {"foreach": form == "foreach"}
            if form == "fused":
                named["fused"] = True
            for decay in (0.0, 0.1):
                yield name, form, decay > 0, partial(make, weight_decay=decay, **named)
    for form in ("foreach", "single"):
        yield "rprop", form, False, partial(_OPTIM.Rprop, foreach=form == "foreach")


def _row(make: _Make, shapes: Iterable[tuple[int, ...]], dtype: torch.dtype) -> dict[str, object]:
    """Make parameters and the optimizer, step, and say the state and the blocks of a late step."""
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in shapes]
    for one in parameters:
        one.grad = torch.randn_like(one)
    optimizer = make(parameters)
    for _ in range(_NUM_STEPS):
        optimizer.step()
    state = [leaf for leaf in tree_iter(dict(optimizer.state)) if isinstance(leaf, torch.Tensor)]
    state = [leaf for leaf in state if not isinstance(leaf, torch.nn.Parameter)]
    gradients = [one.grad for one in parameters if one.grad is not None]
    with PeakBlocks(len(parameters), (*parameters, *gradients, *state)) as watch:
        optimizer.step()
    return {
        "state_bytes": sum(leaf.untyped_storage().nbytes() for leaf in state),
        "peak_blocks": sorted(watch.peak),
    }


def main() -> None:
    """Probe every optimizer and write the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=_OUT)
    out = parser.parse_args().out
    rows = []
    for name, form, decays, make in _cases():
        for dtype in _TYPES:
            for is_reversed in (False, True):
                shapes = _SHAPES[::-1] if is_reversed else _SHAPES
                about = {"optimizer": name, "form": form, "weight_decay": decays}
                about |= {"element_bytes": dtype.itemsize, "reversed": is_reversed}
                rows.append(json.dumps(about | _row(make, shapes, dtype)))
    head = {"torch": torch.__version__, "shapes": _SHAPES}
    lines = ",\n  ".join(rows)
    out.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n  {lines}\n]}}\n', encoding="utf-8")
    print(f"{len(rows)} rows in {out}")


if __name__ == "__main__":
    main()
