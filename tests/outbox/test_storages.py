"""An outbox in front of each kind of storage, with small and large arguments and a flow over several pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.outbox.kit import Data, a_database, relayed
from tests.served import memory_url
from tests.servers import cluster, postgres, valkey
from treadle import App, Outbox, Worker
from treadle.ports import memory_backend
from treadle.server import Settings
from treadle_testkit.shows import shows

LARGE = "\u00e5" * 2_000_000  # its text has 12 MB as ASCII
_names = (f"outbox-storages-{n}" for n in itertools.count())

STORAGES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "sqlite": lambda folder: {"url": f"sqlite:///{folder}/jobs.db"},
    "postgresql": lambda _: {"url": postgres.database()},
    "redis shards": lambda _: {"url": f"{valkey.url()}?ns={next(_names)}&shards=3"},
    "redis cluster": lambda _: {"url": f"{cluster.shared().url}?ns={next(_names)}"},
    "server": lambda _: {"url": memory_url(None)},
    "ports": lambda _: {"ports": memory_backend()},
}


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return a_database("sqlite", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORAGES)
@shows("an outbox delivers to every kind of storage")
async def test_an_outbox_delivers_to_every_storage(
    data: Data, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.outbox.relay.PAGE", 20)
    app = App(outbox=Outbox(data.url), **STORAGES[kind](tmp_path))

    @app.task(name="mail")
    async def mail(to: str) -> int:
        return len(to)

    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        with closing(data.connect()) as db:
            small = await app.enqueue(mail.job("ada"), within=db)
            large = await app.enqueue(mail.job(LARGE), within=db)
            chosen = await app.enqueue(mail.options(id=f"order-{tmp_path.name}", key="k").job("eve"), within=db)
            members = await app.enqueue([mail.job(str(n)) for n in range(70)], within=db)
            last = await app.enqueue(mail.options(after=[members[0], large]).job("last"), within=db)
            db.commit()
        assert await relayed(app) == 74
        assert await relayed(app) == 0
        async with Worker(app):
            assert await small.result(60) == 3
            assert await large.result(60) == len(LARGE)
            assert await chosen.result(60) == 3
            assert await members[-1].result(60) == 2
            assert await last.result(60) == 4
        assert (await app.outbox.stats()).rows == 0


@shows("an outbox delivers in smaller steps what is too large for one request to a Treadle server")
async def test_a_page_that_is_too_large_for_the_server(data: Data) -> None:
    app = App(memory_url(None, Settings(max_body=2**20)), outbox=Outbox(data.url))

    @app.task(name="mail")
    async def mail(to: str) -> int:
        return len(to)

    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        with closing(data.connect()) as db:
            for _ in range(40):
                await app.enqueue(mail.job("x" * 100_000), within=db)
            poison = await app.enqueue(mail.job("x" * 2**20), within=db)
            db.commit()
        assert await relayed(app) == 40
        [refused] = await app.outbox.list()
        assert (refused.id, refused.tries) == (poison.id, 1)
