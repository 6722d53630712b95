"""The pages of commands and the guides: what stands under a command line is what it prints.

``ONNXMEM_UPDATE_GOLDEN=1 pytest`` writes what it prints now; read the difference before keeping it.
"""

import contextlib
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from paths import MODELS, ROOT
from without_children import work_without_children

from onnxmem.cli import COMMANDS, main
from onnxmem.runtimes.onnxruntime.cpu import cpu_named

PAGES = ROOT / "docs" / "commands"
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
AVX512 = "<!-- on a CPU with AVX-512 -->\n"
"""Before a block whose figures are of such a CPU: on others it is not compared."""
BLOCK = re.compile(
    rf"(?P<cpu>{AVX512})?" + r"```console\n\$ onnxmem ?(?P<words>[^\n]*)\n(?P<printed>.*?)```\n",
    re.DOTALL,
)
LONG = frozenset({"fit", "lower-it", "simulate", "size-a-server", "why-so-much", "will-it-fit"})
"""Pages whose commands take several seconds."""
MEASURES = re.compile(r"measure\b|.* --(?:measure|onnxruntime) ")
"""Commands that run a model, or whose process is one on this machine's CPU."""
VARYING = re.compile(r"^ *(load peak|process|time)")
"""Lines of theirs that differ from run to run or by machine: their figures are not compared."""
VERSION = re.compile(r"(onnxruntime\S*) \d+\.\d+\.\d+")
CPU = re.compile(r"( makes it) on (avx512|avx2|arm64)")


def comparable(text: str, words: str) -> str:
    lines = CPU.sub(r"\1", VERSION.sub(r"\1", text)).splitlines()
    if not MEASURES.match(f"{words} "):
        return "\n".join(lines)
    return "\n".join(re.sub(r" *[\d.,+-]+ ?\w*", "", x) if VARYING.match(x) else x for x in lines)


def test_every_command_has_a_page_with_examples() -> None:
    pages = {page.stem: page.read_text(encoding="utf-8") for page in PAGES.glob("*.md")}
    assert set(pages) == set(COMMANDS)
    assert all(len(BLOCK.findall(page)) > 1 for page in pages.values())


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="argparse writes help otherwise from 3.13")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=pytest.mark.slow if page.stem in LONG else ())
        for page in (*(PAGES / f"{command}.md" for command in COMMANDS), *GUIDES)
    ],
)
def test_a_page_shows_what_its_commands_print(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = page.read_text(encoding="utf-8")
    if "onnxmem measure" in before:
        pytest.importorskip("onnxruntime")
        monkeypatch.chdir(tmp_path)
    else:
        work_without_children(monkeypatch, tmp_path)
    (tmp_path / "models").symlink_to(MODELS)
    monkeypatch.setenv("COLUMNS", "100")

    def run(found: re.Match[str]) -> str:
        mark = found["cpu"] or ""
        if mark and cpu_named("native").name != "avx512":
            return found[0]
        with contextlib.suppress(SystemExit):  # --help
            main(shlex.split(found["words"]))
        captured = capsys.readouterr()
        text = captured.err + captured.out
        if comparable(text, found["words"]) == comparable(found["printed"], found["words"]):
            return found[0]
        return f"{mark}```console\n$ onnxmem {found['words']}\n{text}```\n"

    after = BLOCK.sub(run, before)
    assert before.count("```console") == len(BLOCK.findall(before))
    if os.environ.get("ONNXMEM_UPDATE_GOLDEN"):
        page.write_text(after, encoding="utf-8", newline="\n")
    assert after == page.read_text(encoding="utf-8")
    assert page not in GUIDES or "\nerror:" not in after
