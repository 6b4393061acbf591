"""An outbox in front of a bounded queue: what has no room waits, in order, and costs one try."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest

from tests.outbox.kit import Data, mail, stored
from treadle import App, JobSpec, Key, Limit
from treadle.core.model import NewJob, Record
from treadle.outbox.relay import Relay
from treadle_testkit.shows import shows


class Counting:
    """The storage of an app; keeps the payloads that it took, and counts the calls."""

    def __init__(self, storage: Any) -> None:
        self._storage, self.calls, self.taken = storage, 0, list[str]()

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        self.calls += 1
        rows: list[Record] = await self._storage.enqueue(jobs)
        self.taken += [job.payload for job in jobs]
        return rows

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._storage.get(ids)  # type: ignore[no-any-return]


async def counted(app: App, monkeypatch: pytest.MonkeyPatch) -> tuple[Relay, Counting, list[str]]:
    """A relay, the storage that it delivers to, and the UPDATEs that it runs on rows."""
    storage = Counting(await app._core.opened())
    updates: list[str] = []

    async def opened() -> Any:
        return storage

    assert app.outbox is not None
    database, run = app.outbox._database, app.outbox._database.run

    async def noted(sent: Any) -> Any:
        if sent[0].startswith("UPDATE treadle_outbox"):
            updates.append(sent[0])
        return await run(sent)

    monkeypatch.setattr(database, "run", noted)
    return app.outbox._relay(opened), storage, updates


async def written(app: App, data: Data, *specs: JobSpec[Any]) -> None:
    """Enqueue each in a call of its own, and commit."""
    with closing(data.connect()) as db:
        for spec in specs:
            await app.enqueue(spec, within=db)
        db.commit()


def pauses_end(data: Data) -> None:
    data.run("UPDATE treadle_outbox SET due = 0.5")


@shows("rows of an outbox for a full queue wait together: one try, one log line, and then delivery in their order")
async def test_rows_for_a_full_queue_wait_together(
    app: App, data: Data, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await app.limits.set(Limit("queue:default", max_waiting=10))
    names = [f"{n:03}" for n in range(400)]
    await written(app, data, *[mail(app, name) for name in names[:200]], mail(app, "other", queue="other"))
    await written(app, data, *[mail(app, name) for name in names[200:]])
    relay, storage, updates = await counted(app, monkeypatch)
    with caplog.at_level(logging.WARNING, "treadle"):
        assert await relay.everything() == 11
    assert storage.calls < 40
    assert len(updates) == 1
    [line] = caplog.messages
    assert "390 jobs wait in the outbox" in line
    assert "queue 'default' has no room" in line
    assert sorted(storage.taken) == sorted([*(f'["{name}"]' for name in names[:10]), '["other"]'])
    assert app.outbox is not None
    stats = await app.outbox.stats()
    assert (stats.rows, stats.failing, stats.given_up) == (390, 390, 0)

    await app.limits.set(Limit("queue:default", max_waiting=1_000))
    pauses_end(data)
    storage.taken.clear()
    assert await relay.everything() == 390
    assert storage.taken == [f'["{name}"]' for name in names[10:]]
    assert (await app.outbox.stats()).rows == 0


async def test_rows_that_need_no_room_are_delivered(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held key, a job that supersedes another, a job that waits for another, and a row that was delivered before."""
    held = await app.enqueue(mail(app, "held", key="held"))
    await app.enqueue(mail(app, "old", key="newest"))
    twice = mail(app, "twice", id="twice")
    await app.enqueue(twice)
    await app.limits.set(Limit("queue:default", max_waiting=3))
    await written(
        app,
        data,
        mail(app, "first"),
        mail(app, "same", key="held"),
        mail(app, "new", key=Key("newest", conflict="replace")),
        mail(app, "later", after=[held]),
        mail(app, "second"),
        twice,
        mail(app, "third"),
    )
    relay, _, updates = await counted(app, monkeypatch)
    await relay.everything()
    assert app.outbox is not None
    assert [row.job.payload for row in await app.outbox.list(failing=True) if row.job] == [
        '["first"]',
        '["second"]',
        '["third"]',
    ]
    assert len([text for text in updates if "became" not in text.partition("WHERE")[0]]) == 1
    assert '["new"]' in await stored(app)
    assert '["later"]' in await stored(app)


async def test_calls_of_several_jobs(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller call may fit where a larger one does not. A call with more jobs than the bound is given up at last."""
    await app.limits.set(Limit("queue:default", max_waiting=4))
    with closing(data.connect()) as db:
        for name, size in (("a", 3), ("b", 2), ("c", 2), ("huge", 5), ("d", 1), ("e", 1)):
            await app.enqueue([mail(app, f"{name}{n}") for n in range(size)], within=db)
        db.commit()
    relay, _, _ = await counted(app, monkeypatch)
    monkeypatch.setattr("treadle.outbox.relay.TRIES", 1)
    await relay.everything()
    assert [each[2] for each in await stored(app)] == ["a", "a", "a", "d"]
    assert app.outbox is not None
    assert (await app.outbox.stats()).given_up == 5
    left = {row.job.payload[2]: row.next is None for row in await app.outbox.list() if row.job}
    assert left == {"b": False, "c": False, "h": True, "e": False}


async def test_an_urgent_job_makes_room(app: App, data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.limits.set(Limit("queue:default", max_waiting=2, when_full="drop_lowest"))
    await app.enqueue([mail(app, "low"), mail(app, "low")])
    specs = [mail(app, "refused", priority=0), mail(app, "urgent", priority=5), mail(app, "also", priority=0)]
    await written(app, data, *specs)
    relay, storage, _ = await counted(app, monkeypatch)
    await relay.everything()
    assert storage.taken == ['["urgent"]']
    assert app.outbox is not None
    assert [row.tries for row in await app.outbox.list()] == [1, 1]
