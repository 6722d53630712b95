"""Measure one training step of any network here, with every switch.

export PYTHONPATH=tools
python tools/training/measure.py resnet18 --optimizer adam --zero-grad backward
python tools/training/measure.py gpt2_small --checkpoint bl.0 bl.1 --trace step.jsonl
"""

import argparse
import json
from contextlib import ExitStack
from pathlib import Path

from given import NETWORKS
from new import CASES
from settings import OPTIMIZERS, Settings
from step import measure

from onnxmem.torch.cuda_like import ATTENTION_KINDS
from onnxmem.torch.live_bytes import Trace


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("network", help="a name of given.py or new.py")
    add("--batch", type=int, help="the first of the network's own if left out")
    add("--optimizer", choices=OPTIMIZERS, default="sgd")
    add("--loss", choices=("cross-entropy", "mse"), help="the network's own if left out")
    add("--single-tensor", action="store_true", help="the optimizer's foreach=False")
    add("--weight-decay", type=float, default=0.0)
    add(
        "--zero-grad",
        choices=("start", "backward", "keep"),
        default="start",
        help="where it is called; keep: at the start, and gradients are filled with zeros",
    )
    add("--micro-batches", type=int, default=1, help="accumulated before the optimizer steps")
    add("--first-step", action="store_true", help="the step that makes the optimizer state")
    add("--checkpoint", nargs="*", default=(), metavar="MODULE", help="modules run twice")
    add("--relu", choices=("in-place", "copying"), help="as the network is written if left out")
    add("--autocast", action="store_true", help="forward and loss in bfloat16")
    add("--attention", choices=ATTENTION_KINDS, default="math")
    add("--real-tensors", action="store_true", help="take the memory instead of faking it")
    add("--trace", type=Path, help="file to write every operator to, one JSON line each")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(
        optimizer=options.optimizer,
        loss=options.loss,
        foreach=not options.single_tensor,
        weight_decay=options.weight_decay,
        zero_grad=options.zero_grad,
        micro_batches=options.micro_batches,
        steps=1 if options.first_step else 2,
        checkpoint=tuple(options.checkpoint),
        inplace_relu=None if options.relu is None else options.relu == "in-place",
        autocast=options.autocast,
        attention=options.attention,
        real_tensors=options.real_tensors,
    )


def _main() -> None:
    options = _parser().parse_args()
    networks = {network.name: network for network in (*NETWORKS, *(c.network for c in CASES))}
    network = networks[options.network]
    with ExitStack() as stack:
        trace = Trace(stack.enter_context(options.trace.open("w"))) if options.trace else None
        batch = options.batch or network.batches[0]
        figures = measure(network, batch, _settings(options), trace)
    print(json.dumps({"model": network.name, "batch": batch, **figures}, indent=1))


if __name__ == "__main__":
    _main()
