"""Lines of code and vague names of each package, without blank lines, comments and docstrings.

    python -m tools.size            print both numbers of each package
    python -m tools.size --lower    lower the numbers of `tests/project/size_budget.py` to these, add packages

`tests/project/test_size.py` holds them against the budget. A name is vague if it says nothing about its value, such as
`found`; names that Python code assigns are counted, also loop variables.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.prose import STRING_OR_COMMENT
from tools.structure import without_collector

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "tests/project/size_budget.py"
_WORDS = "found each told asked said looked made given words left at judged met aside"
VAGUE = frozenset(_WORDS.split())
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Size(NamedTuple):
    lines: int
    names: int  # that are assigned
    vague: int


def sizes(root: Path = ROOT) -> dict[str, Size]:
    """The size of each package: `treadle/worker`, or `treadle` for the modules next to the packages."""
    total = dict[str, Size]()
    with without_collector():
        for package, path in _files(root):
            size = of_python(path.read_text()) if path.suffix == ".py" else Size(_plain_lines(path.read_text()), 0, 0)
            known = total.get(package, Size(0, 0, 0))
            total[package] = Size(*(a + b for a, b in zip(known, size, strict=True)))
    return total


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    for source in (root / "src", *sorted(root.glob("packages/*/src"))):
        for path in sorted(source.rglob("*")):
            if path.suffix in (".py", ".sql", ".lua") and "static" not in path.parts:
                yield "/".join(path.relative_to(source).parts[:-1][:2]), path


def of_python(text: str) -> Size:
    tree = ast.parse(text)
    lines = {number for number, line in enumerate(_without_comments(text).splitlines(), 1) if line.strip()}
    names = vague = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names += 1
            vague += node.id in VAGUE
        elif isinstance(node, _DOCUMENTED) and node.body:
            first = node.body[0]
            constant = first.value if isinstance(first, ast.Expr) else None
            if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                lines.difference_update(range(first.lineno, (first.end_lineno or 0) + 1))
    return Size(len(lines), names, vague)


def _without_comments(text: str) -> str:
    """The text without comments; an empty line within a string is a line of code."""
    return STRING_OR_COMMENT.sub(lambda part: "" if part[1] else part[0].replace("\n", "x\nx"), text)


def _plain_lines(text: str) -> int:
    """The lines of an SQL or Lua text."""
    return sum(bool(line.strip()) and not line.strip().startswith("--") for line in text.splitlines())


def lowered(text: str, measured: dict[str, Size]) -> str:
    """The text of the budget, with the numbers of today where they are lower, and a line for each new package."""
    lines = dict(re.findall(r'^    "([\w/]+)": (.*)\n', text, re.MULTILINE))
    table = ""
    for package, size in sorted(measured.items()):
        known = re.match(r"\(([\d_]+), (\d+)\)", lines.get(package, ""))
        most = (int(known[1]), int(known[2])) if known else (size.lines, size.vague)
        reason = lines[package][known.end() :] if known else ","
        table += f'    "{package}": ({min(most[0], size.lines):_}, {min(most[1], size.vague)}){reason}\n'
    return re.sub(r'(?m)(^    "[\w/]+": .*\n)+', lambda _: table, text, count=1)


def main(arguments: list[str]) -> None:
    measured = sizes()
    if arguments == ["--lower"]:
        BUDGET.write_text(lowered(BUDGET.read_text(), measured))
        return
    for package, size in sorted(measured.items(), key=lambda entry: -entry[1].lines):
        print(f"{size.lines:7,} lines  {size.vague:5,} of {size.names:6,} names are vague  {package}")
    total = Size(*map(sum, zip(*measured.values(), strict=True)))
    share = f"({total.vague / total.names:.1%})"
    print(f"{total.lines:7,} lines  {total.vague:5,} of {total.names:6,} names are vague  {share}")


if __name__ == "__main__":
    main(sys.argv[1:])
