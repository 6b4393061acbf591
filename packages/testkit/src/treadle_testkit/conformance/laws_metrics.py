"""Rows of metrics: stored by their identity, read by time, moved with the jobs."""

from __future__ import annotations

from typing import Any

import pytest

from treadle.core.errors import BadOption, StorageMoved, StorageUnavailable, TooLarge
from treadle.core.query_model import MetricsRow, Query
from treadle.storage.contract import Storage
from treadle_testkit.conformance.kit import claim_ids, ids, jobs
from treadle_testkit.conformance.moving_kit import carry, mark, movable
from treadle_testkit.conformance.run import Another, Connect
from treadle_testkit.shows import shows

START = 1_800_000_000.0


def measured(at: float, source: str = "w", data: bytes = b"x", span: float = 60.0) -> MetricsRow:
    """A row; `at` counts from START."""
    return MetricsRow(at=START + at, span=span, source=source, data=data)


async def everything(storage: Storage) -> list[MetricsRow]:
    return await storage.read_metrics(0, 2 * START)


@shows("metrics stored twice are stored once")
async def test_law10_metrics_stored_twice_are_stored_once(storage: Storage) -> None:
    """Alone, in one call, and after a lost answer to a call that also removes."""
    rows = [measured(0), measured(60), measured(0, "v")]
    for _ in range(2):
        await storage.store_metrics(rows)
        assert await everything(storage) == [rows[2], rows[0], rows[1]]
    for _ in range(2):
        await storage.store_metrics([measured(0, "", b"folded", span=600)], remove=rows)
        assert await everything(storage) == [measured(0, "", b"folded", span=600)]
    await storage.store_metrics([])
    await storage.store_metrics([], [measured(60, "none")])
    assert await everything(storage) == [measured(0, "", b"folded", span=600)]


async def test_more_metrics_replace_the_row_of_their_identity(storage: Storage) -> None:
    """Time, span and source; the last one of a call wins."""
    await storage.store_metrics([measured(0, "w", b"1")])
    await storage.store_metrics([measured(0, "w", b"2"), measured(0, "v", b"3"), measured(0, "w", b"4", span=600)])
    await storage.store_metrics([measured(60, "w", b"5"), measured(60, "w", b"6")])
    assert await everything(storage) == [
        measured(0, "v", b"3"),
        measured(0, "w", b"2"),
        measured(0, "w", b"4", span=600),
        measured(60, "w", b"6"),
    ]


async def test_more_metrics_are_removed_by_identity(storage: Storage) -> None:
    """The data does not matter; a row that is removed and stored in one call is stored."""
    await storage.store_metrics([measured(0, "w", b"1"), measured(0, "v", b"2"), measured(0, "w", b"3", span=600)])
    await storage.store_metrics([], [measured(0, "w", b"other"), measured(0, "none")])
    assert await everything(storage) == [measured(0, "v", b"2"), measured(0, "w", b"3", span=600)]
    await storage.store_metrics([measured(0, "v", b"new")], [measured(0, "v"), measured(0, "w", span=600)])
    assert await everything(storage) == [measured(0, "v", b"new")]


@pytest.mark.parametrize(
    ("since", "until", "found"),
    [
        (0, 60, "a"),
        (59, 60, "a"),
        (60, 61, "b"),
        (59.5, 60.5, "ab"),
        (-100, 0, ""),
        (-100, 0.5, "a"),
        (119.75, 500, "bl"),
        (120, 500, "l"),
        (3720, 9999, ""),
        (3719, 9999, "l"),
        (130, 140, "l"),
        (-9999, 9999, "abl"),
    ],
)
async def test_more_metrics_are_read_by_overlap(storage: Storage, since: float, until: float, found: str) -> None:
    """A read returns the rows whose span overlaps its range, also a long one that began before it."""
    await storage.store_metrics(
        [measured(0, data=b"a"), measured(60, data=b"b"), measured(120, data=b"l", span=3600.0)]
    )
    rows = await storage.read_metrics(START + since, START + until)
    assert b"".join(row.data for row in rows).decode() == found


async def test_more_metrics_are_read_in_order(storage: Storage) -> None:
    """Rows are sorted by time, span and source; the source "" comes first, and sources compare as their UTF-8 bytes."""
    rows = [
        measured(minute, source, span=span)
        for minute in (-60.5, 0, 600)
        for span in (10.0, 60.0, 600.0)
        for source in ("", "A", "a#1", "a-b", "é", "日本")
    ]
    await storage.store_metrics(rows[::-1])
    assert await everything(storage) == rows


