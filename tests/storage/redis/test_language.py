"""A server with a locale of its own, as distributions may start it: ids are compared by their bytes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.servers import valkey
from treadle.core.model import Claim
from treadle.core.query_model import Query
from treadle.storage.memory import MemoryStorage
from treadle.storage.redis import RedisStorage
from treadle.testing import HandClock
from treadle_testkit.conformance.kit import done, job

IDS = ("B", "a", "a-c", "ab", "A", "b", "a.b", "Ab", "cron:x", "Cron", "0190-1", "01901")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[valkey.Valkey]:
    """A server that sorts like an English dictionary."""
    folder: Path = tmp_path_factory.mktemp("languages")
    made = shutil.which("localedef") and subprocess.run(
        ["localedef", "-i", "en_US", "-f", "UTF-8", str(folder / "en_US.UTF-8")], capture_output=True, check=False
    )
    if not made or not (folder / "en_US.UTF-8" / "LC_COLLATE").exists():
        pytest.skip("this system cannot make the language en_US")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCPATH", str(folder))
        patch.setenv("LC_ALL", "en_US.UTF-8")
        started = valkey.Valkey().start()
    try:
        if started.do("EVAL", "return 'B' < 'a' and 1 or 0", 0) == 1:
            pytest.skip("this server knows no languages")
        yield started
    finally:
        started.close()


@pytest.fixture
async def pair(server: valkey.Valkey) -> AsyncIterator[tuple[MemoryStorage, RedisStorage]]:
    clock = HandClock()
    redis = RedisStorage(server.url, now=clock)
    await redis.open()
    yield MemoryStorage(clock), redis
    await redis.close()


@pytest.mark.slow
async def test_pages_and_claims_by_name(pair: tuple[MemoryStorage, RedisStorage]) -> None:
    """All jobs have one creation time, so their ids decide the order: in pages by creation and by ending, and in
    claims."""
    told = []
    for storage in pair:
        await storage.enqueue([job(id) for id in IDS])
        made = [await _pages(storage, order) for order in ("newest", "oldest")]
        named = await storage.claim(Claim(worker="w#1", queues=(), ids=IDS[:6], limit=6))
        await storage.settle([done(row) for row in named.records])
        rest = await storage.claim(Claim(worker="w#2", limit=9))
        await storage.settle([done(row) for row in rest.records])
        told.append(
            (
                made,
                [row.job.id for row in named.records],
                [row.job.id for row in rest.records],
                await _pages(storage, "ended"),
            )
        )
    assert told[0] == told[1]
    assert told[0][0][1] == sorted(IDS)


async def _pages(storage: MemoryStorage | RedisStorage, order: str) -> list[str]:
    cursor, found = None, list[str]()
    while len(found) <= len(IDS):
        page = await storage.find(Query(order=order, limit=1, cursor=cursor))
        found += [row.job.id for row in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    return found
