"""An app that opens a storage which may lose jobs logs that, once, and works."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from msgspec.structs import replace

from tests.servers import postgres, valkey
from treadle import App, StorageDenied, StorageError, Worker
from treadle.server.auth.tokens import ANYBODY, Token
from treadle.server.longpoll import LongPoll
from treadle.server.overview import Looks
from treadle.storage.contract import Capabilities
from treadle.storage.memory import MemoryStorage
from treadle.storage.optional_parts import Risk
from treadle.storage.proxy import StorageProxy

Messages = Callable[[], list[str]]
SAFE = {"appendonly": "yes", "appendfsync": "everysec", "maxmemory": "0", "maxmemory-policy": "noeviction"}


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Messages:
    """The lines about risks since the last call."""
    caplog.set_level(logging.WARNING, "treadle.risks")

    def lines() -> list[str]:
        found = [each.getMessage() for each in caplog.records if each.name == "treadle.risks"]
        caplog.clear()
        return found

    return lines


@pytest.fixture(scope="module")
def server() -> Iterator[valkey.Valkey]:
    with valkey.Valkey() as server:
        yield server


def configure(server: valkey.Valkey, **settings: str) -> None:
    for name, value in {**SAFE, **{name.replace("_", "-"): value for name, value in settings.items()}}.items():
        server.do("CONFIG", "SET", name, value)


def as_user(server: valkey.Valkey, *without: str) -> str:
    """The URL of a user who may do everything else."""
    name = "u" + "".join(each for each in "".join(without) if each.isalpha())
    server.do("ACL", "SETUSER", name, "on", ">pw", "allkeys", "allchannels", "+@all", *without)
    return server.url.replace("redis://", f"redis://{name}:pw@")


async def opened(url: str) -> App:
    async with App(url) as app:
        return app


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"maxmemory_policy": "allkeys-lru", "maxmemory": "1gb"}, "drops keys, and any number of jobs"),
        ({"maxmemory_policy": "allkeys-lfu"}, "would drop keys if a maxmemory were set"),
        ({"appendonly": "no", "save": ""}, "when it ends, every job is lost"),
        ({"appendonly": "no", "save": "900 1"}, "since the last snapshot are lost"),
        ({"appendfsync": "no"}, "half a minute of changes"),
    ],
)
async def test_a_server_that_may_lose_jobs_is_named_once(
    server: valkey.Valkey, said: Messages, settings: dict[str, str], says: str
) -> None:
    configure(server, **settings)
    app = await opened(server.url)
    [line] = said()
    assert says in line
    async with app, Worker(app):
        assert said() == []


async def test_all_risks_are_in_one_line(server: valkey.Valkey, said: Messages) -> None:
    configure(server, maxmemory_policy="allkeys-lru", maxmemory="1gb", appendonly="no", save="")
    await opened(server.url)
    [line] = said()
    assert "drops keys" in line
    assert "every job is lost" in line


@pytest.mark.parametrize("without", [(), ("-info",), ("-config",)])
async def test_a_server_without_risks_and_one_that_forbids_the_look_log_nothing(
    server: valkey.Valkey, said: Messages, without: tuple[str, ...]
) -> None:
    configure(server)
    app = await opened(as_user(server, *without) if without else server.url)
    assert said() == []
    assert (await app.queues.stats()).counts == ()
    await app.close()


async def test_an_eviction_policy_is_seen_without_the_right_to_read_settings(
    server: valkey.Valkey, said: Messages
) -> None:
    configure(server, maxmemory_policy="allkeys-lru", maxmemory="1gb")
    await opened(as_user(server, "-config"))
    assert "drops keys" in said()[0]


async def test_each_server_of_the_shards_is_looked_at(server: valkey.Valkey, said: Messages) -> None:
    configure(server, maxmemory_policy="allkeys-lru", maxmemory="1gb")
    await opened(f"{server.url}?ns=three&shards=3")
    [line] = said()
    assert line.count("drops keys") == 1


async def test_postgresql_without_syncs_and_with_tables_that_a_crash_empties(said: Messages) -> None:
    url = postgres.database()
    await opened(url)
    [line] = said()
    assert "fsync is off: a crash of the machine may destroy the database" in line
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("ALTER TABLE treadle.metrics SET UNLOGGED")
    await opened(url)
    assert "the server keeps no log of metrics: after a crash of it they are empty" in said()[0]


async def test_sqlite_on_a_network_file_system(tmp_path: Path, said: Messages, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened(f"sqlite:///{tmp_path}/jobs.db")
    assert said() == []
    monkeypatch.setattr("treadle.storage.sqlite.risks.file_system", lambda folder: "nfs4")
    await opened(f"sqlite:///{tmp_path}/jobs.db")
    assert "nfs4 is a network file system" in said()[0]


async def test_a_deleted_database_is_logged_when_a_new_file_is_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await opened(f"sqlite:///{tmp_path}/jobs.db")
    assert not caplog.messages
    (tmp_path / "jobs.db").unlink()
    await opened(f"sqlite:///{tmp_path}/jobs.db")
    [line] = caplog.messages
    assert "jobs.db was deleted with its jobs" in line
    await opened(f"sqlite:///{tmp_path}/other.db")
    assert len(caplog.messages) == 1


class Odd(StorageProxy):
    """A storage whose look raises this error, or never ends."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__(MemoryStorage())
        self._error, self.looks = error, 0

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.storage.capabilities, risks=True)

    async def risks(self) -> Sequence[Risk]:
        self.looks += 1
        if self._error is None:
            await asyncio.Event().wait()
            raise AssertionError
        raise self._error


@pytest.mark.parametrize("error", [None, StorageError("no"), StorageDenied("no")])
async def test_a_look_that_fails_or_hangs_fails_nothing(
    said: Messages, error: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.storage.risks.PATIENCE", 0.05)
    odd = Odd(error)
    async with App(storage=odd) as app:
        assert (await app.queues.stats()).counts == ()
    assert (odd.looks, said()) == (1, [])


async def test_a_silenced_logger_saves_the_look(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "treadle.risks")
    odd = Odd(None)
    async with App(storage=odd):
        assert odd.looks == 0


async def test_an_app_that_only_reads_logs_no_risk(said: Messages) -> None:
    url = postgres.database()
    await opened(url)
    assert len(said()) == 1
    app = App(url)
    with app._core.looking():
        async with app:
            assert (await app.queues.stats()).counts == ()
    assert said() == []


async def test_the_overview_names_the_risks(server: valkey.Valkey) -> None:
    configure(server, maxmemory_policy="allkeys-lru", maxmemory="1gb")
    async with App(server.url) as app:
        looks = Looks(app._core, LongPoll(lambda: app._core.storage))
        [notice] = (await looks.overview(ANYBODY)).notices
        assert notice.level == "error"
        assert notice.text.startswith("Jobs may be lost: allkeys-lru: when memory is full")
        assert notice.advice.startswith("CONFIG SET maxmemory-policy noeviction")
        bound = Token(name="t", digest="", scopes=("read",), queues=("q",))
        assert not (await looks.overview(bound)).notices
