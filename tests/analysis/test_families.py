"""No kind of graph costs far more than another, and none more than its nodes.

Calls are counted, which neither another process nor a slower machine changes; processor time is
compared with that of a reference in the same run, with room for noise. What is measured on whole
processes, ``tools/benchmarks/families.py`` prints.
"""

import importlib.util
import sys
import time
from collections.abc import Iterator
from types import ModuleType

import pytest
from calls import num_calls
from paths import ROOT

from onnxmem import analyze

FEW, MANY = 200, 600
REFERENCE = "chain"
FOLDER = ROOT / "tools" / "benchmarks"
NAMES = (
    *("chain", "gated blocks", "attention", "dense blocks", "unrolled GRU", "branches"),
    *("64 experts", "quantized", "all different", "computed shapes", "an If in each block"),
    *("a Loop in each block", "functions", "nested subgraphs", "unrolled LSTM", "decoder"),
    *("many shapes", "pieces", "constant nodes", "U-shape", "convolutions", "scan written out"),
    *("fan-out", "random skips"),
)


@pytest.fixture(scope="module")
def families() -> Iterator[ModuleType]:
    """The module that makes the graphs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(FOLDER)
        spec = importlib.util.spec_from_file_location("families", FOLDER / "families.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        patch.setitem(sys.modules, "families", module)
        spec.loader.exec_module(module)
        yield module


def source(families: ModuleType, name: str, num_nodes: int) -> bytes:
    serialized: bytes = families.model(families.FAMILIES[name], num_nodes).SerializeToString()
    return serialized


def report(model: bytes) -> None:
    analyze(model).to_dict()


def calls(model: bytes) -> int:
    """How many functions a report calls."""
    return num_calls(lambda: report(model))


def seconds(model: bytes) -> float:
    began = time.process_time()
    report(model)
    return time.process_time() - began


@pytest.fixture(scope="module")
def reference(families: ModuleType) -> tuple[float, float]:
    """Calls for each further node, and seconds of the large graph."""
    few, many = (source(families, REFERENCE, num_nodes) for num_nodes in (FEW, MANY))
    report(few)
    return (calls(many) - calls(few)) / (MANY - FEW), min(seconds(many) for _ in range(3))


def test_every_family_is_compared(families: ModuleType) -> None:
    assert tuple(families.FAMILIES) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_family_costs_its_nodes(
    name: str, families: ModuleType, reference: tuple[float, float]
) -> None:
    few, many = (source(families, name, num_nodes) for num_nodes in (FEW, MANY))
    # The first report of a process imports modules, and the reference makes one.
    num_few, num_many = calls(few), calls(many)
    assert num_many <= 3.6 * num_few
    calls_each, seconds_of_many = reference
    assert (num_many - num_few) / (MANY - FEW) <= 5 * calls_each
    # Copies of whole mappings are few calls that take long. Of three runs each, for other work on
    # the machine makes one slower.
    assert min(seconds(many) for _ in range(3)) <= 12 * seconds_of_many
