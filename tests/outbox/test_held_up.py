"""Rows of an outbox whose keys another open transaction holds at the target: they wait, the others are delivered."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from tests.outbox.kit import Data, mail, stored
from treadle import App, Locked
from treadle.core.model import NewJob, Record
from treadle.outbox.relay import TRIES
from treadle_testkit.shows import shows


class Held:
    """The storage of an app, in which another transaction holds some keys."""

    def __init__(self, storage: Any, *keys: str) -> None:
        self._storage, self.keys = storage, set(keys)

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        held = [job.id for job in jobs if (job.key or "").partition(" ")[2] in self.keys]
        if held:
            raise Locked("there", "a key", held)
        rows: list[Record] = await self._storage.enqueue(jobs)
        return rows

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        return await self._storage.get(ids)  # type: ignore[no-any-return]


@shows("rows of an outbox that another transaction holds up at the target delay no others, and are never given up")
async def test_only_rows_that_are_held_up_wait(app: App, data: Data) -> None:
    target = Held(await app._core.opened(), "a")

    async def opened() -> Any:
        return target

    with closing(data.connect()) as db:
        for name in ("a", "b", "c"):
            await app.enqueue(mail(app, name, key=name), within=db)
        db.commit()
    assert app.outbox is not None
    relay = app.outbox._relay(opened)
    assert await relay.everything() == 2
    assert await stored(app) == ['["b"]', '["c"]']
    for _ in range(TRIES + 1):
        data.run("UPDATE treadle_outbox SET due = 0.5")
        assert await relay.everything() == 0
    stats = await app.outbox.stats()
    assert (stats.failing, stats.given_up) == (1, 0)
    target.keys.clear()
    data.run("UPDATE treadle_outbox SET due = 0.5")
    assert await relay.everything() == 1
    assert await stored(app) == ['["a"]', '["b"]', '["c"]']
