"""Figures that others published: the tables are what their scripts print."""

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_contexts_of_messages_are_in_the_page() -> None:
    script = runpy.run_path(str(ROOT / "tools" / "training" / "published" / "contexts.py"))
    page = (ROOT / "docs" / "cuda-context.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- contexts -->\n")
    assert script["table"]() == rest.partition("\n<!-- /contexts -->")[0]


def test_a_message_of_the_process_leaves_out_what_was_reserved() -> None:
    """23.60 GiB in use, 22.90 allocated and 0.19 cached: the rest is the context's."""
    script = runpy.run_path(str(ROOT / "tools" / "training" / "published" / "contexts.py"))
    assert any(abs(context - 0.51) < 0.005 for context in script["contexts_gib"](of_process=True))
