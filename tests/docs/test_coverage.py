"""What the page of coverage names is there: each test, each file of laws, each example."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/coverage.md"
# Rows whose named tests did not show them, when somebody read the tests; see the mark `shows`.
WEAK = {
    "2.3 `complete`",
    "A-19 redrive when idle",
    "A-32 each job ever seen",
    "A-9 a job that kills its worker",
    "B20",
    "B21",
    "B30",
    "B52",
    "SJ 1.7 what is like one that waits",
    "W12",
    "WE 15 events",
    "WE 16 lists, what runs, figures",
    "WE 18 pub/sub not under the prefix",
    "WE 2 what a job may read of itself",
    "Y13",
    "batching unheeded for items that skip the queue",
    "deleting a job with its children",
    "dependency with a timeout, on ids not known yet",
    "instructions not returned are an error",
}
HOMES = (ROOT / "tests", ROOT / "src/treadle/testing/conformance", ROOT / "src/treadle/testing")


def rows() -> list[str]:
    """The rows of its tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    return [
        line
        for number, line in enumerate(lines)
        if re.match(r"\| ?\S", line) and number not in heads and not line.startswith("|---")
    ]


@functools.cache
def files() -> dict[str, dict[str, list[str]]]:
    """Each file, its tests, and the rows each of them is marked to show."""
    found: dict[str, dict[str, list[str]]] = {}
    for home in HOMES:
        for path in home.rglob("*.py"):
            if "def test_" in (text := path.read_text()):
                functions = [
                    node
                    for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
                ]
                found[path.relative_to(ROOT).as_posix()] = {node.name: list(marks(node)) for node in functions}
    return found


def marks(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for each in test.decorator_list:
        if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.shows":
            yield from (ast.literal_eval(row) for row in each.args)


def begins(row: str, name: str) -> bool:
    """Whether a mark means this row: one of its numbers, its first cell, or the beginning of its first two cells."""
    first, second = [cell.strip() for cell in row.split("|")[1:3]]
    numbers = (first, *first.split(", "))
    return name in numbers or (" " in name and any(f"{number} {second}".startswith(name) for number in numbers))


def existing() -> set[str]:
    return {name for file in files().values() for name in file}


def marked() -> list[tuple[str, str]]:
    """A row's name and a test that shows it."""
    return sorted({(row, test) for file in files().values() for test, rows in file.items() for row in rows})


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 100
    assert not named - existing()


@pytest.mark.parametrize(("name", "test"), marked())
def test_the_row_of_a_mark_names_the_marked_test(name: str, test: str) -> None:
    [row] = [row for row in rows() if begins(row, name)]
    assert f"`{test}`" in row


def test_the_rows_that_were_found_weak_have_a_marked_test() -> None:
    assert not WEAK - {row for row, _ in marked()}


def test_every_file_that_is_named_exists() -> None:
    text = PAGE.read_text()
    for path in re.findall(r"`((?:tests|examples|benchmarks|docs)/[\w/.-]+)`", text):
        assert (ROOT / path).exists(), path
    for laws in re.findall(r"`(laws_\w+)`", text):
        assert (HOMES[1] / f"{laws}.py").exists(), laws


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.split("|")[1].strip()[:40])
def test_every_row_is_shown_by_something(row: str) -> None:
    shown = row.rstrip("| ").rpartition("|")[2]
    assert re.search(r"`(test_|laws_|tests/|examples/|dev\.py )|the same|\*\*Not applicable\*\*", shown), row


@pytest.mark.parametrize(("letter", "last"), [("W", 27), ("A-", 38), ("B", 60)])
def test_no_number_of_the_studies_is_left_out(letter: str, last: int) -> None:
    first = {cell.strip() for row in rows() for cell in row.split("|")[1].split(",")}
    assert {f"{letter}{number}" for number in range(1, last + 1)} <= first
