"""Writes docs/reference/durable-programs.md: the programs of `tests/faults/programs`. `dev.py docs` runs it."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests/faults/programs"
PAGE = ROOT / "docs/reference/durable-programs.md"
IMPORT = re.compile(r"^from tests\.faults\.outside import (.*)$", re.M)
HEAD = """\
# Durable programs

The usual samples of durable execution, written for Treadle. A test kills each program with `kill -9`
behind every effect, on SQLite, PostgreSQL and Redis, and compares what happened with a run without a kill. Most run as
tasks in threads too, with `current().sync` and without `await`.

`effect("...")` stands for a call of another system: it writes a line to a file. [Durable code](../guides/durable.md)
explains the calls.
"""


def section(text: str) -> str:
    """A program as a part of the page: its docstring is "title: sentence", and the test's part is left out."""
    user = text.partition("\n# ---")[0]
    title, _, sentence = (ast.get_docstring(ast.parse(text)) or "").partition(": ")
    code = user.split('"""', 2)[2].strip()
    if imported := IMPORT.search(code):
        used = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
        names = [name for name in imported[1].split(", ") if name in used]
        code = code.replace(imported[0], f"from outside import {', '.join(names)}")
    return f"## {title}\n\n{sentence[0].upper()}{sentence[1:]}\n\n```python\n{code}\n```\n"


def page() -> str:
    """The text of the page."""
    sections = sorted(section(path.read_text()) for path in PROGRAMS.glob("*.py"))
    return "\n".join((HEAD, *sections))


def main() -> int:
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
