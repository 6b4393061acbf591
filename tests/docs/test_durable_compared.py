"""The page that compares durable code: a test shows each *yes* of Treadle, and the page counts its rows rightly."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools.coverage_page import markers

PAGE = Path(__file__).resolve().parents[2] / "docs/concepts/durable-compared.md"


class Row(NamedTuple):
    number: int
    peers: list[str]
    ours: str  # "yes", "partly" or "no"
    sentences: list[str]


def rows() -> list[Row]:
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.read_text().splitlines()]
    return [
        Row(int(row[0]), row[2:7], row[7].partition(":")[0], [text for text in row[8].split("<br>") if text])
        for row in cells
        if row and row[0].isdecimal()
    ]


def test_each_behaviour_has_one_row() -> None:
    assert sorted(row.number for row in rows()) == list(range(1, 61))
    assert {mark for row in rows() for mark in row.peers} <= {"yes", "partly", "no", ""}


def test_a_test_shows_what_treadle_does() -> None:
    known = {marker.sentence for marker in markers()}
    for row in rows():
        assert row.ours in {"yes", "partly", "no"}, row
        assert bool(row.sentences) == (row.ours != "no"), row
        assert {*row.sentences} <= known, row


def test_the_page_counts_its_rows() -> None:
    count = Counter(row.ours for row in rows())
    sentence = re.search(r"Treadle: (\d+) yes, (\d+) partly,\s+(\d+) no", PAGE.read_text())
    assert sentence
    assert [int(number) for number in sentence.groups()] == [count["yes"], count["partly"], count["no"]]