@pytest.mark.parametrize("data", [b"", b"\0", bytes(range(256)), b"\xff\xfe\x00\xd8", b"[]" * 20_000])
async def test_more_metrics_are_bytes(storage: Storage, data: bytes) -> None:
    """A storage keeps them unchanged."""
    await storage.store_metrics([measured(0, data=data)])
    assert await everything(storage) == [measured(0, data=data)]


@pytest.mark.parametrize(
    ("odd", "error"),
    [
        ({"source": "\0"}, BadOption),
        ({"source": "w\ud800"}, BadOption),
        ({"source": "w" * 600}, BadOption),
        ({"span": 0.0}, BadOption),
        ({"span": -60.0}, BadOption),
        ({"span": float("nan")}, BadOption),
        ({"at": float("inf")}, BadOption),
        ({"at": float("nan")}, BadOption),
        ({"data": b"x" * (2**20 + 1)}, TooLarge),
    ],
)
async def test_more_metrics_out_of_range_are_refused(storage: Storage, odd: Any, error: type[Exception]) -> None:
    """One such row refuses all rows of the call, and the storage continues to work."""
    row = MetricsRow(**{"at": START, "span": 60.0, "source": "w", **odd})
    with pytest.raises(error):
        await storage.store_metrics([measured(0, "good"), row])
    if error is BadOption:
        with pytest.raises(error):
            await storage.store_metrics([measured(0, "good")], [row])
    assert await everything(storage) == []
    await storage.store_metrics([measured(0, "good")])
    assert await everything(storage) == [measured(0, "good")]


async def test_more_metrics_are_separate_from_jobs(storage: Storage) -> None:
    """They show in no page and no count, and pruning leaves them."""
    await storage.store_metrics([measured(0), measured(60)])
    await storage.enqueue(jobs("a"))
    assert ids((await storage.find(Query())).records) == ["a"]
    assert [count.jobs for count in (await storage.stats()).counts] == [1]
    assert await storage.prune(100) == 0
    assert await claim_ids(storage, 9) == ["a"]
    assert len(await everything(storage)) == 2


async def test_law13_metrics_are_visible_to_another_connection(storage: Storage, connect: Connect) -> None:
    other = await connect()
    await storage.store_metrics([measured(0, "w"), measured(0, "v")])
    await other.store_metrics([measured(0, "x", b"y")], [measured(0, "w")])
    assert await everything(storage) == await everything(other) == [measured(0, "v"), measured(0, "x", b"y")]


async def test_law13_metrics_are_kept_over_a_reopening(storage: Storage, durable: bool) -> None:
    if not durable:
        pytest.skip("this storage is not durable")
    await storage.store_metrics([measured(0), measured(60)])
    await storage.close()
    await storage.open()
    assert await everything(storage) == [measured(0), measured(60)]


@shows("a move carries the metrics too")
async def test_more_metrics_are_moved(storage: Storage, another: Another) -> None:
    """The first chunk has them, and a repeated load changes nothing."""
    movable(storage)
    await storage.enqueue(jobs("a b c d"))
    rows = [measured(0, "v", bytes(range(256))), measured(0, span=600), measured(60, "w", b"")]
    await storage.store_metrics(rows)
    first = await movable(storage).unload(None, 1)
    assert sorted(first.metrics, key=lambda row: (row.at, row.span, row.source)) == [rows[0], rows[1], rows[2]]
    assert first.cursor is not None
    assert (await movable(storage).unload(first.cursor, 9)).metrics == ()
    target = await another()
    for _ in range(2):
        await carry(storage, target)
        assert await everything(target) == rows
        await movable(target).set_mark(mark("filling"))


async def test_more_metrics_of_a_storage_without_jobs_are_moved(storage: Storage, another: Another) -> None:
    movable(storage)
    await storage.store_metrics([measured(0)])
    target = await another()
    await carry(storage, target)
    assert await everything(target) == [measured(0)]


async def test_more_a_move_stops_metrics(storage: Storage) -> None:
    """They are stored while the source closes, and refused where the jobs are gone or arrive; reading continues."""
    movable(storage)
    await movable(storage).set_mark(mark("closing"))
    await storage.store_metrics([measured(0)])
    await movable(storage).set_mark(mark("gone"))
    with pytest.raises(StorageMoved):
        await storage.store_metrics([measured(60)])
    assert await everything(storage) == [measured(0)]
    await movable(storage).set_mark(mark("filling"))
    with pytest.raises(StorageUnavailable, match="receives the jobs"):
        await storage.store_metrics([measured(60)], [measured(0)])
    assert await everything(storage) == [measured(0)]
    await movable(storage).set_mark(mark("arrived"))
    await storage.store_metrics([measured(60)])
    assert await everything(storage) == [measured(0), measured(60)]
