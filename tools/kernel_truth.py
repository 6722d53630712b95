"""What onnxruntime's CPU kernels take from the arena: scratch of each node, weights beforehand.

Usage: python tools/kernel_truth.py [tests/data/onnxruntime_kernels.json.gz]

Every case of ``kernel_cases.py`` runs once, with the graph as written, one thread and no memory
pattern. The figures are those of ``session.collect_node_memory_stats_to_file`` and of the profile.
Some kernels end the process: the cases run in child processes, and what is done is kept beside the
result until all are, so that a run that was cut short goes on where it stopped. Cases that
onnxruntime refuses have no row; rows that say the same are one.
"""

import gzip
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime as ort
from kernel_cases import Array, Case, cases

TRUTH = Path("tests/data/onnxruntime_kernels.json.gz")
_CASES_A_CHILD = 500
_MAX_VALUES = 64
"""As many as onnxmem's graphs hold."""
_STATISTICS = "session.collect_node_memory_stats_to_file"
_TYPE_NAMES = {"float": "float32", "double": "float64"}
_INT_KINDS = "iub"

Row = dict[str, object]
Event = dict[str, object]


def main() -> None:
    """Run what is left, in children, then write the rows."""
    warnings.simplefilter("ignore")
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TRUTH
    progress = path.with_suffix(".progress")
    if len(sys.argv) > 2:  # noqa: PLR2004 - the place to start from: this is a child
        _run(progress, int(sys.argv[2]))
        return
    environment = {**os.environ, "ALLOW_RELEASED_ONNX_OPSET_ONLY": "0"}
    while (start := len(_done(progress))) < sum(1 for _ in cases()):
        command = [sys.executable, __file__, str(path), str(start)]
        if subprocess.run(command, env=environment, check=False).returncode:  # noqa: S603 - ours
            _note(progress, {"error": "the process ended"})
    _write(path, _done(progress))
    progress.unlink()


def _done(progress: Path) -> list[Row]:
    """What is known of the cases so far, in their order."""
    if not progress.exists():
        return []
    return [json.loads(line) for line in progress.read_text("utf-8").splitlines()]


def _note(progress: Path, record: Row) -> None:
    with progress.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(record) + "\n")


