"""The flags of the runtime whose figures are predicted."""

from argparse import ArgumentParser, _ArgumentGroup

from onnxmem.cli.model_options import size
from onnxmem.settings import CPUS, GRAPHS, RUNTIMES


def add_runtime_options(parser: ArgumentParser) -> None:
    """Add the runtimes, the graph that they run, and what is assumed of CUDA."""
    runtime = parser.add_argument_group("runtime")
    runtime.add_argument(
        "--runtime",
        dest="runtimes",
        choices=RUNTIMES,
        action="append",
        default=[],
        help="predict what onnxruntime takes, on CPU or CUDA (twice: side by side)",
    )
    runtime.add_argument(
        "--graph",
        choices=GRAPHS,
        help="graph that the figures are of (default: raw, and ort-all for a runtime)",
    )
    add_session_options(runtime)
    runtime.add_argument(
        "--emulate-optimiser",
        action="store_true",
        help="do not ask onnxruntime for its graph even where it is installed",
    )


def add_session_options(runtime: _ArgumentGroup) -> None:
    """Add what a session or an allocator is told, and what is assumed of CUDA."""
    runtime.add_argument(
        "--fixed-dims",
        action="store_true",
        help="open the session with numbers in place of symbolic dims",
    )
    runtime.add_argument(
        "--cpu",
        choices=CPUS,
        help="CPU that the session runs on (default: the device's where it is known, else native:"
        " this machine's)",
    )
    for flag, what in (("context", "CUDA context"), ("workspace", "cuDNN workspace")):
        runtime.add_argument(
            f"--cuda-{flag}",
            dest=f"cuda_{flag}_bytes",
            type=size,
            metavar="SIZE",
            help=f"{what}, in place of what is assumed",
        )
    runtime.add_argument(
        "--expandable-segments",
        action="store_true",
        help="PyTorch's allocator on CUDA grows its segments, for a training step",
    )
