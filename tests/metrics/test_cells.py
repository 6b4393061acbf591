"""Cells: their number is bounded, and their bytes are read only if they are a version that is known."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from treadle.core.query_model import MetricsRow
from treadle.metrics import OTHER, Cell, Cells, Recorder, SeriesBuilder, decode, encode
from treadle.metrics.cells import LARGEST_DATA, LARGEST_ROW, VERSION
from treadle.metrics.histogram import LARGEST, MOST


def test_cells_are_bounded_and_no_job_is_lost() -> None:
    cells = Cells(50)
    for n in range(400):
        cells.of(f"q{n % 100}", f"t{n}").succeeded += 1
    assert len(cells.by_name) <= 101
    assert sum(cell.succeeded for cell in cells.by_name.values()) == 400
    assert cells.by_name[OTHER, OTHER].succeeded


def test_bytes_are_those_of_the_cells() -> None:
    cells = [Cell("q", "t", 1, 2, 3, 4, {5: 6}, {7: 8}), Cell("", "")]
    assert decode(encode(cells)) == cells
    assert len(encode([Cell("mail", f"app.task{n}", 1_000, run={40: 3, 41: 9, 44: 2}) for n in range(20)])) < 1_000


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02" + encode([])[1:],
        b"\x01not zlib",
        encode([Cell("q", "t")])[:-3],
        VERSION + zlib.compress(msgspec.msgpack.encode([["q", "t", -1]])),
        VERSION + zlib.compress(msgspec.msgpack.encode([["q"]])),
        VERSION + zlib.compress(bytes(LARGEST_DATA + 1)),
        encode([Cell("q", "t", run={LARGEST + 1: 1})]),  # a duration beyond any float
        encode([Cell("q", "t", wait={10**15: 1})]),  # a number of 10^15 bits
        encode([Cell("q", "t", run={0: MOST + 1})]),
        encode([Cell("q", "t", MOST + 1)]),
        encode([Cell("q" * 256, "t")]),
        encode([Cell(f"q{n}", "t") for n in range(LARGEST_ROW + 1)]),
    ],
)
def test_data_that_is_damaged_foreign_or_too_large_is_not_read(data: bytes) -> None:
    assert decode(data) is None


def test_sums_of_the_largest_counts_can_be_stored_and_read() -> None:
    """A hostile worker stores them; the leader folds them for 90 days."""
    largest = encode([Cell("q", "t", MOST, MOST, MOST, MOST, {LARGEST: MOST}, {LARGEST: MOST})])
    cells = Cells(500)
    for _ in range(2_100):
        cells.add(decode(largest) or [])
    assert decode(encode(cells.by_name.values())) == list(cells.by_name.values()) == decode(largest)
    builder = SeriesBuilder(0.0, 3_600.0, 60.0)
    for minute in range(60):
        builder.add(MetricsRow(at=minute * 60.0, span=60.0, source="w", data=largest))
    found = msgspec.json.decode(msgspec.json.encode(builder.metrics()))
    assert (found["sampled"], found["run"]["p99"][0] > 1e12) == (MOST, True)


def test_as_many_cells_as_a_folded_row_can_have_are_read() -> None:
    cells = Cells(500)
    for n in range(2_000):
        cells.of(f"q{n}", "t")
    assert len(decode(encode(cells.by_name.values())) or []) == LARGEST_ROW


def test_fields_of_a_later_version_are_ignored() -> None:
    more = VERSION + zlib.compress(msgspec.msgpack.encode([["q", "t", 1, 2, 3, 4, {}, {}, "new"]]))
    assert decode(more) == [Cell("q", "t", 1, 2, 3, 4)]


def test_a_recorder_returns_the_whole_minute_again_only_if_it_changed() -> None:
    now = 600.0
    recorder = Recorder("w", lambda: now)
    recorder.cell("q", "t").succeeded += 1
    [first] = recorder.take()
    assert recorder.take() == []
    recorder.cell("q", "t").succeeded += 1
    [second] = recorder.take()
    assert (first.at, first.span, first.source) == (second.at, second.span, second.source) == (600.0, 60.0, "w")
    assert decode(second.data) == [Cell("q", "t", 2)]


def test_a_recorder_keeps_what_could_not_be_stored_and_never_an_older_row_of_a_minute() -> None:
    now = 600.0
    recorder = Recorder("w", lambda: now)
    recorder.cell("q", "t").succeeded += 1
    rows = recorder.take()
    recorder.cell("q", "t").succeeded += 1
    now = 660.0
    recorder.begin()
    recorder.cell("q", "t").failed += 1
    recorder.put_back(rows)
    assert [(row.at, decode(row.data)) for row in recorder.take()] == [
        (600.0, [Cell("q", "t", 2)]),
        (660.0, [Cell("q", "t", 0, 1)]),
    ]


def test_a_recorder_follows_the_clock_of_the_storage_and_keeps_an_hour() -> None:
    now = 0.0
    recorder = Recorder("w", lambda: now)
    recorder.synchronize(6_000.0)
    for minute in range(100):
        now = minute * 60.0
        recorder.begin()
        recorder.cell("q", "t").succeeded += 1
    rows = recorder.take()
    assert [row.at for row in rows] == [6_000.0 + 60.0 * minute for minute in range(39, 100)]


def test_a_clock_that_goes_back_a_little_replaces_no_row() -> None:
    now = 659.0
    recorder = Recorder("w", lambda: now)
    recorder.cell("q", "t").succeeded += 1
    now = 660.0
    assert recorder.begin()
    now = 659.9
    assert not recorder.begin()
    recorder.cell("q", "t").succeeded += 1
    assert [(row.at, decode(row.data)) for row in recorder.take()] == [
        (600.0, [Cell("q", "t", 1)]),
        (660.0, [Cell("q", "t", 1)]),
    ]