def _run(progress: Path, start: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for place, case in enumerate(cases()):
            if start <= place < start + _CASES_A_CHILD:
                _note(progress, _measured(case, Path(folder)))


def _measured(case: Case, folder: Path) -> Row:
    for place, node in enumerate(case.model.graph.node):
        node.name = node.name or f"node_{place}"
    try:
        events, temporary, graph = _ran(case, folder)
    except Exception as error:  # noqa: BLE001 - whatever onnxruntime refuses a model with
        return {"case": case.name, "error": str(error)[:200]}
    known = _Values(graph, case.feeds)
    nodes = {node.name: node for node in graph.graph.node}
    opsets = {entry.domain: entry.version for entry in graph.opset_import}
    rows = []
    for event in events:
        name = str(event["name"]).removesuffix("_kernel_time")
        if name in nodes and len(temporary.get(name, ())) == 1:
            row = known.row(nodes[name], event)
            row["opset"] = opsets.get(nodes[name].domain, 1)
            row["temp"] = temporary[name][0]
            row["base"] = _base(event) if len(events) == 1 else None
            rows.append(row)
    return {"case": case.name, "rows": rows}


def _ran(case: Case, folder: Path) -> tuple[list[Event], dict[str, list[int]], onnx.ModelProto]:
    """The profile's nodes, the temporary bytes by node, and the graph that was run."""
    saved, statistics = folder / "graph.onnx", folder / "statistics.csv"
    for stale in (saved, statistics):
        stale.unlink(missing_ok=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 4
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.optimized_model_filepath = str(saved)
    options.add_session_config_entry(_STATISTICS, str(statistics))
    session = ort.InferenceSession(case.model.SerializeToString(), options)
    session.run_with_ort_values(None, dict(_ort_values(case)))
    profile = Path(session.end_profiling())
    events = [e for e in json.loads(profile.read_text("utf-8")) if e.get("cat") == "Node"]
    profile.unlink()
    temporary: dict[str, list[int]] = {}
    for line in statistics.read_text("utf-8").splitlines()[1:]:
        key, *_, size = line.rsplit(",", 4)
        temporary.setdefault(key.rpartition("_")[0], []).append(int(size))
    return events, temporary, onnx.load(saved)


def _ort_values(case: Case) -> Iterator[tuple[str, ort.OrtValue]]:
    for info in case.model.graph.input:
        value, elem_type = case.feeds[info.name], info.type.tensor_type.elem_type
        if value.dtype.kind == "V" or value.dtype.name not in np.sctypeDict:
            stored = value.view(np.uint16 if value.itemsize == 2 else np.uint8)  # noqa: PLR2004 - bytes
            made = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(stored, elem_type)
            yield info.name, made
        else:
            yield info.name, ort.OrtValue.ortvalue_from_numpy(value)


def _base(event: Event) -> int:
    """Arena bytes before the first node."""
    figures = event["args"]
    assert isinstance(figures, dict)  # noqa: S101 - the profile's format
    return int(figures["mem_bytes_requested_in_use"]) - int(figures["mem_requested_in_use_delta"])


class _Values:
    """What is known of a graph's tensors: the initializers, and small values."""

    def __init__(self, graph: onnx.ModelProto, feeds: Mapping[str, Array]) -> None:
        self.stored = {tensor.name: tensor for tensor in graph.graph.initializer}
        arrays = {name: onnx.numpy_helper.to_array(each) for name, each in self.stored.items()}
        self.small = {name: v for name, v in {**feeds, **arrays}.items() if _is_small(v)}

    def row(self, node: onnx.NodeProto, event: Event) -> Row:
        figures = event["args"]
        assert isinstance(figures, dict)  # noqa: S101 - the profile's format
        return {
            "op": node.op_type,
            "domain": node.domain,
            "attributes": {a.name: _attribute(a) for a in node.attribute if a.type not in (4, 5)},
            "inputs": list(self.operands(node.input, figures["input_type_shape"])),
            "outputs": list(self.operands(node.output, figures["output_type_shape"])),
        }

    def operands(
        self, names: Sequence[str], types: list[dict[str, list[int]]]
    ) -> Iterator[list[object] | None]:
        """Type, dims, whether it is an initializer, values; the profile leaves packed ones out."""
        left = [next(iter(entry.items())) for entry in types]
        for name in names:
            if not name:
                yield None
                continue
            seen = left[0] if left else ("", [])
            if name in self.stored and seen != (own := _type_of(self.stored[name])):
                seen = own
            elif left:
                left.pop(0)
            kind = _TYPE_NAMES.get(seen[0], seen[0])
            yield [kind, seen[1], int(name in self.stored), self.of(name)]

    def of(self, name: str) -> list[float] | None:
        value = self.small.get(name)
        if value is None:
            return None
        return [round(item, 9) for item in value.ravel().tolist()]


def _is_small(value: Array) -> bool:
    return value.size <= _MAX_VALUES and value.dtype.kind in _INT_KINDS + "f"


def _type_of(tensor: onnx.TensorProto) -> tuple[str, list[int]]:
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    return name, list(tensor.dims)


def _attribute(attribute: onnx.AttributeProto) -> object:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, int | float):
        return value
    return [each for each in value if isinstance(each, int | float)]


def _write(path: Path, done: Sequence[Row]) -> None:
    rows: dict[str, Row] = {}
    for record in done:
        for row in record.get("rows", ()):  # type: ignore[attr-defined]
            rows.setdefault(json.dumps(row, sort_keys=True), {**row, "case": record["case"]})
    truth = {
        "origin": "tools/kernel_truth.py: one thread, memory pattern off, optimization off",
        "versions": {"onnx": onnx.__version__, "onnxruntime": ort.__version__},
        "rows": list(rows.values()),
    }
    text = json.dumps(truth, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    refused = sum("error" in record for record in done)
    print(f"{path}: {len(done)} cases, {refused} refused, {len(rows)} rows, {len(text):,} bytes")


if __name__ == "__main__":
    main()
