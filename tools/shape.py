"""The shape of Python packages: lengths of modules and functions, what is typed and documented.

    python tools/shape.py onnxmem
    python tools/shape.py onnxmem ../structlog/src --longest 10

One line for each folder. Files that are tests, by their path, are left out, and so are files below
five lines. A function's length is that of its code: from ``def`` on, without its docstring.
"""

import argparse
import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_MIN_LINES = 5
_PERCENTILE = 0.9

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Module:
    """A file, and the definitions in it."""

    path: Path
    lines: tuple[str, ...]
    nodes: tuple[ast.AST, ...]

    @property
    def functions(self) -> Iterator[_Function]:
        """All functions: methods and inner ones too."""
        return (node for node in self.nodes if isinstance(node, _Function))

    @property
    def dataclasses(self) -> Iterator[str]:
        """The decorator of each dataclass."""
        classes = (node for node in self.nodes if isinstance(node, ast.ClassDef))
        decorators = (ast.unparse(each) for node in classes for each in node.decorator_list)
        return (each for each in decorators if "dataclass" in each)


def modules(folder: Path) -> list[Module]:
    """The modules below a folder, without tests."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        lines = tuple(path.read_text(encoding="utf-8").splitlines())
        is_test = "test" in path.name or "tests" in path.relative_to(folder).parts
        if not is_test and sum(map(bool, lines)) >= _MIN_LINES:
            found.append(Module(path, lines, tuple(ast.walk(ast.parse("\n".join(lines))))))
    return found


def length(function: _Function) -> int:
    """Lines of code of a function."""
    docstring = ast.get_docstring(function, clean=False)
    num_lines = (function.end_lineno or 0) - function.lineno + 1
    return num_lines - (docstring.count("\n") + 1 if docstring else 0)


def is_typed(function: _Function) -> bool:
    """Whether the result and every parameter have a type."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    typed = (each.annotation for each in given if each.arg not in {"self", "cls"})
    return function.returns is not None and all(typed)


def shape(folder: Path) -> str:
    """Describe a folder in one line."""
    found = modules(folder)
    sizes = [len(module.lines) for module in found]
    functions = [function for module in found for function in module.functions]
    lengths = sorted(map(length, functions))
    public = [function for function in functions if not function.name.startswith("_")]
    documented = sum(ast.get_docstring(function) is not None for function in public)
    decorators = [each for module in found for each in module.dataclasses]
    frozen = sum("frozen=True" in each for each in decorators)
    written = [line.strip() for module in found for line in module.lines if line.strip()]
    comments = sum(line.startswith("#") for line in written)
    return (
        f"{folder}: {len(found)} modules, median {median(sizes):.0f}, longest {max(sizes)};"
        f" {len(functions)} functions, median {median(lengths):.0f},"
        f" p90 {lengths[int(_PERCENTILE * len(lengths))]}, longest {lengths[-1]};"
        f" typed {sum(map(is_typed, functions)) / len(functions):.0%},"
        f" public documented {documented / max(len(public), 1):.0%};"
        f" {len(decorators)} dataclasses, {frozen} frozen;"
        f" comment lines {comments / len(written):.1%}"
    )


def longest(folder: Path, count: int) -> Iterator[str]:
    """The longest functions of a folder, the longest first."""
    found = (
        (length(function), f"{module.path}:{function.lineno} {function.name}")
        for module in modules(folder)
        for function in module.functions
    )
    return (f"  {lines} {where}" for lines, where in sorted(found, reverse=True)[:count])


def main() -> None:
    """Print a line for each folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--longest", type=int, default=0, metavar="N", help="list N functions, too")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        lines = [shape(folder), *longest(folder, arguments.longest)]
        sys.stdout.write("\n".join([*lines, ""]))


if __name__ == "__main__":
    main()
