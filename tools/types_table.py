"""Write the list of public data types into ``docs/architecture.md``: a line each, by package.

``python tools/types_table.py`` rewrites what stands between the two markers of that page;
``--check`` writes nothing and exits with 1 where the page is out of date. A type is listed if it
is a dataclass or a named tuple whose name has no underscore in front.
"""

import ast
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "architecture.md"
START: Final = "<!-- types -->\n"
END: Final = "<!-- end of types -->\n"
_DECORATORS: Final = ("dataclass", "record", "single")


def types() -> Iterator[tuple[str, str, str]]:
    """(package, name of the type with its module, first sentence of its docstring)."""
    for path in sorted((ROOT / "onnxmem").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and is_data(node):
                said = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ")
                yield package_of(module), f"{module}.{node.name}", said.replace("|", "\\|")


def is_data(node: ast.ClassDef) -> bool:
    """Whether a class is a dataclass or a named tuple."""
    names = [ast.unparse(each).split("(")[0] for each in node.decorator_list]
    bases = [ast.unparse(base) for base in node.bases]
    return any(name in _DECORATORS for name in names) or "NamedTuple" in bases


def package_of(module: str) -> str:
    """The stage that a module belongs to; of runtimes and allocators the one that is meant."""
    parts = module.split(".")
    depth = 3 if len(parts) > 3 and parts[1] in {"runtimes", "decisions"} else 2  # noqa: PLR2004
    return ".".join(parts[:depth])


def table() -> str:
    """All types as Markdown."""
    lines = []
    for package, found in groupby(sorted(types()), key=lambda each: each[0]):
        lines += [f"\n### `{package}`\n", "| type | what it is |", "|---|---|"]
        for _, name, said in found:
            lines.append(f"| `{name.removeprefix(package + '.')}` | {said} |")
    return "\n".join(lines).lstrip("\n") + "\n"


def main(arguments: list[str]) -> int:
    """Rewrite the page, or check it."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    new = f"{before}{START}{table()}{END}{after}"
    if "--check" in arguments:
        return int(new != text)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
