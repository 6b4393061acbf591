"""The code blocks of a Markdown page, with the instructions in the comments above them.

Tests execute them, so an example that stops working fails a test.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PYTHON = {"python", "py"}
SHELL = {"bash", "console", "sh", "shell"}
WORDS = {"no-run", "file", "fresh", "background"}
GENERATED = ("docs/reference/", "docs/internals/decisions/")  # generated; history that may be out of date

_FENCE = re.compile(r"^(?P<indent> *)(?P<marks>`{3,}|~{3,})\s*\{?\.?(?P<language>[\w+-]*)")
_COMMENT = re.compile(r"^\s*<!--\s*(?P<word>[a-z-]+)(?::\s*(?P<value>.*?))?\s*-->\s*$")
_COMMAND = re.compile(r"^(?:[A-Z_][A-Z0-9_]*=\S* )*(?:treadle|python3?)(?:\s|$)")


@dataclass(frozen=True)
class Block:
    """One fenced block. `line` is the number of its first line of code."""

    language: str
    code: str
    line: int
    file: str | None = None  # written to this file in the page's folder unless None, not executed
    no_run: str | None = None  # why it is not executed
    fresh: bool = False  # starts without the names that the blocks above defined
    background: bool = False  # its last command runs until the page ends

    @property
    def commands(self) -> list[tuple[int, str]]:
        """The lines to execute, each with its number: `$ treadle ...`, `$ python ...`, `$ NAME=value treadle ...`."""
        if self.language not in SHELL:
            return []
        found: list[tuple[int, str]] = []
        lines = enumerate(self.code.splitlines(), self.line)
        for number, text in lines:
            if not text.startswith("$ "):
                continue  # output of the command
            command = text[2:]
            while command.endswith("\\"):
                command = command[:-1] + next(lines, (0, ""))[1].strip()
            # dev.py does not run in the folder of a page
            if _COMMAND.match(command) and not re.search(r"\bdev\.py\b", command):
                found.append((number, command))
        return found


class BadPage(ValueError):
    """A comment above a block has an instruction that cannot be followed."""


def blocks(text: str, page: str = "page") -> list[Block]:
    """All fenced blocks in order. Raises BadPage for a block that is never closed, and for an unknown or misplaced
    comment."""
    found: list[Block] = []
    asked: dict[str, str | None] = {}
    lines = enumerate(text.splitlines(), 1)
    for number, line in lines:
        if comment := _COMMENT.match(line):
            word, value = comment["word"], comment["value"]
            if word in WORDS:
                if (word in {"no-run", "file"}) != bool(value):
                    raise BadPage(f"{page}:{number}: <!-- {word} --> takes {'no value' if value else 'a value'}")
                asked[word] = value
        elif fence := _FENCE.match(line):
            close = re.compile(rf"^ *{re.escape(fence['marks'][0])}{{{len(fence['marks'])},}}\s*$")
            code: list[str] = []
            for _, inner in lines:
                if close.match(inner):
                    break
                code.append(inner.removeprefix(fence["indent"]))
            else:
                raise BadPage(f"{page}:{number}: this block is never closed")
            block = Block(
                language=fence["language"].lower(),
                code="\n".join(code) + "\n",
                line=number + 1,
                file=asked.get("file"),
                no_run=asked.get("no-run"),
                fresh="fresh" in asked,
                background="background" in asked,
            )
            if block.background and not block.commands:
                raise BadPage(f"{page}:{number}: <!-- background --> stands above a block without a command to run")
            if block.file and (Path(block.file).is_absolute() or ".." in Path(block.file).parts):
                raise BadPage(f"{page}:{number}: <!-- file: {block.file} --> leaves the page's folder")
            found.append(block)
            asked = {}
        elif line.strip() and asked:
            raise BadPage(f"{page}:{number}: {', '.join(asked)} stands above a line that starts no block")
    return found


def pages(root: Path) -> list[Path]:
    """README.md and the pages of docs/ that a person wrote and that describe the current version."""
    written: Iterable[Path] = sorted((root / "docs").rglob("*.md"))
    found = [path for path in written if not path.relative_to(root).as_posix().startswith(GENERATED)]
    return [path for path in (root / "README.md",) if path.exists()] + found
