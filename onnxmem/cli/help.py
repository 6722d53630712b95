"""What ``--help`` prints: examples and the main flags of a command, within one screen.

``--help-all`` prints every flag, from the parser. This module is imported for ``--help`` alone.
"""

import textwrap
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

_COLUMNS: Final = 80
_FLAG: Final = 24
Rows = tuple[tuple[str, str], ...]
"""A flag or a command line, and what it does."""


@dataclass(frozen=True, slots=True)
class Help:
    """The short help of a command."""

    examples: Rows
    options: Rows
    tasks: Rows = ()
    """Commands by task."""


_SIZED: Final[Rows] = (
    ("--batch N", "samples at once"),
    ("--dim NAME=N", "a number for a dynamic dim, as in sequence=128"),
    ("--shape INPUT:1,3,64,64", "the whole shape of an input"),
)
_TRAINING: Final[Rows] = (
    ("--train", "a training step of PyTorch too"),
    ("--optimizer NAME", "adam (default), adamw, sgd, momentum, adafactor, ..."),
    ("--precision NAME", "fp32 (default), mixed-bf16, mixed-fp16, bf16, ..."),
    ("--checkpoint HOW", "compute activations again: blocks, sqrt, every=K, best"),
)
_RUNTIME: Final[Rows] = (("--runtime ort-cpu", "the process of onnxruntime; or ort-cuda"),)
_FILE: Final[Rows] = (("-o FILE", "write to a file; its ending says the format"),)
_JSON: Final[Rows] = (("-o FILE, --json", "write to a file; JSON in place of text"),)
_DEVICE: Final[Rows] = (
    ("--device NAME|SIZE", "as in 'RTX 4090', 24GiB, or auto: what is free here"),
)

