"""The network that a recipe trains: the graph as the framework runs it, and what is trained."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from onnxmem.findings import Finding, listed
from onnxmem.model import Graph
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.recipe import Recipe
from onnxmem.training.adapters import with_adapters
from onnxmem.training.assumptions import folded_layers, with_batchnorm, with_dropout
from onnxmem.training.composites import as_run
from onnxmem.training.in_place import inputs_kept_in_vain
from onnxmem.units import plural


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, its parameters, and what a reader should know of either."""

    graph: Graph
    parameters: Parameters
    findings: tuple[Finding, ...]


def network_of(graph: Graph, recipe: Recipe) -> Network:
    """Read a graph as the framework trains it by a recipe."""
    findings: list[Finding] = []
    folded = folded_layers(graph)
    if folded and not recipe.assume_batchnorm:
        findings.append(_folded_finding([node.name for node in folded]))
    if recipe.assume_batchnorm:
        graph = with_batchnorm(graph)
    if recipe.assume_dropout:
        graph = with_dropout(graph)
    graph = as_run(graph, fused_attention=recipe.attention == "fused")
    if not recipe.in_place_activations and (kept := inputs_kept_in_vain(graph)):
        findings.append(_in_place_finding(kept))
    found = parameters(graph)
    if recipe.freeze:
        found, missed = _frozen(found, recipe.freeze)
        findings += (Finding("freeze_matches_nothing", _no_match(each)) for each in missed)
    if recipe.lora_rank is not None:
        graph, found = with_adapters(graph, found, recipe.lora_rank)
    return Network(graph, found, tuple(findings))


def _folded_finding(names: list[str]) -> Finding:
    text = (
        f"{plural(len(names), 'layer')} with the trace of a BatchNormalization that the "
        f"export folded away: {listed(names)}; training it keeps 15 to 50 % more: export with "
        "optimize=False, or say --assume-batchnorm"
    )
    return Finding("folded_batchnorm", text, names[0])


def _in_place_finding(names: tuple[str, ...]) -> Finding:
    text = (
        f"{plural(len(names), 'activation')} taken to keep an input that one in place would write "
        f"over: {listed(names)}; if the network has inplace=True, say --in-place-activations"
    )
    return Finding("activations_out_of_place", text, names[0])


def _no_match(pattern: str) -> str:
    return f"--freeze {pattern!r}: no trained parameter has a name of that pattern"


def _frozen(found: Parameters, patterns: tuple[str, ...]) -> tuple[Parameters, list[str]]:
    """Parameters without those of some patterns, and the patterns that fit none."""
    frozen = {name for name in found.trained if any(fnmatchcase(name, each) for each in patterns)}
    missed = [each for each in patterns if not any(fnmatchcase(n, each) for n in found.trained)]
    trained = tuple(name for name in found.trained if name not in frozen)
    held = (*found.buffers, *(name for name in found.trained if name in frozen))
    return replace(found, trained=trained, buffers=held), missed
