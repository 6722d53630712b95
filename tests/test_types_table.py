"""The list of types in docs/architecture.md is that of the code, and its example runs."""

import re
import subprocess
import sys

from paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def test_the_list_of_types_is_current() -> None:
    done = subprocess.run(
        [sys.executable, "tools/types_table.py", "--check"], cwd=ROOT, check=False
    )
    assert done.returncode == 0, "run: python tools/types_table.py"


def test_each_type_has_a_description() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 100
    assert [name for name, output in rows if not output.strip()] == []


def test_the_example_runs() -> None:
    code, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
