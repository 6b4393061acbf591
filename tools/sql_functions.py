"""Figures of the SQL functions: lines, parameters, and the names that each declares.

    python -m tools.sql_functions       the longest, the widest, and every vague name

A parameter is any argument, IN or OUT; a composite argument counts once, and columns of RETURNS TABLE are not counted.
A function runs from its CREATE to its `$$;`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LINES = 120  # of a function, at most
PARAMETERS = 12  # of a function, at most
FILE = 400  # lines of a file, at most
WIDTH = 120  # characters of a line, at most

# Words that say nothing about what a variable holds, or what a function or a statement does, to a reader of one file.
VAGUE = frozenset(
    (
        *("found", "each", "told", "asked", "said", "looked", "made", "given", "left", "at", "judged", "met", "aside"),
        *("act", "beat", "call_in", "carry", "come", "forget", "hold_ups", "let_in", "look", "meet", "more", "shed"),
        *("stand", "walk", "words", "work"),
    )
)
# The names of stored columns, which parameters and variables may repeat.
STORED = frozenset({"words", "at"})

_START = re.compile(r"^CREATE FUNCTION (\w+)\(", re.MULTILINE)
_END = re.compile(r"^(?:END )?\$\$;$", re.MULTILINE)
_DECLARED = re.compile(r"^    (\w+) (?:constant )?\w+[^;]*;", re.MULTILINE)
_LOOP = re.compile(r"\bFOR(?:EACH)? (\w+) IN\b")
_STATEMENT = re.compile(r"^-- name: *(\w+)", re.MULTILINE)


class SqlFunction(NamedTuple):
    where: str  # file:line
    name: str
    lines: int
    parameters: tuple[str, ...]
    variables: tuple[str, ...]


@cache
def sources(folder: Path) -> dict[str, str]:
    """The text of each SQL file by its path below the folder."""
    return {path.relative_to(folder).as_posix(): path.read_text() for path in sorted(folder.rglob("*.sql"))}


def functions(folder: Path) -> Iterator[SqlFunction]:
    for where, text in sources(folder).items():
        for start in _START.finditer(text):
            end = _END.search(text, start.end())
            assert end is not None, f"{where}: {start[1]} does not end"
            inside = text[start.start() : end.end()]
            line = text.count("\n", 0, start.start()) + 1
            yield SqlFunction(
                f"{where}:{line}", start[1], inside.count("\n") + 1, _parameters(inside), _variables(inside)
            )


def statements(folder: Path) -> Iterator[tuple[str, str]]:
    """The file and the name of each named statement."""
    for where, text in sources(folder).items():
        yield from ((where, name) for name in _STATEMENT.findall(text))


def _parameters(function: str) -> tuple[str, ...]:
    """The names of the arguments, of which each may have a mode: `OUT name type`."""
    depth, names, start = 0, list[str](), function.index("(") + 1
    for place in range(start, len(function)):
        char = function[place]
        if depth == 0 and char in ",)":
            words = [word for word in function[start:place].split() if word not in ("IN", "OUT", "INOUT")]
            names += words[:1]
            start = place + 1
        if char == ")" and depth == 0:
            return tuple(names)
        depth += (char in "([") - (char in ")]")
    raise ValueError("an open parenthesis")


def _variables(function: str) -> tuple[str, ...]:
    declared = re.search(r"^DECLARE\n(.*?)^BEGIN$", function, re.MULTILINE | re.DOTALL)
    names = _DECLARED.findall(declared[1]) if declared else []
    return tuple(dict.fromkeys([*names, *_LOOP.findall(function)]))


def refused(folder: Path) -> Iterator[str]:
    """A line for each vague name of a function, a parameter, a variable or a statement."""
    for function in functions(folder):
        names = {function.name} | {*function.parameters, *function.variables} - STORED
        yield from (f"{function.where} {function.name}: {name}" for name in sorted(names & VAGUE))
    yield from (f"{where}: {name}" for where, name in statements(folder) if name in VAGUE)


def main() -> None:
    folder = ROOT / "src/treadle"
    known = list(functions(folder))
    for title, key in (("lines", lambda it: it.lines), ("parameters", lambda it: len(it.parameters))):
        print(title, *(f"{key(it)} {it.name}" for it in sorted(known, key=key, reverse=True)[:5]), sep="  ")
    print(*refused(folder), sep="\n")


if __name__ == "__main__":
    main()
