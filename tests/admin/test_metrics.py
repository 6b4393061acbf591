"""`app.metrics`: points, steps, filters and totals, from rows of every span, on every storage."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from treadle import App, BadOption
from treadle.admin.known_names import heard
from treadle.core.query_model import MetricsRow
from treadle.metrics import POINTS, Cell, encode
from treadle.metrics.histogram import bucket_of
from treadle.testing import HandClock
from treadle_testkit.shows import shows

HOUR = 3600.0


def row(at: float, *cells: Cell, span: float = 60.0, source: str = "w") -> MetricsRow:
    return MetricsRow(at=at, span=span, source=source, data=encode(cells))


@shows("`app.metrics` reads counts and quantiles over time, by queue and by task")
async def test_metrics_by_time_queue_and_task(app: App, clock: HandClock) -> None:
    now = clock() // HOUR * HOUR
    clock.advance(now + HOUR - clock())
    mail, report = (
        Cell("mail", "send", 60, 3, 2, 1, {bucket_of(0.005): 10}, {bucket_of(9): 10}),
        Cell("bulk", "report", 5),
    )
    await app.storage.store_metrics([row(now, mail), row(now + 60, mail, report), row(now + 60, mail, source="w2")])
    found = await app.metrics.read(step=60)
    assert (found.step, found.at[0], len(found.at), found.since) == (60.0, now, 60, now)
    assert found.succeeded[:3] == (60, 125, 0)
    assert (sum(found.failed), sum(found.retried), sum(found.other), found.sampled) == (9, 6, 3, 30)
    assert found.rates("succeeded")[0] == 1.0
    assert found.run.p95[0] == pytest.approx(0.005, rel=0.12)
    assert found.run.p95[2] is None
    only = await app.metrics.read(task="report")
    assert (sum(only.succeeded), only.sampled) == (5, 0)
    assert sum((await app.metrics.read(queue="mail", task="report")).succeeded) == 0
    totals = await app.metrics.totals("task")
    assert {name: (each.succeeded, each.failed) for name, each in totals.items()} == {
        "send": (180, 9),
        "report": (5, 0),
    }
    assert totals["send"].wait.p50 == pytest.approx(9, rel=0.12)
    each = await app.metrics.each("queue", since=now, until=datetime.fromtimestamp(now + 120, UTC), step=60)
    assert {name: found.succeeded for name, found in each.items()} == {"bulk": (0, 5), "mail": (60, 120)}
    bound = app.metrics.within(("bulk",))
    assert sum((await bound.read()).succeeded) == 5
    assert list(await bound.totals("task")) == ["report"]


async def test_a_step_is_as_long_as_the_rows_and_bounds_the_points(app: App, clock: HandClock) -> None:
    hour = clock() // HOUR * HOUR
    cell = Cell("q", "t", 1)
    await app.storage.store_metrics([row(hour - 5 * HOUR, cell, span=600.0, source=""), row(hour, cell)])
    found = await app.metrics.read(since=hour - 6 * HOUR, until=hour + 60, step=90)
    assert found.step == 600.0
    assert sum(found.succeeded) == 2
    assert (await app.metrics.read(since=hour, until=hour + 60, step=90)).step == 120.0
    wide = await app.metrics.read(since=hour - 90 * 24 * HOUR, until=hour + 60, step=60)
    assert len(wide.at) <= POINTS
    assert sum(wide.succeeded) == 2


async def test_rows_that_cannot_be_read_are_counted(app: App, clock: HandClock) -> None:
    at = clock() // 60 * 60
    odd = MetricsRow(at=at, span=77.0, source="odd", data=encode([Cell("q", "t", 5)]))
    later = MetricsRow(at=at, span=60.0, source="later", data=b"\x02" + b"x")
    await app.storage.store_metrics([row(at, Cell("q", "t", 1)), odd, later])
    found = await app.metrics.read()
    assert (sum(found.succeeded), found.unreadable) == (1, 2)


async def test_without_rows_there_are_points_and_no_beginning(app: App) -> None:
    found = await app.metrics.read()
    assert (sum(found.succeeded), found.since, found.run.p50[0]) == (0, None, None)
    assert await app.metrics.totals("queue") == {}
    text = msgspec.json.decode(msgspec.json.encode(found))
    assert {"from", "to", "step", "at", "run", "wait", "since"} <= set(text)


@pytest.mark.parametrize(
    "wrong",
    [{"since": "now"}, {"since": -1}, {"until": datetime(2026, 1, 1)}, {"since": 9e11}, {"step": -1}],  # noqa: DTZ001
)
async def test_an_invalid_range_is_refused(app: App, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        await app.metrics.read(**wrong)


async def test_a_name_that_nothing_uses_warns(app: App) -> None:
    @app.task(name="mail.send")
    async def send() -> None: ...

    assert not any((await app.metrics.read(task="mail.send")).succeeded)
    with heard() as warnings:
        await app.metrics.read(task="mail.sned")
    assert warnings.words == ["nothing uses the task 'mail.sned' yet; did you mean 'mail.send'?"]
