"""The network that a recipe trains: the graph as the framework runs it, and what is trained."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph, Node
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.runtimes.torch.adapters import with_adapters
from onnxmem.runtimes.torch.assumptions import dropped_nodes, with_batchnorm, with_dropout
from onnxmem.runtimes.torch.composites import as_run
from onnxmem.runtimes.torch.composites.attention import attentions_as_products
from onnxmem.runtimes.torch.folded import BatchNorms, folded_layers
from onnxmem.runtimes.torch.in_place import in_place_activations, inputs_kept_in_vain
from onnxmem.settings import Recipe
from onnxmem.units import format_bytes, plural, sum_if_known


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, its parameters, and what a reader should know of either."""

    graph: Graph
    parameters: Parameters
    findings: tuple[Finding, ...]
    batchnorms: BatchNorms


def network_of(graph: Graph, recipe: Recipe) -> Network:
    """Read a graph as the framework trains it by a recipe."""
    graph, batchnorms, findings = _with_batchnorms(graph, recipe)
    if recipe.assume_dropout:
        dropped = dropped_nodes(graph)
        findings.append(_dropout_finding(tuple(node.name for node in dropped)))
        graph = with_dropout(graph, dropped)
    graph = as_run(graph, fused_attention=recipe.attention == "fused")
    if recipe.attention == "fused" and (softmaxes := attentions_as_products(graph)):
        findings.append(_attention_finding(graph, softmaxes))
    if recipe.in_place_activations is None:
        findings += _in_place_findings(graph)
    found = parameters(graph)
    if recipe.freeze:
        found, missed = _frozen(found, recipe.freeze)
        findings += (Finding("freeze_matches_nothing", _no_match(each)) for each in missed)
    if recipe.lora_rank is not None:
        graph, found = with_adapters(graph, found, recipe.lora_rank)
    return Network(graph, found, tuple(findings), batchnorms)


def _with_batchnorms(graph: Graph, recipe: Recipe) -> tuple[Graph, BatchNorms, list[Finding]]:
    """Put back what the file shows; where it doesn't tell, what the recipe assumes."""
    assumed = recipe.assume_batchnorm
    layers = folded_layers(graph)
    certain, possible = _names(layers.certain), _names(layers.possible)
    if assumed is None:
        put_back, found = layers.certain, BatchNorms(certain, unknown=possible)
    elif assumed:
        put_back = (*layers.certain, *layers.possible)
        found = BatchNorms(_names(put_back))
    else:
        put_back, found = (), BatchNorms(left_out=certain)
    findings = []
    if assumed is not False and certain:
        findings.append(_put_back_finding(certain))
    if assumed and possible:
        findings.append(_assumed_finding(possible))
    if assumed and not put_back:
        findings.append(_NO_BATCHNORM)
    return with_batchnorm(graph, put_back), found, findings


def _names(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


_NO_BATCHNORM = Finding(
    "no_batchnorm",
    "--assume-batchnorm has no effect: no layer has the trace of a folded BatchNormalization, and "
    "none could have had one",
)


def _put_back_finding(names: tuple[str, ...]) -> Finding:
    text = (
        f"{len(names):,} BatchNormalization put back that the export folded into the layer before: "
        f"{listed(names)}; --no-assume-batchnorm leaves them out"
    )
    return Finding("batchnorm_put_back", text, names[0])


def _assumed_finding(names: tuple[str, ...]) -> Finding:
    text = (
        f"{len(names):,} BatchNormalization assumed, as asked, behind convolutions with a bias of "
        f"which the file doesn't tell whether they had one: {listed(names)}"
    )
    return Finding("batchnorm_assumed", text, names[0])


def _dropout_finding(names: tuple[str, ...]) -> Finding:
    if not names:
        text = (
            "--assume-dropout has no effect: the network has Dropout already, or no place where it "
            "is usual"
        )
        return Finding("no_dropout", text)
    text = (
        f"{len(names):,} Dropout assumed, as asked, behind {listed(names)}: an inference export "
        "doesn't tell where Dropout was"
    )
    return Finding("dropout_assumed", text, names[0])


def _in_place_findings(graph: Graph) -> Iterator[Finding]:
    """What is assumed of activations that keep less in place, either way."""
    if assumed := in_place_activations(graph, None):
        sizes = [graph.tensors[name].size_bytes for name in assumed.values()]
        text = (
            f"{plural(len(assumed), 'activation')} behind BatchNormalization taken to write over "
            f"their input, as networks of such blocks do: {listed(tuple(assumed))}; if the network "
            f"has inplace=False, they keep {format_bytes(sum_if_known(sizes))} more: "
            "--no-in-place-activations"
        )
        yield Finding("activations_in_place", text, next(iter(assumed)))
    if kept := inputs_kept_in_vain(graph):
        text = (
            f"{plural(len(kept), 'activation')} taken to keep an input that one in place would "
            f"write over: {listed(kept)}; if the network has inplace=True, say "
            "--in-place-activations"
        )
        yield Finding("activations_out_of_place", text, kept[0])


def _attention_finding(graph: Graph, softmaxes: tuple[Node, ...]) -> Finding:
    sizes = [graph.tensors[node.outputs[0]].size_bytes for node in softmaxes]
    text = (
        f"{plural(len(softmaxes), 'attention')} counted as the products and the softmax of the "
        f"file: {listed([node.name for node in softmaxes])}; where the network calls "
        "scaled_dot_product_attention, one kernel runs them and keeps "
        f"{format_bytes(sum_if_known(sizes))} of weights less"
    )
    return Finding("attention_as_products", text, softmaxes[0].name)


def _no_match(pattern: str) -> str:
    return f"--freeze {pattern!r}: no trained parameter has a name of that pattern"


def _frozen(found: Parameters, patterns: tuple[str, ...]) -> tuple[Parameters, list[str]]:
    """Parameters without those of some patterns, and the patterns that fit none."""
    frozen = {name for name in found.trained if any(fnmatchcase(name, each) for each in patterns)}
    missed = [each for each in patterns if not any(fnmatchcase(n, each) for n in found.trained)]
    trained = tuple(name for name in found.trained if name not in frozen)
    held = (*found.buffers, *(name for name in found.trained if name in frozen))
    return replace(found, trained=trained, buffers=held), missed