_ANALYZE: Final = Help(
    tasks=(
        ("does it fit?", "fit (a device, the largest batch), sweep (a curve), devices"),
        ("why so much?", "explain (a figure, FLOPs, an OOM message), view (a page)"),
        ("lower it", "advise (changes and what they cost), reorder (the nodes)"),
        ("in a server?", "simulate (requests of changing shapes)"),
        ("prove it", "measure (run it, or --pid), diff --snapshot (PyTorch's own)"),
        ("guard it in CI", "check (budgets), diff (what changed)"),
        ("for other tools", "export, annotate, schema"),
    ),
    examples=(
        ("onnxmem m.onnx --batch 8", "what inference takes"),
        ("onnxmem m.onnx --train --batch 32 --budget 24GiB", "does a step fit?"),
        ("onnxmem fit m.onnx --device 'RTX 4090' --train", "the largest batch"),
        ("onnxmem explain process m.onnx", "why more than the file?"),
        ("onnxmem advise m.onnx --train --budget 8GiB", "what lowers it?"),
    ),
    options=(
        *_SIZED,
        *_TRAINING,
        *_RUNTIME,
        ("--budget SIZE", "does it fit, and the largest batch; exit code 1 if not"),
        ("--measure cpu", "run it in onnxruntime beside the prediction"),
        ("--context N", "tokens in the cache of a language model"),
        ("--html FILE", "a page: timeline, layers, figures at other batches"),
        ("-v, -q", "every figure, elements and FLOPs; one line"),
        *_JSON,
    ),
)
HELP: Final[Mapping[str, Help]] = MappingProxyType(
    {
        "analyze": _ANALYZE,
        "view": Help(
            examples=(
                ("onnxmem view m.onnx --train --batch 8", "opens it in a browser"),
                ("onnxmem view models/ -o zoo.html", "all models of a folder"),
            ),
            options=(
                *_SIZED,
                *_TRAINING,
                *_RUNTIME,
                ("--budget SIZE", "a line in the charts; the largest batch"),
                ("--no-open", "write the page, open no browser"),
                ("-o FILE", "where the page stays; else it is a temporary file"),
            ),
        ),
        "fit": Help(
            examples=(
                ("onnxmem fit m.onnx --device 'RTX 4090' --train", "the largest batch"),
                ("onnxmem fit m.onnx --device 24GiB --batch 64", "a size of memory"),
                ("onnxmem fit m.onnx --which-device --train", "every device"),
                ("onnxmem fit m.onnx --which-device --rank price", "at what --prices says"),
                ("onnxmem fit llm.onnx --device 24GiB --context 512,4096", "by context"),
                ("onnxmem fit m.onnx --device 8GiB --dim seq=?", "the longest sequence"),
            ),
            options=(
                *_DEVICE,
                ("--which-device", "rank all devices"),
                ("--rank price", "or bandwidth, memory-per-dollar, samples-per-dollar"),
                ("--cards N[,N...]", "so many of each; --shard ddp, zero2, zero3 (FSDP)"),
                ("--prices FILE", "what you pay: TOML tables [[price]], or CSV as here:"),
                ("", "  device,price_per_hour"),
                ("", "  RTX 4090,0.69"),
                *_SIZED,
                *_TRAINING,
                ("--context N[,N...]", "tokens in the cache: the largest batch at each"),
                *_RUNTIME,
                ("--reserve SIZE", "memory to keep free for other programs"),
                ("--instances N", "of the model at once"),
                *_JSON,
            ),
        ),
        "sweep": Help(
            examples=(
                ("onnxmem sweep m.onnx --batch 1..512 --train", "powers of two"),
                ("onnxmem sweep m.onnx --device 'RTX 4090' --train", "with verdicts"),
            ),
            options=(
                ("--batch A..B[:STEP]", "the batches, or a list: 1,8,32 (default: 1..256)"),
                *_DEVICE,
                *_SIZED[1:],
                *_TRAINING,
                *_RUNTIME,
                ("--csv", "write a table of the batches"),
                *_JSON,
            ),
        ),
        "simulate": Help(
            examples=(
                ("onnxmem simulate m.onnx --requests log.csv", "a request a line"),
                ("onnxmem simulate m.onnx --requests batch=1..8,seq=16..512", "random"),
            ),
            options=(
                ("--requests FILE|RANGES", "CSV, JSONL, or ranges to draw from"),
                ("--num-requests N", "drawn from ranges (default: 500)"),
                ("--concurrency N", "runs at once in each session"),
                ("--sessions N", "in the process, each with its arena"),
                ("--no-mem-pattern", "enable_mem_pattern=False"),
                ("--shrink-arena", "at the end of each run"),
                ("--advise", "what would lower it, replayed"),
                ("--emit k8s", "what a pod needs; also triton, json, python"),
                ("--beside FILE.json", "another model in the same process"),
                ("--workers N", "processes in the pod"),
                *_SIZED[1:2],
                *_RUNTIME,
                *_JSON,
            ),
        ),
        "explain": Help(
            examples=(
                ("onnxmem explain process m.onnx", "why more than the file?"),
                ("onnxmem explain why is memory higher", "a question"),
                ("onnxmem explain 'CUDA out of memory...' m.onnx", "a message"),
                ("onnxmem explain '1000x1000 float32'", "a tensor's size"),
                ("onnxmem explain unbound_dims", "a warning"),
                ("onnxmem explain", "all figures, codes, questions"),
            ),
            options=(
                ("WHAT", "a figure, code, tensor, message or log, question"),
                ("MODEL", "the .onnx file that it is about"),
                *_SIZED,
                *_TRAINING,
                *_RUNTIME,
                ("--measure cpu", "with process: measure it too"),
                *_JSON,
            ),
        ),
        "advise": Help(
            examples=(
                ("onnxmem advise m.onnx", "a session of onnxruntime"),
                ("onnxmem advise m.onnx --train --batch 32", "a training step"),
                ("onnxmem advise m.onnx --train --budget 8GiB", "what meets a budget"),
                ("onnxmem advise m.onnx --emit python", "the settings as code"),
            ),
            options=(
                ("--budget SIZE", "find what meets it, alone or together"),
                ("--emit FORM", "the settings: python, json or triton"),
                *_SIZED,
                *_TRAINING,
                *_RUNTIME,
                *_JSON,
            ),
        ),
        "check": Help(
            examples=(
                ("onnxmem check models/ --budget-peak 512MiB", "exits with 1 if not"),
                ("onnxmem check", "those of pyproject.toml"),
                ("onnxmem check m.onnx --budget-training 8GiB", "a training step"),
                ("onnxmem check --baseline old.json --max-growth 5%", "growth"),
                ("onnxmem check --format github", "or sarif, junit"),
            ),
            options=(
                ("--budget-peak SIZE", "for weights, inputs and activations"),
                ("--budget-training SIZE", "for a training step"),
                ("--config FILE", "budgets from this file"),
                ("--baseline FILE", "written before by onnxmem m.onnx --json -o FILE"),
                ("--max-growth 5%|SIZE", "what peaks may grow by against it"),
                *_SIZED,
                *_TRAINING,
                *_FILE,
            ),
        ),
        "diff": Help(
            examples=(
                ("onnxmem diff old.onnx new.onnx", "what changed"),
                ("onnxmem diff m.onnx --batch 8 --b-batch 16", "two settings"),
                ("onnxmem diff before.json m.onnx", "a report saved with --json"),
                ("onnxmem diff m.onnx --train --snapshot s.pickle", "a run on a GPU"),
                ("onnxmem diff m.onnx --onnxruntime 1.29 1.32", "what an upgrade costs"),
            ),
            options=(
                *_SIZED,
                *_TRAINING,
                *_RUNTIME,
                ("--b-batch N", "of the second; also --b-dim, --b-precision, ..."),
                ("--snapshot FILE", "of PyTorch's memory: where run and prediction part"),
                ("--onnxruntime A B", "two releases: what an upgrade costs"),
                ("--fail-on-growth PCT", "exit with 1 if a peak grew by more"),
                ("--html FILE", "a page with both timelines"),
                *_JSON,
            ),
        ),
        "measure": Help(
            examples=(
                ("onnxmem measure m.onnx --batch 8", "what it took"),
                ("onnxmem measure m.onnx --inputs in.npz --runs 10", "real inputs"),
                ("onnxmem measure m.onnx --requests log.csv", "a server's requests"),
                ("onnxmem measure --pid 4242 --seconds 60", "a process that runs already"),
                ("onnxmem measure m.onnx --train --pid 4242", "beside its prediction"),
            ),
            options=(
                *_SIZED,
                ("--device cpu", "or cuda"),
                ("--runs N", "how often (default: 3)"),
                ("--inputs FILE.npz", "real inputs: an array for each, by name"),
                ("--requests FILE|RANGES", "serve these, as simulate does"),
                ("--memory-limit SIZE", "of each process (default: what is free)"),
                ("--pid PID", "a process that runs already, and its children"),
                ("--seconds SECONDS", "watch it so long (default: read once)"),
                *_JSON,
            ),
        ),
        "devices": Help(
            examples=(
                ("onnxmem devices", "all that are known"),
                ("onnxmem devices 'RTX 4090' A100", "two of them"),
                ("onnxmem devices --model m.onnx --train", "the least time on each"),
            ),
            options=(
                ("--model MODEL", "bound its time by the roofline"),
                *_SIZED[:2],
                *_TRAINING,
                ("--devices FILE", "a TOML file of more devices"),
                *_JSON,
            ),
        ),
        "export": Help(
            examples=(
                ("onnxmem export m.onnx --format chrome -o trace.json", "Perfetto"),
                ("onnxmem export m.onnx --format csv -o nodes.csv", "a row a node"),
                ("onnxmem export m.onnx --format model-card", "markdown"),
            ),
            options=(
                ("--format NAME", "chrome, torch-snapshot, csv, graphml, dot,"),
                ("", "model-explorer, ort-node-stats, model-card, metrics"),
                *_SIZED,
                *_TRAINING,
                *_RUNTIME,
                *_FILE,
            ),
        ),
        "annotate": Help(
            examples=(("onnxmem annotate m.onnx -o seen.onnx --train", "open it in Netron"),),
            options=(*_SIZED, *_TRAINING, ("-o FILE", "the copy, an .onnx file")),
        ),
        "reorder": Help(
            examples=(
                ("onnxmem reorder m.onnx", "what there is to gain"),
                ("onnxmem reorder m.onnx -o less.onnx", "write it"),
            ),
            options=(*_SIZED, ("-o FILE", "the copy, an .onnx file")),
        ),
        "schema": Help(
            examples=(
                ("onnxmem schema", "of onnxmem MODEL --json"),
                ("onnxmem schema fit", "of onnxmem fit --json"),
            ),
            options=(("NAME", "report (the default), check, diff, fit, devices, ..."),),
        ),
    }
)


