"""The page of defects: each row names tests that exist, or says that it is open, and the numbers have no gap."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/defects.md"
TESTKIT = "packages/testkit/src/treadle_testkit"
ID = re.compile(r"\| [A-Z]-")
COUNTS = {"A-": 12, "E-A": 20, "S-": 17, "C-": 8, "O-": 5, "U-F": 14, "I-S": 11, "X-": 15, "L-": 1, "D-": 6, "H-": 1}


@functools.cache
def files() -> dict[str, set[str]]:
    """Each file with tests, and the names of its tests."""
    found: dict[str, set[str]] = {}
    for home in ("tests", TESTKIT):
        for path in (ROOT / home).rglob("*.py"):
            if "def test_" in (text := path.read_text()):
                found[path.relative_to(ROOT).as_posix()] = {
                    node.name
                    for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
                }
    return found


def rows() -> list[str]:
    return [line for line in PAGE.read_text().splitlines() if ID.match(line)]


def first(row: str) -> str:
    return row.split("|")[1].strip()


def path_of(named: str) -> str:
    return f"{TESTKIT}/conformance/{named}.py" if named.startswith("laws_") else f"tests/{named}"


@pytest.mark.parametrize("row", rows(), ids=first)
def test_a_row_names_tests_that_exist_or_is_open(row: str) -> None:
    shown = row.rstrip("| ").rpartition(" | ")[2] if not row.endswith("| |") else ""
    named = re.findall(r"`((?:laws_\w+|[\w/]+\.py)(?:::test_\w+)?)`", shown)
    assert named or "**Open**" in row
    for each in named:
        file, _, test = each.partition("::")
        if file == "dev.py":
            continue
        assert path_of(file) in files(), each
        assert not test or test in files()[path_of(file)], each


def test_ids_are_unique_and_without_gaps() -> None:
    given = [id for row in rows() for id in ids(first(row))]
    assert len(given) == len(set(given))
    for letters, last in COUNTS.items():
        for number in range(1, last + 1):
            assert any(re.fullmatch(rf"{letters}{number}(\.\d+)?", id) for id in given), f"{letters}{number}"
    assert {f"F-{letter}" for letter in "ABCDEFG"} <= set(given)


def ids(cell: str) -> list[str]:
    found: list[str] = []
    for part in cell.split(", "):
        begin, _, end = part.partition(" to ")
        if end:
            letters = begin.rstrip("0123456789")
            low, high = int(begin[len(letters) :]), int(end[len(letters) :])
            found += [f"{letters}{number}" for number in range(low, high + 1)]
        else:
            found.append(begin)
    return found
