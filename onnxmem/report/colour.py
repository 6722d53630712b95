"""Colour on a finished text report: the words stay those of a pipe, to the byte."""

from typing import Final

_STYLES: Final = (
    (r"(?m)^[A-Z]{3,}(?: [A-Z]{2,})*", "bold"),
    (r"\d[\d.,]* (?:[KMGTPE]i)?B\b", "cyan"),
    (r"\bfits: |\bproven least", "green"),
    (r"\bnot proven least", "yellow"),
    ("[▁▂▃]+", "green"),
    ("[▄▅▆]+", "yellow"),
    ("[▇█]+", "red"),
    (r"\bdoes not fit: |(?m:^PARTIAL.*)", "bold red"),
)
"""What to look for, and its style; a later one wins."""


def coloured(text: str) -> str:
    """Put ANSI styles around headings, sizes and verdicts."""
    # rich takes as long to import as a small model to analyse, and a pipe needs none of it.
    from rich.console import Console
    from rich.text import Text

    styled = Text(text, no_wrap=True, end="")
    for pattern, style in _STYLES:
        styled.highlight_regex(pattern, style)
    console = Console(force_terminal=True, color_system="standard", highlight=False, no_color=False)
    with console.capture() as capture:
        console.print(styled, soft_wrap=True, end="")
    return capture.get()