def short_help(parser: ArgumentParser, command: str) -> str:
    """One screen on a command; it ends with a newline."""
    found = HELP[command]
    lines = [f"usage: {parser.usage}", *_commands(found), ""]
    lines += textwrap.wrap(parser.description or "", _COLUMNS)
    lines += ["", "examples:", *_examples(found.examples)]
    if found.tasks:
        lines += ["", "commands by task:", *_rows(found.tasks, _FLAG - 6)]
    lines += ["", "main options:", *_rows(found.options, _FLAG)]
    lines += [f"  {'--help-all':<{_FLAG}}every option"]
    if found.tasks:
        codes = "0 ok, 1 budget failed, 2 usage, 3 not analyzed or up to the data"
        lines += ["", f"exit codes: {codes}"]
    return "\n".join(lines) + "\n"


def _commands(found: Help) -> Iterator[str]:
    if found.tasks:
        yield "       onnxmem COMMAND ...; onnxmem help COMMAND"


def _examples(rows: Rows) -> Iterator[str]:
    widest = max(len(command) for command, _ in rows)
    for command, what in rows:
        yield f"  {command:<{widest}}  {what}"


def _rows(rows: Rows, width: int) -> Iterator[str]:
    for flag, what in rows:
        yield f"  {flag:<{width}}{what}"
