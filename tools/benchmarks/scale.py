"""Time and memory of one analysis as the graph grows.

Usage: python tools/benchmarks/scale.py [NODES ...]

Each graph is a chain of MatMul, Add, Relu and Sigmoid whose weights lie in an external file that is
not there, 1 MiB each; each analysis is a process of its own, imports included. The last column is
the time of one node, less that of a graph of 1,000 nodes: where it stays the same, time grows with
the graph and no faster.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import onnx
from onnx import TensorProto, helper

SIZES = (1_000, 3_000, 10_000, 30_000, 50_000, 100_000)
WIDTH = 512
_LAUNCHER = """
import os, sys, time
started = time.perf_counter()
child = os.fork()
if not child:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execv(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(child, 0)
print(time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def chain(num_nodes: int, width: int = WIDTH) -> onnx.ModelProto:
    """A chain of blocks of four nodes; every block has a weight of its own."""
    nodes, weights, x = [], [], "x"
    for i in range(num_nodes // 4):
        weight = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="absent.bin")
        weights.append(weight)
        nodes += [
            helper.make_node("MatMul", [x, f"w{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", x], [f"a{i}"]),
            helper.make_node("Relu", [f"a{i}"], [f"r{i}"]),
            helper.make_node("Sigmoid", [f"r{i}"], [f"s{i}"]),
        ]
        x = f"s{i}"
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name in ("x", x)
    ]
    return helper.make_model(helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights))


def measured(command: list[str]) -> tuple[float, float, float]:
    """Run a command: wall and CPU seconds, and the largest resident size in MiB.

    :raises RuntimeError: the command fails.
    """
    # Linux counts what a process held before it ran another program: the launcher holds little.
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, *command]
    run = subprocess.run(launcher, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode:
        message = f"{command}: exit {run.returncode}\n{run.stderr[-500:]}"
        raise RuntimeError(message)
    wall, cpu, kibibytes = (float(text) for text in run.stdout.split()[-3:])
    return wall, cpu, kibibytes / 1024


def main() -> None:
    """Print a row for each size."""
    sizes = [int(text.replace(",", "")) for text in sys.argv[1:]] or SIZES
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'nodes':>9}{'wall s':>9}{'CPU s':>9}{'MiB':>8}{'us/node':>10}")
    first: tuple[int, float] | None = None
    with tempfile.TemporaryDirectory() as folder:
        for num_nodes in sizes:
            path = Path(folder) / f"chain_{num_nodes}.onnx"
            path.write_bytes(chain(num_nodes).SerializeToString())
            wall, cpu, mebibytes = measured([sys.executable, "-m", "onnxmem", str(path)])
            rate = "" if first is None else f"{1e6 * (cpu - first[1]) / (num_nodes - first[0]):.1f}"
            first = first or (num_nodes, cpu)
            print(f"{num_nodes:>9,}{wall:>9.2f}{cpu:>9.2f}{mebibytes:>8.0f}{rate:>10}", flush=True)


if __name__ == "__main__":
    main()
