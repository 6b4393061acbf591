"""What the page of coverage names is there: each test, each file of laws, each example."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/internals/coverage.md"
HOMES = (ROOT / "tests", ROOT / "src/treadle/testing/contract", ROOT / "src/treadle/testing")


def rows() -> list[str]:
    """The rows of its tables, without their heads."""
    lines = PAGE.read_text().splitlines()
    heads = {number - 1 for number, line in enumerate(lines) if line.startswith("|---")}
    return [line for number, line in enumerate(lines) if re.match(r"\| ?\S", line) and number not in heads
            and not line.startswith("|---")]  # fmt: skip


def existing() -> set[str]:
    found: set[str] = set()
    for home in HOMES:
        for path in home.rglob("*.py"):
            if "def test_" in (text := path.read_text()):
                found |= {
                    node.name
                    for node in ast.walk(ast.parse(text))
                    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
                }
    return found


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert len(named) > 100
    assert not named - existing()


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
