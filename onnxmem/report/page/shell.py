"""The shell of every page: one file with its style and scripts inside, which loads nothing else.

Its policy (Content Security Policy, Level 3, section 6) is ``default-src 'none'`` and the SHA-256
of each style and script that stands in it: what a name of a model could smuggle in neither runs
nor loads. There are no attributes ``style`` or ``onclick``, which the hashes would not cover.
A script element that holds JSON is a data block, which is never run (HTML, section 4.12.1).
"""

from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from onnxmem.errors import shortened
from onnxmem.report.page.markup import script_json
from onnxmem.version import __version__

DATA_ID: Final = "onnxmem-data"
"""The element that holds what the page's script reads."""

_ASSETS: Final = files("onnxmem.report.page") / "assets"


def document(
    title: str, sections: Iterable[str], data: object | None = None, *, has_plot: bool = False
) -> str:
    """A whole page. ``title`` is text and may hold names; ``sections`` are HTML.

    ``data`` is what the page's script reads, as JSON; ``has_plot`` adds uPlot, which draws over the
    charts that Python drew.
    """
    styles = [_asset("style.css"), *([_asset("uplot/uPlot.min.css")] if has_plot else [])]
    scripts = [*([_plot()] if has_plot else []), _asset("page.js")]
    policy = (
        f"default-src 'none'; style-src {_hashes(styles)}; script-src {_hashes(scripts)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    safe_title = escape(shortened(title))
    held = "" if data is None else _data(data)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta name="generator" content="onnxmem {__version__}">\n'
        f"<title>{safe_title}</title>\n"
        f"{''.join(f'<style>{style}</style>' for style in styles)}\n</head>\n<body>\n"
        f"<header><h1>{safe_title}</h1>"
        '<button type="button" id="onnxmem-theme" hidden>Dark</button></header>\n'
        f"<main>\n{chr(10).join(sections)}\n</main>\n"
        f"<footer>onnxmem {__version__}</footer>\n"
        f"{held}{''.join(f'<script>{script}</script>' for script in scripts)}\n"
        "</body>\n</html>\n"
    )


def _data(data: object) -> str:
    return f'<script type="application/json" id="{DATA_ID}">{script_json(data)}</script>\n'


@cache
def _asset(name: str) -> str:
    """A file of the package; line ends as they are hashed, whatever a checkout made of them."""
    return (_ASSETS / name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _plot() -> str:
    """UPlot and the terms under which it is passed on."""
    terms = _asset("uplot/LICENSE").replace("*/", "* /")
    return f"/*! uPlot 1.6.32\n{terms}*/\n{_asset('uplot/uPlot.iife.min.js')}"


def _hashes(texts: Iterable[str]) -> str:
    digests = (b64encode(sha256(text.encode()).digest()).decode() for text in texts)
    return " ".join(f"'sha256-{digest}'" for digest in digests)
