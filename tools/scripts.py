"""Functions, parameters and names of Lua and TypeScript files, read by their words and brackets.

`tests/project/test_structure.py` holds them against the bounds below. A Lua function ends with the `end` of its block,
a TypeScript function at the next line that has its indentation, because all files are formatted alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools.size import VAGUE

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "src/treadle", ROOT / "ui/src")
GENERATED = ("static", "api.ts")
FUNCTION = 120  # lines, at most
PARAMETERS = 12  # at most
WIDTH = 120  # characters of a line
# No words for what a function does, or a variable holds. Each was the name of a function once.
PRIVATE = re.compile(
    "askers|away|came_back|call_in|call_in_for|carry|go_slowly|hears?|let_back|let_in|let_pass|meet|owed?|shy|sight|"
    "skips_of|stand|tells?|tend|tended|walk|wordings?"
)


class Function(NamedTuple):
    where: str  # file and name
    lines: int
    parameters: int


class Name(NamedTuple):
    """A name of a function, or of a local variable of a file."""

    where: str  # file and line
    name: str


def files(*suffixes: str) -> list[Path]:
    found = (path for source in SOURCES for path in sorted(source.rglob("*")))
    return [path for path in found if path.suffix in suffixes and not {*path.parts} & {*GENERATED}]


def functions(path: Path) -> Iterator[Function]:
    read = _of_lua if path.suffix == ".lua" else _of_typescript
    for name, lines, parameters in read(path.read_text()):
        yield Function(f"{path.relative_to(ROOT).as_posix()}: {name}", lines, parameters)


def names(path: Path) -> Iterator[Name]:
    """The names of functions, and of locals with `local`, `const`, `let` and `for`, once for each declaration."""
    pattern = _LUA_NAMES if path.suffix == ".lua" else _TYPESCRIPT_NAMES
    for number, line in enumerate(_without_comments(path).splitlines(), 1):
        for declared in pattern.finditer(line):
            for name in re.findall(r"\w+", next(filter(None, declared.groups()))):
                yield Name(f"{path.relative_to(ROOT).as_posix()}:{number}", name)


def private(every: Iterable[Name]) -> list[str]:
    """A line for each name that says nothing to a reader."""
    return [f"{each.where}: {each.name}" for each in every if PRIVATE.fullmatch(each.name)]


def vague(every: Iterable[Name]) -> list[str]:
    return [f"{each.where}: {each.name}" for each in every if each.name in VAGUE]


def wide(path: Path) -> list[str]:
    """The lines that are too long. In TypeScript a line with a text may be: its formatter breaks no text."""
    texts = '"`“' if path.suffix in (".ts", ".tsx") else ""
    lines = enumerate(path.read_text().splitlines(), 1)
    where = path.relative_to(ROOT).as_posix()
    return [f"{where}:{number}" for number, line in lines if len(line) > WIDTH and not any(q in line for q in texts)]


# --- Lua

_LUA_NAMES = re.compile(
    r"\blocal function (\w+)|\bfunction [\w.]*?(\w+)\(|\blocal ((?:\w+, )*\w+)|\bfor ([\w, ]+?) (?:=|in)\b"
)
_LUA_WORD = re.compile(r"\b(function|do|then|repeat|elseif|end|until)\b")
_LUA_STRING = re.compile(r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"|(--[^\n]*)")


def _without_comments(path: Path) -> str:
    text = path.read_text()
    if path.suffix == ".lua":
        return _LUA_STRING.sub(lambda part: "" if part[1] else "''", text)
    return re.sub(r"(?s)/\*.*?\*/", lambda part: "\n" * part[0].count("\n"), re.sub(r"(?m)^\s*//.*$", "", text))


def _of_lua(text: str) -> Iterator[tuple[str, int, int]]:
    bare = _LUA_STRING.sub(lambda part: "" if part[1] else "''", text)
    open_blocks: list[int] = []  # where each block that is open begins
    for word in _LUA_WORD.finditer(bare):
        if word[1] == "elseif":
            open_blocks.pop()
        elif word[1] not in ("end", "until"):
            open_blocks.append(word.start())
        else:
            start = open_blocks.pop()
            head = re.match(r"function ?([\w.]*)\(([^)]*)\)", bare[start:])
            if head:
                yield head[1] or "(no name)", bare.count("\n", start, word.end()) + 1, len(head[2].split(","))


# --- TypeScript

_TYPESCRIPT_NAMES = re.compile(r"\bfunction (\w+)|\b(?:const|let) (\w+|\[[\w, ]+\]|\{[\w, ]+\})")
_TYPESCRIPT_HEAD = re.compile(
    r"^(\s*)(?:export )?(?:default )?(?:async )?(?:function (\w+)|const (\w+)(?:: [^=]+)? = (?:async )?\(.*=>) ?.*\{$"
)


def _of_typescript(text: str) -> Iterator[tuple[str, int, int]]:
    lines = text.splitlines()
    for first, line in enumerate(lines):
        head = _TYPESCRIPT_HEAD.match(line)
        if head:
            ends = (number for number in range(first + 1, len(lines)) if lines[number].startswith(head[1] + "}"))
            last = next(ends, first)
            yield head[2] or head[3], last - first + 1, _commas(line.partition("(")[2])


def _commas(text: str) -> int:
    """The number of parameters at the start of a text, up to the bracket that ends them."""
    depth, count = 0, 1
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if depth < 0:
            break
        count += character == "," and depth == 0
    return count
