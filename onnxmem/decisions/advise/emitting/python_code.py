"""Settings of a session as Python that opens one."""

from onnxmem.decisions.advise.emitting.settled import Settled, remarks
from onnxmem.errors import UsageError, printable, shortened
from onnxmem.version import __version__

_PROVIDERS = {
    "ort-cpu": 'providers = ["CPUExecutionProvider"]',
    "ort-cuda": 'providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]',
}


def python_code(settled: Settled) -> str:
    """A program that ends with ``session`` and ``run_options``.

    :raises UsageError: a training step has no session.
    """
    if settled.session is None or settled.runtime is None:
        message = "--emit python: onnxruntime's sessions do not train; --emit json holds the recipe"
        raise UsageError(message)
    lines = list(settled.session.lines)
    for name, line in (
        ("run_options", "run_options = onnxruntime.RunOptions()"),
        ("providers", _PROVIDERS[settled.runtime]),
    ):
        if not any(each.startswith(f"{name} = ") for each in lines):
            lines.append(line)
    said = [f"# {printable(remark)}" for remark in remarks(settled)]
    return "\n".join(
        [
            f"# Settings for {shortened(settled.path)}, worked out by onnxmem {__version__}",
            *said,
            "import onnxruntime",
            "",
            f"MODEL = {settled.path!a}",
            "",
            "options = onnxruntime.SessionOptions()",
            *lines,
            "session = onnxruntime.InferenceSession(MODEL, options, providers=providers)",
            "# session.run(None, inputs, run_options)",
            "",
        ]
    )
