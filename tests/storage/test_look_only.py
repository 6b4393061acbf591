"""A storage that is opened only to be read: it answers as usual, and is byte for byte the same afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import psycopg
import pytest
import redis
from click.testing import CliRunner
from psycopg import sql

from tests.servers import valkey
from tests.storage.moving_kit import made, populate, url_of
from tests.storage.postgres import support as postgres
from treadle import SchemaTooNew, SchemaTooOld, StorageDenied
from treadle.cli.root import run, treadle
from treadle.core.model import Claim, LeaseRenewal, NewJob, Presence, State
from treadle.core.query_model import MetricsRow, Query
from treadle.errors import StorageError, Unsupported
from treadle.ports import Ports, memory_backend
from treadle.storage import connect
from treadle.storage.capabilities import movable
from treadle.storage.composed import ComposedStorage
from treadle.storage.contract import Storage
from treadle.storage.look_only import READS, LookOnly
from treadle.storage.postgres import PostgresStorage
from treadle.testing import HandClock
from treadle_testkit.shows import shows

KINDS = ("sqlite", "postgres", "redis", "shards")
OPEN = (State.WAITING, State.READY, State.RUNNING)


def _options(url: str) -> dict[str, str]:
    return dict(parse_qsl(urlsplit(url).query))


def contents(kind: str, url: str) -> Any:
    """All bytes of the storage: files, keys, or rows with the transactions that wrote them."""
    if kind == "sqlite":
        path = Path(urlsplit(url).path.removeprefix("/"))
        found = {each.name: each for each in path.parent.iterdir() if not each.name.endswith("-shm")}
        return {name: (each.stat().st_mtime_ns, each.read_bytes()) for name, each in found.items() if each.is_file()}
    if kind == "postgres":
        return _rows(_options(url)["schema"])
    server = redis.Redis.from_url(valkey.url())
    try:
        names = sorted(server.scan_iter(match=f"{{treadle:{_options(url)['ns']}*"))
        return {name: server.dump(name) for name in names}
    finally:
        server.close()


def _rows(schema: str) -> dict[str, list[Any]]:
    admin = postgres.admin()
    tables = admin.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = %s::regnamespace AND relkind = 'r' ORDER BY 1", (schema,)
    ).fetchall()
    found = {
        name: admin.execute(
            sql.SQL("SELECT t.xmin::text, t.xmax::text, t.ctid::text, t::text FROM {} t ORDER BY t.ctid").format(
                sql.Identifier(schema, name)
            )
        ).fetchall()
        for (name,) in tables
    }
    functions = "SELECT xmin::text, proname FROM pg_proc WHERE pronamespace = %s::regnamespace ORDER BY oid"
    return found | {"functions": admin.execute(functions, (schema,)).fetchall()}


async def told(storage: Storage) -> dict[str, Any]:
    """The results of the reading verbs."""
    pages = {}
    for name, query in {
        "unfinished": Query(state=OPEN, order="oldest", limit=500),
        "newest": Query(limit=30, count=True),
        "due": Query(order="due", limit=30),
        "queue": Query(order="queue", limit=30),
        "failed": Query(state=(State.FAILED,), order="ended", limit=30),
    }.items():
        page = await storage.find(query)
        pages[name] = page.records, page.cursor, page.total
    bounded = await storage.find(Query(task="failed", order="oldest", limit=500, scan=10_000))
    whole = movable(storage, "it")
    chunk = await whole.unload(None, 10_000)
    stats, glance = await storage.stats(), await storage.glance()
    return {
        **pages,
        "bounded": bounded.records,
        "rows": await storage.get([row.id for row in pages["newest"][0]] + ["unknown"]),
        "counts": {
            (each.queue, each.task, each.state): (each.jobs, each.queued, each.blocked) for each in stats.counts
        },
        "workers": [each.worker for each in stats.workers],
        "limits": [(use.key, use.used, use.blocked, use.starts) for use in await storage.limits()],
        "glance": [(q.name, q.queued, q.running, q.scheduled, q.blocked, q.waiting, q.failed) for q in glance.queues],
        "seen": ([each.worker for each in glance.workers], [use.key for use in glance.limits]),
        "jobs": {each.record.id: each.record for each in chunk.jobs},
        "metrics": await storage.read_metrics(0.0, 2e9),
        "mark": await whole.read_mark(),
    }


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_counts_are_compared_without_writing(kind: str, tmp_path: Path) -> None:
    url, _ = await filled(kind, tmp_path)
    before = contents(kind, url)
    storage = LookOnly(connect(url))
    async with _opened(storage):
        assert await storage.recount() == ()
    assert contents(kind, url) == before


async def filled(kind: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """A closed storage with jobs of every kind, and what its verbs return."""
    url = url_of(kind, folder)
    storage = connect(url)
    await storage.open()
    await populate(storage, 66, queue=None if kind == "shards" else 1)
    await storage.store_metrics([MetricsRow(at=60.0, span=60.0, source="w", data=b"{}")])
    await storage.heartbeat(Presence(worker="w", host="h", queues=("default",)), (), 60.0)
    before = await told(storage)
    await storage.close()
    return url, before


@shows("a storage opened only to be read answers as usual, and is byte for byte the same afterwards")
@pytest.mark.parametrize("kind", KINDS)
async def test_reading_changes_no_byte(kind: str, tmp_path: Path) -> None:
    url, before = await filled(kind, tmp_path)
    bytes_before = contents(kind, url)
    storage = LookOnly(connect(url))
    await storage.open()
    await storage.open()
    assert await told(storage) == before
    await storage.close()
    assert contents(kind, url) == bytes_before


@pytest.mark.parametrize("kind", ["memory", *KINDS])
async def test_verbs_that_could_write_are_refused(kind: str, tmp_path: Path) -> None:
    inner = await made(kind, tmp_path)
    await inner.close()
    storage = LookOnly(inner)
    async with _opened(storage):
        for verb, call in _writes(storage).items():
            with pytest.raises(Unsupported, match=f"opened only to be read does not support {verb}"):
                await call()
        assert await storage.watch(["queue:q"], 0.0) == set()
        assert not storage.capabilities.hand_off
        assert not storage.capabilities.transactions
        assert READS.isdisjoint(_writes(storage))


def _writes(storage: LookOnly) -> dict[str, Callable[[], Awaitable[Any]]]:
    async def within() -> None:
        storage.within(None)

    async def post() -> None:
        storage.post(lambda id, row: None)

    return {
        "enqueue": lambda: storage.enqueue([NewJob(id="a")]),
        "claim": lambda: storage.claim(Claim(worker="w#1")),
        "settle": lambda: storage.settle([]),
        "settle_claim": lambda: storage.settle_claim([], Claim(worker="w#1")),
        "heartbeat": lambda: storage.heartbeat(Presence(worker="w"), [LeaseRenewal("a", 1)], 9.0),
        "set_limits": lambda: storage.set_limits([]),
        "recount": lambda: storage.recount(repair=True),
        "prune": lambda: storage.prune(9),
        "store_metrics": lambda: storage.store_metrics([]),
        "within": within,
        "post": post,
    }


class _opened:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def __aenter__(self) -> Storage:
        await self._storage.open(look=True)
        return self._storage

    async def __aexit__(self, *_: object) -> None:
        await self._storage.close()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_storage_that_does_not_exist_is_not_created(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    with pytest.raises(
        SchemaTooOld, match=r"does not exist yet, or has nothing of Treadle.*treadle storage migrate"
    ) as caught:
        await connect(url).open(look=True)
    assert caught.value.found == 0
    assert os.listdir(tmp_path) == []
    if kind == "postgres":
        schema = _options(url)["schema"]
        assert postgres.admin().execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() == (None,)
    elif kind != "sqlite":
        assert contents(kind, url) == {}


async def test_ports_without_jobs_have_nothing_to_read() -> None:
    ports = Ports(*memory_backend(HandClock()))
    with pytest.raises(SchemaTooOld):
        await ComposedStorage(ports).open(look=True)
    storage = ComposedStorage(ports)
    await storage.open()
    await storage.enqueue([NewJob(id="a", task="t")])
    await storage.close()
    storage = ComposedStorage(ports)
    async with _opened(storage):
        assert (await storage.get(["a"]))[0] is not None
        assert not storage._notifier.is_listening


# --- the commands


@shows("`treadle doctor` and `treadle storage migrate --check` change no byte of the storage")
@pytest.mark.parametrize("kind", KINDS)
def test_doctor_and_the_check_of_migrations_change_no_byte(kind: str, tmp_path: Path) -> None:
    url = url_of(kind, tmp_path)
    assert run(["storage", "migrate", "--check", "--url", url]) == 3
    run(["doctor", "--url", url])
    assert os.listdir(tmp_path) == []
    url, _ = asyncio.run(filled(kind, tmp_path))
    before = contents(kind, url)
    assert run(["storage", "migrate", "--check", "--url", url]) == 0
    ended = CliRunner().invoke(treadle, ["doctor", "--url", url, "--json"])
    found = {check["name"]: check["verdict"] for check in json.loads(ended.stdout)}
    assert found["storage"] == "ok"
    assert contents(kind, url) == before


# --- SQLite


async def test_a_file_that_may_not_be_written_is_read(tmp_path: Path) -> None:
    url, before = await filled("sqlite", tmp_path)
    for name in os.listdir(tmp_path):
        os.chmod(tmp_path / name, 0o400)
    os.chmod(tmp_path, 0o500)
    try:
        async with _opened(connect(url)) as storage:
            assert await told(storage) == before
    finally:
        os.chmod(tmp_path, 0o700)


async def test_a_file_in_use_is_read_with_its_log(tmp_path: Path) -> None:
    url, _ = await filled("sqlite", tmp_path)
    worker, storage = connect(url), connect(url)
    await worker.open()
    await worker.enqueue([NewJob(id="in-the-log", task="t")])
    before = contents("sqlite", url)
    assert any(name.endswith("-wal") and data for name, (_, data) in before.items())
    async with _opened(storage):
        assert (await storage.get(["in-the-log"]))[0] is not None
        await worker.enqueue([NewJob(id="later", task="t")])
        assert (await storage.get(["later"]))[0] is not None
        before = contents("sqlite", url)
        assert (await storage.stats()).counts
    assert contents("sqlite", url) == before
    await worker.close()


async def test_a_file_that_gets_a_log_while_it_is_read_is_followed(tmp_path: Path) -> None:
    url, _ = await filled("sqlite", tmp_path)
    async with _opened(connect(url)) as storage:
        assert (await storage.get(["new"]))[0] is None
        worker = connect(url)
        await worker.open()
        await worker.enqueue([NewJob(id="new", task="t")])
        assert (await storage.get(["new"]))[0] is not None
        await worker.enqueue([NewJob(id="newer", task="t")])
        await worker.close()
        assert [row.id for row in (await storage.find(Query(limit=1))).records] == ["newer"]


async def test_a_file_of_an_older_or_newer_treadle_is_named(tmp_path: Path) -> None:
    url, _ = await filled("sqlite", tmp_path)
    path = urlsplit(url).path.removeprefix("/")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE migration SET number = 99 WHERE number = (SELECT max(number) FROM migration)")
    db.close()
    with pytest.raises(SchemaTooNew):
        await connect(url).open(look=True)
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM migration")
    db.close()
    with pytest.raises(SchemaTooOld):
        await connect(url).open(look=True)


# --- PostgreSQL


def _role(schema: str, *grants: str) -> str:
    name = f"look_{os.getpid()}_{os.urandom(3).hex()}"
    admin, own = postgres.admin(), sql.Identifier(name)
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'pw'").format(own))
    for grant in grants:
        admin.execute(sql.SQL("GRANT " + grant + " TO {role}").format(schema=sql.Identifier(schema), role=own))
    return name


READING = ("USAGE ON SCHEMA {schema}", "SELECT ON ALL TABLES IN SCHEMA {schema}")


def _as(role: str, url: str) -> str:
    parts = urlsplit(url)
    return parts._replace(netloc=f"{role}:pw@{parts.netloc.rpartition('@')[2]}").geturl()


async def test_a_role_with_select_only_is_enough(tmp_path: Path) -> None:
    url, before = await filled("postgres", tmp_path)
    role = _role(_options(url)["schema"], *READING)
    async with _opened(connect(_as(role, url))) as storage:
        assert await told(storage) == before
    async with _opened(PostgresStorage(_as(role, url))) as storage:
        assert isinstance(storage, PostgresStorage)
        with pytest.raises(StorageError, match=r"read-only|denied"):
            await storage.enqueue([NewJob(id="a", task="t")])


async def test_a_role_without_rights_is_refused(tmp_path: Path) -> None:
    url, _ = await filled("postgres", tmp_path)
    role = _role(_options(url)["schema"])
    with pytest.raises(StorageDenied):
        await connect(_as(role, url)).open(look=True)


async def test_a_schema_without_the_functions_of_this_version_is_read(tmp_path: Path) -> None:
    """As a check before a deployment does: the functions of the new version do not exist yet."""
    url, before = await filled("postgres", tmp_path)
    schema = _options(url)["schema"]
    admin = postgres.admin()
    drops = admin.execute(
        "SELECT format('DROP FUNCTION %%I.%%I(%%s) CASCADE', %s::text, proname, "
        "pg_get_function_identity_arguments(oid)) "
        "FROM pg_proc WHERE pronamespace = %s::regnamespace",
        (schema, schema),
    ).fetchall()
    for (drop,) in drops:
        admin.execute(drop)
    admin.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(schema, "function_set")))
    after = contents("postgres", url)
    async with _opened(connect(url)) as storage:
        assert await told(storage) == before
        assert await storage.recount() == ()
    assert contents("postgres", url) == after


async def test_a_schema_that_must_be_migrated_is_named(tmp_path: Path) -> None:
    url, _ = await filled("postgres", tmp_path)
    schema = _options(url)["schema"]
    with psycopg.connect(autocommit=True, conninfo=url.partition("?")[0]) as db:
        db.execute(sql.SQL("UPDATE {} SET number = number - 1").format(sql.Identifier(schema, "migration")))
    with pytest.raises(SchemaTooOld, match="run `treadle storage migrate`"):
        await connect(url).open(look=True)


# --- Redis


@pytest.mark.parametrize("kind", ["redis", "shards"])
async def test_a_user_that_may_only_read_is_enough(kind: str, tmp_path: Path) -> None:
    url, before = await filled(kind, tmp_path)
    server = redis.Redis.from_url(valkey.url())
    rights = ("+@read", "+@connection", "+eval_ro", "+evalsha_ro", "+time", "+info")
    server.execute_command(
        "ACL", "SETUSER", "looker", "on", ">pw", "resetkeys", "resetchannels", "%R~{treadle:*", "-@all", *rights
    )
    server.close()
    async with _opened(connect(url.replace("redis://", "redis://looker:pw@"))) as storage:
        assert await told(storage) == before
