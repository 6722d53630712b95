"""What holds of the package as a whole: who imports whom, and what it leaves to its caller."""

import ast
import gc
import traceback
from pathlib import Path

import grimp
import networkx as nx
import onnx
import pytest
from graphs import model_of

import onnxmem
from onnxmem.cli import main
from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.settings import TrainingConfig

PACKAGE = Path(onnxmem.__file__).parent
OWN_PROCESSES = ("children", "cli", "measuring")
"""Packages whose code runs in a process of onnxmem's own, or starts one."""

JOINED_BY = {
    "onnxmem.export.exporters": "a module per family of formats",
    "onnxmem.model.intervals.dims": "a module per kind of rule",
    "onnxmem.model.intervals.walk": "a module per kind of node",
    "onnxmem.ops.registry": "a module per family of operators",
    "onnxmem.runtimes.onnxruntime.kernels.registry": "a module per family of kernels",
    "onnxmem.runtimes.onnxruntime.optimizer.pipeline": "a module per family of passes",
    "onnxmem.decisions.advise.advising": "a module per family of suggestions",
    "onnxmem.report.explanation": "a module per kind of answer",
}
"""Tables that join modules of one kind, each of which nothing else beside them imports."""
CHAPTERS = {
    "onnxmem.api": "joins layers above the report",
    "onnxmem.analysis.limiting": "what --max settles, which few requests need",
    "onnxmem.cli.export": "a command",
    "onnxmem.cli.help": "what --help prints, which no other command imports",
    "onnxmem.cli.results": "what works on models, which --help must not import",
    "onnxmem.collection.workers": "processes, which one model does not need",
    "onnxmem.measuring.served_run": "a child, which imports no more than a server",
    "onnxmem.measuring.tracing": "the profile of a run, which children read",
    "onnxmem.model.canonical": "other forms of a file, each with its source",
    "onnxmem.model.shapes.bodies": "signatures of subgraphs, which the memo of nodes has none of",
    "onnxmem.model.http_ranges": "HTTP, with what a server may do wrong",
    "onnxmem.model.shapes.onnx_rules": "rules of all domains but onnxruntime's",
    "onnxmem.decisions.explain.quantities": "sizes, shapes and devices in texts of any program",
    "onnxmem.report.page.layers": "one part of a page: the table of nodes",
    "onnxmem.report.page.live": "one part of a page: what is alive at the peaks, and its packing",
    "onnxmem.report.page.timeline": "one part of a page, with its data for the script",
    "onnxmem.runtimes.onnxruntime.optimizer.operator_shapes": "rules by operator",
    "onnxmem.runtimes.onnxruntime.session_graph.control_flow": "what is known at load of branches",
    "onnxmem.runtimes.torch.doubts": "what no file shows of a step, each with its warning",
    "onnxmem.runtimes.torch.fully_sharded": "what ranks gather and reduce, with its source",
    "onnxmem.runtimes.torch.losses": "what each loss keeps",
    "onnxmem.runtimes.torch.optimizers": "a record per optimizer",
    "onnxmem.runtimes.torch.merged": "activations that several modules compute and a file once",
    "onnxmem.runtimes.torch.unfolded": "what exporters merged or computed, each with its source",
    "onnxmem.torch.cuda_like": "what a GPU runs otherwise, with its source",
    "onnxmem.torch.engine": "what autograd does where no mode watches it, with its source",
    "onnxmem.torch.live_bytes": "the counter, which the tools of training steps use too",
}
"""Chapters with one reader beside them, each with the reason why it is not a part of that one."""


def test_a_module_with_one_importer_in_its_package_has_a_reason() -> None:
    found = grimp.build_graph("onnxmem", exclude_type_checking_imports=False, cache_dir=None)
    packages = {name.rpartition(".")[0] for name in found.modules}
    lone = set()
    for name in found.modules - packages - {"onnxmem.__main__"}:
        importers = found.find_modules_that_directly_import(name)
        beside = {each for each in importers if each.rpartition(".")[0] == name.rpartition(".")[0]}
        if (
            len(importers) == 1
            and (beside or name == "onnxmem.api")
            and not importers & {*JOINED_BY}
        ):
            lone.add(name)
    assert lone == set(CHAPTERS)


def test_the_root_has_shared_modules_and_public_names_only() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")}
    assert modules == {
        *("__init__", "__main__", "api", "errors", "files", "settings", "units", "version"),
    }


def test_no_module_imports_itself_indirectly() -> None:
    """Imports for type checking count: a reader follows them too."""
    found = grimp.build_graph("onnxmem", exclude_type_checking_imports=False, cache_dir=None)
    imports = nx.DiGraph(
        (importer, imported)
        for importer in found.modules
        for imported in found.find_modules_directly_imported_by(importer)
    )
    cycles = [sorted(each) for each in nx.strongly_connected_components(imports) if len(each) > 1]
    assert cycles == []


def test_the_library_leaves_the_garbage_collector_to_its_caller() -> None:
    importers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and any(each.name == "gc" for each in node.names)
        if path.relative_to(PACKAGE).parts[0] not in OWN_PROCESSES
    }
    assert importers == set()


def test_an_analysis_leaves_the_garbage_collector_as_it_was() -> None:
    before, frozen = (gc.isenabled(), gc.get_threshold()), gc.get_freeze_count()
    onnxmem.analyze(model_of("agraph (float[n,3] x) => (y) { y = Relu(x) }"), train=False).to_dict()
    assert (gc.isenabled(), gc.get_threshold()) == before
    # Objects frozen by an earlier test leave the count when they are freed; an analysis adds none.
    assert gc.get_freeze_count() <= frozen


def test_few_frames_are_between_a_command_and_its_training_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "agraph (float[n,3] x) => (float[n,7] y) <float[3,7] w> { y = MatMul(x, w) }"
    onnx.save(model_of(text), tmp_path / "net.onnx")
    depths: list[int] = []

    def walked(graph: Graph, recipe: TrainingConfig) -> TrainingMemory:
        names = [frame.name for frame in traceback.extract_stack()[:-1]]
        depths.append(len(names) - names.index("main") - 1)
        return training_memory(graph, recipe)

    monkeypatch.setattr("onnxmem.runtimes.torch.step.training_memory", walked)
    assert main([str(tmp_path / "net.onnx"), "--train"]) == 0
    assert capsys.readouterr().out
    assert depths[0] <= 8
