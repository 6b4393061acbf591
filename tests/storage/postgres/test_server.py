"""Failures between Treadle and the server: it is down, slow, or refuses, or another program holds a lock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from tests.servers.postgres import Postgres
from tests.storage.postgres import support
from tests.storage.postgres.support import done, job, life
from tests.waiting import turn, until
from treadle import App, Worker
from treadle.core.model import Claim, Presence
from treadle.core.query_model import Query
from treadle.errors import BadUrl, Locked, StorageDenied, StorageError, StorageFull, StorageUnavailable
from treadle.storage import connect
from treadle.storage.postgres import PostgresStorage, vacuum
from treadle.storage.postgres.errors import refusal
from treadle_testkit.proxy import Proxy


@pytest.fixture
def schema() -> Iterator[str]:
    with support.a_schema() as name:
        yield name


@pytest.fixture
async def storage(schema: str) -> AsyncIterator[PostgresStorage]:
    made = PostgresStorage(support.url_of(schema))
    await made.open()
    yield made
    await made.close()


def through(proxy: Proxy, schema: str, **options: object) -> str:
    port = support.postgres.shared().port
    return support.url_of(schema, **options).replace(f":{port}/", f":{proxy.port}/")


@pytest.fixture
def own() -> Iterator[Postgres]:
    """A server for one test."""
    with Postgres() as server:
        yield server


def end_connections(schema: str, which: str = "true") -> int:
    """Cut its connections as an administrator does. Return how many there were."""
    found = support.admin().execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND "
        f"pid <> pg_backend_pid() AND {which}".encode(),
        (schema,),
    )
    return len(found.fetchall())


@pytest.fixture
async def named(schema: str) -> AsyncIterator[PostgresStorage]:
    """A storage whose connections are named like its schema, which distinguishes them from others."""
    made = PostgresStorage(support.url_of(schema, application_name=schema))
    await made.open()
    yield made
    await made.close()


async def test_the_clock_is_the_servers(storage: PostgresStorage) -> None:
    before = time.time()
    [row] = await storage.enqueue([job("a")])
    assert before - 5 < row.created_at < time.time() + 5
    assert await storage.get(["a"]) == [row]


async def test_idle_connections_that_died_are_replaced(named: PostgresStorage, schema: str) -> None:
    """No caller gets an error, because every verb may be repeated."""
    await asyncio.gather(*(named.enqueue([job(id)]) for id in "abc"))
    assert end_connections(schema) > 1
    await named.enqueue([job("d")])
    assert len((await named.find(Query())).records) == 4


async def heard(storage: PostgresStorage) -> set[str]:
    """The topics of a hint of this storage's own, which it gets only while it listens."""
    watch = asyncio.create_task(storage.watch(["queue:default"], 0.2))
    await asyncio.sleep(0)
    await storage.enqueue([job(f"j{time.monotonic_ns()}")])
    return await watch


async def test_hints_arrive_again_after_a_lost_connection(named: PostgresStorage, schema: str) -> None:
    mine = "query LIKE 'LISTEN%%' OR query LIKE '%%pg_advisory_lock_shared%%' OR query LIKE '%%pg_notify%%'"
    assert end_connections(schema, f"({mine} OR query = 'SELECT 1')") == 1
    await until(lambda: heard(named), "a hint")


async def test_a_storage_without_listening_runs_jobs(schema: str) -> None:
    storage = connect(support.url_of(schema, listen="off"))
    await storage.open()
    watch = asyncio.create_task(storage.watch(["queue:default"], 0.05))
    await life(storage, "a")
    assert await watch == set()
    await storage.close()


async def test_the_listener_connects_to_the_server_itself(schema: str) -> None:
    """The listener connects to the server itself; other connections go through a pooler."""
    where = support.url_of(schema).partition("@")[2].partition("/")[0]
    storage = PostgresStorage(support.url_of(schema, listen=where))
    await storage.open()
    watch = asyncio.create_task(storage.watch(["queue:default"], 10))
    await asyncio.sleep(0)
    await storage.enqueue([job("a")])
    assert await watch == {"queue:default"}
    await storage.close()


async def test_an_open_without_a_server_raises() -> None:
    away = PostgresStorage("postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(StorageUnavailable, match=r"127\.0\.0\.1") as caught:
        await away.open()
    assert "secret" not in str(caught.value)
    await away.close()


@pytest.mark.slow
async def test_a_server_that_stops_and_comes_back(own: Postgres) -> None:
    storage = PostgresStorage(own.url)
    await storage.open()
    await storage.enqueue([job("a")])
    own.stop()
    with pytest.raises(StorageUnavailable):
        await storage.claim(Claim(worker="w#1"))
    with pytest.raises(StorageUnavailable):
        await storage.get(["a"])
    # No error. It may return the topic: with the connection that was lost, a hint may have been missed.
    assert await storage.watch(["queue:default"], 0.01) <= {"queue:default"}
    own.start()
    claimed = await storage.claim(Claim(worker="w#1"))
    assert [row.id for row in claimed.records] == ["a"]
    await until(lambda: heard(storage), "a hint")
    await storage.close()


@pytest.mark.slow
async def test_a_restart_between_two_calls_is_not_noticed(own: Postgres) -> None:
    storage = PostgresStorage(own.url)
    await storage.open()
    await life(storage, "a")
    own.restart()
    await life(storage, "b")
    await storage.close()


@pytest.mark.slow
async def test_a_call_in_a_silent_network_fails_soon(schema: str) -> None:
    """The connection is given up; when the network is back, calls work again."""
    async with Proxy("127.0.0.1", support.postgres.shared().port) as proxy:
        storage = PostgresStorage(through(proxy, schema, timeout=1, connect_timeout=2))
        await storage.open()
        await storage.enqueue([job("a")])
        proxy.swallow()
        with pytest.raises(StorageUnavailable, match="no answer within"):
            await storage.get(["a"])
        with pytest.raises(StorageUnavailable, match=r"no connection|no answer|timeout"):
            await storage.claim(Claim(worker="w#1"))
        proxy.flow()
        claimed = await storage.claim(Claim(worker="w#1"))
        assert [row.id for row in claimed.records] == ["a"]
        await storage.close()


async def test_a_call_whose_answer_is_lost_is_repeated(schema: str) -> None:
    """The call returns the result of its first execution."""
    async with Proxy("127.0.0.1", support.postgres.shared().port) as proxy:
        storage = PostgresStorage(through(proxy, schema))
        await storage.open()
        await storage.enqueue([job("a"), job("b")])
        cut = proxy.lose_answer(b"w#1")
        claimed = await storage.claim(Claim(worker="w#1"))
        assert cut.done
        assert [(row.id, row.version) for row in claimed.records] == [("a", 1)]
        cut = proxy.lose_answer(b'"a"')
        assert [each.status for each in await storage.settle([done(claimed.records[0])])] == ["applied"]
        assert cut.done
        await storage.close()


async def test_a_cancelled_call_leaves_no_answer_behind(storage: PostgresStorage) -> None:
    """The next caller must not read another caller's answer."""
    await storage.enqueue([job("a")])
    for turns in range(20):
        call = asyncio.create_task(storage.get(["a"]))
        await turn(turns % 5)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert await storage.get(["none"]) == [None]


async def test_a_call_that_takes_too_long_is_ended_on_the_server(schema: str) -> None:
    """It must not hold locks for a caller that has given up."""
    storage = PostgresStorage(support.url_of(schema, timeout=1, application_name=schema))
    await storage.open()
    with pytest.raises(StorageUnavailable, match="57014"):
        await storage._pool.run("SELECT pg_sleep(60)", [])
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"
    assert support.admin().execute(query, (schema,)).fetchone() == (0,)
    await storage.close()


async def test_a_deadlock_is_undone_and_tried_again(storage: PostgresStorage) -> None:
    text = "SELECT pg_advisory_xact_lock(%s::int), pg_sleep(0.2), pg_advisory_xact_lock(%s::int)"
    cross_shard = storage._pool.run(text, [771, 772]), storage._pool.run(text, [772, 771])
    assert [len(rows) for rows in await asyncio.gather(*cross_shard)] == [1, 1]


async def test_a_standby_is_unavailable_until_it_is_the_primary() -> None:
    """A connection to a server that cannot write is given up: the next one may find the new primary."""
    database = support.postgres.database()
    storage = PostgresStorage(database)
    await storage.open()
    name = database.rpartition("/")[2]
    support.admin().execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on".encode())
    try:
        storage._pool.drop_free()
        with pytest.raises(StorageUnavailable, match="standby"):
            await storage.enqueue([job("a")])
        assert await storage.get(["a"]) == [None]
    finally:
        support.admin().execute(f"ALTER DATABASE {name} RESET default_transaction_read_only".encode())
    await life(storage, "a")
    await storage.close()


async def test_no_connection_to_spare(schema: str) -> None:
    role = f"r{schema}"
    support.admin().execute(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0".encode())
    storage = PostgresStorage(support.url_of(schema).replace("postgres@", f"{role}@"))
    with pytest.raises(StorageUnavailable, match="too many connections"):
        await storage.open()
    support.admin().execute(f"DROP ROLE {role}".encode())


@pytest.mark.slow
async def test_a_wrong_password_is_not_shown(own: Postgres) -> None:
    with psycopg.connect(own.url, autocommit=True) as admin:
        admin.execute("CREATE ROLE me LOGIN PASSWORD 'right'")
        (own.folder / "data/pg_hba.conf").write_text("host all all all scram-sha-256\n")
        admin.execute("SELECT pg_reload_conf()")
    with psycopg.connect(own.url.replace("postgres@", "me:right@")):
        pass
    storage = PostgresStorage(own.url.replace("postgres@", "me:wrongone@"))
    with pytest.raises(StorageError, match="check the password") as caught:
        await storage.open()
    assert "wrongone" not in str(caught.value)
    assert not isinstance(caught.value, StorageUnavailable), "a worker would try again for ever"
    with pytest.raises(StorageError, match="check the password"):
        async with asyncio.timeout(30):
            await Worker(App(own.url.replace("postgres@", "me:wrongone@"))).run()


async def test_the_pool_is_never_larger_than_its_size(schema: str) -> None:
    storage = PostgresStorage(support.url_of(schema, pool=2, application_name=schema))
    await storage.open()
    most = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    rows = await asyncio.gather(*(storage._pool.run(most, [schema]) for _ in range(30)))
    assert max(count for [(count,)] in rows) <= 3  # including the one that listens
    await storage.close()


async def test_a_changed_table_causes_a_new_connection(storage: PostgresStorage, schema: str) -> None:
    """A prepared statement outlives the table it was prepared for."""
    support.admin().execute(f"CREATE TABLE IF NOT EXISTS {schema}.own (a int)".encode())
    text = "SELECT * FROM {schema}.own"
    for _ in range(3):
        assert await storage._pool.run(text, []) == []
    support.admin().execute(f"ALTER TABLE {schema}.own ADD b int".encode())
    assert await storage._pool.run(text, []) == []
    support.admin().execute(f"DROP TABLE {schema}.own".encode())


async def test_prepare_off_leaves_nothing_in_the_session(schema: str) -> None:
    """Each transaction makes the settings that its statements need."""
    storage = PostgresStorage(support.url_of(schema, prepare="off", pool=1))
    await storage.open()
    for id in "abc":
        await life(storage, id)
    [line] = storage._pool._free
    said = (
        "SELECT (SELECT count(*) FROM pg_prepared_statements), current_setting('statement_timeout'),"
        " current_setting('extra_float_digits')"
    )
    assert await storage._pool.run(said, []) == [(0, "15s", "1")]
    line.raw.pgconn.exit_pipeline_mode()
    result = line.raw.pgconn.exec_(said.encode())
    assert [result.get_value(0, column) for column in range(3)] == [b"0", b"0", b"1"]
    await storage.close()


@pytest.mark.parametrize("prepare", ["off", "auto"])
async def test_a_cancelled_call_ends_at_the_server_too(schema: str, prepare: str) -> None:
    """Otherwise such calls pile up behind a lock."""
    storage = PostgresStorage(support.url_of(schema, prepare=prepare, timeout=1, listen="off", application_name=schema))
    await storage.open()
    with psycopg.connect(support.postgres.url()) as other:
        other.execute(f"LOCK TABLE {schema}.job".encode())
        calls = [storage.enqueue([job(f"j{n}")]) for n in range(4)]
        said = await asyncio.gather(*calls, return_exceptions=True)
        assert all("[57014]" in str(each) for each in said), said
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state <> 'idle'"
        assert support.admin().execute(query, (schema,)).fetchone() == (0,)
    assert [row.id for row in await storage.enqueue([job("after")])] == ["after"]
    await storage.close()


async def test_a_sweep_leaves_the_pool_free(schema: str) -> None:
    """With one connection, heartbeats continue while VACUUM waits or works."""
    storage = PostgresStorage(support.url_of(schema, pool=1, application_name=schema))
    await storage.open()
    with psycopg.connect(support.postgres.url()) as other:
        other.execute(f"SELECT pg_advisory_lock(1), count(*) FROM {schema}.job".encode())
        wait = asyncio.create_task(storage._pool.run_alone("SELECT pg_advisory_lock_shared(1)::text"))
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event = 'advisory'"
        await until(lambda: support.admin().execute(query, (schema,)).fetchone() == (1,), "a session that waits")
        await storage.heartbeat(Presence(worker="w"), [], 30)
        assert not wait.done()
    await wait
    await storage._sweeper._run()
    assert storage._sweeper._most == vacuum.MOST
    await storage.close()


def at_work(schema: str) -> int:
    """Statements of this application that the server is running."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND state = 'active'"
    [count] = support.admin().execute(query, (schema,)).fetchone() or [0]
    return int(count)


async def nothing_at_work(schema: str) -> None:
    await until(lambda: not at_work(schema), "no statement at the server", 5)


@pytest.mark.parametrize("prepare", ["off", "auto"])
@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_cancelled_single_statement_ends_at_the_server_too(schema: str, prepare: str, cancelled: bool) -> None:
    storage = PostgresStorage(support.url_of(schema, prepare=prepare, timeout=1, listen="off", application_name=schema))
    await storage.open()
    with psycopg.connect(support.postgres.url()) as other:
        other.execute("SELECT pg_advisory_lock(2)")
        wait = asyncio.create_task(storage._pool.run_alone("SELECT pg_advisory_lock_shared(2)::text"))
        if cancelled:
            await until(lambda: at_work(schema), "a statement at the server")
            wait.cancel()
        with pytest.raises(asyncio.CancelledError if cancelled else (StorageError, TimeoutError)):
            await wait
        await nothing_at_work(schema)
    await storage.close()


@pytest.mark.parametrize("prepare", ["off", "auto"])
async def test_a_vacuum_that_takes_too_long_is_cancelled(schema: str, prepare: str) -> None:
    """It counts as failed, so the server must not complete it."""
    slow = "-c vacuum_cost_delay=100 -c vacuum_cost_limit=1"  # ms for each page
    url = support.url_of(schema, prepare=prepare, timeout=1, listen="off", application_name=schema, options=slow)
    storage = PostgresStorage(url)
    await storage.open()
    await storage.enqueue([job(f"j{n}") for n in range(2_000)])
    await storage._sweeper._run()
    assert storage._sweeper._most == 2 * vacuum.FIRST
    await nothing_at_work(schema)
    await storage.close()


async def test_closing_ends_a_vacuum(schema: str) -> None:
    slow = "-c vacuum_cost_delay=100 -c vacuum_cost_limit=1"  # ms for each page
    storage = PostgresStorage(support.url_of(schema, listen="off", application_name=schema, options=slow))
    await storage.open()
    await storage.enqueue([job(f"j{n}") for n in range(2_000)])
    storage._sweeper._sweep = asyncio.create_task(storage._sweeper._run())
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'VACUUM%%'"
    await until(lambda: support.admin().execute(query, (schema,)).fetchone() == (1,), "a VACUUM at the server")
    await storage.close()
    await nothing_at_work(schema)


async def test_pages_of_a_role_that_rounds_numbers(schema: str) -> None:
    """Times keep all of their digits, so a page begins where the last one ended."""
    now = iter(1_700_000_000.0 + n / 1_000_000 for n in range(10_000))
    storage = PostgresStorage(support.url_of(schema, options="-c extra_float_digits=0"), now=lambda: next(now))
    await storage.open()
    for n in range(6):
        await life(storage, f"j{n}")
    found, cursor = list[str](), None
    for _ in range(9):
        page = await storage.find(Query(limit=1, order="ended", cursor=cursor))
        found += [row.id for row in page.records]
        cursor = page.cursor
        if cursor is None:
            break
    assert found == [f"j{n}" for n in reversed(range(6))]
    await storage.close()


async def test_another_default_isolation_does_not_matter() -> None:
    database = support.postgres.database()
    name = database.rpartition("/")[2]
    support.admin().execute(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable".encode())
    storage = PostgresStorage(database)
    await storage.open()
    await life(storage, "a")
    assert await storage._pool.run("SELECT current_setting('transaction_isolation')", []) == [("read committed",)]
    await storage.close()


async def test_more_callers_than_connections_are_served(storage: PostgresStorage) -> None:
    """More callers than connections."""
    await asyncio.gather(*(storage.enqueue([job(f"j{n}")]) for n in range(100)))
    taken = await asyncio.gather(
        *(storage.claim(Claim(worker=f"w{n}#1", queues=(("default", 10),), limit=10)) for n in range(20))
    )
    rows = [row for claimed in taken for row in claimed.records]
    rows += (await storage.claim(Claim(worker="last#1", queues=(("default", 100),), limit=100))).records
    assert sorted(row.id for row in rows) == sorted(f"j{n}" for n in range(100))
    await storage.heartbeat(Presence(worker="w"), [], 30)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://h/db?colour=red", "colour"),
        ("postgresql://h/db?schema=", "schema"),
        ("postgresql://h/db?schema=pg_mine", "schema"),
        ("postgresql://h/db?schema=" + "x" * 64, "schema"),
        ("postgresql://h/db?pool=0", "pool"),
        ("postgresql://h/db?pool=1.5", "pool"),
        ("postgresql://h/db?timeout=no", "timeout"),
        ("postgresql://h/db?prepare=yes", "prepare"),
        ("postgresql://h/db?listen=a/b", "listen"),
        ("postgresql://h:port/db", "port"),
    ],
)
def test_an_invalid_url_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadUrl, match=said):
        connect(url)


def test_options_of_libpq_are_passed_on() -> None:
    storage = connect("postgres://me:pw@one,two/db?sslmode=verify-full&sslrootcert=/ca.pem&schema=x&keepalives_idle=7")
    assert isinstance(storage, PostgresStorage)
    told = storage._address.conninfo
    for word in ("sslmode=verify-full", "sslrootcert=/ca.pem", "host=one,two", "keepalives_idle=7"):
        assert word in told
    assert "schema" not in told
    assert "pw" not in storage._address.shown


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("08006", StorageUnavailable),
        ("57P01", StorageUnavailable),
        ("57P03", StorageUnavailable),
        ("53300", StorageUnavailable),
        ("53200", StorageUnavailable),
        ("40P01", Locked),
        ("40001", Locked),
        ("25006", StorageUnavailable),
        ("57014", StorageUnavailable),
        ("55P03", Locked),
        ("XX000", StorageUnavailable),
        ("53100", StorageFull),
        ("42501", StorageDenied),
        ("22P05", StorageError),
        ("42601", StorageError),
    ],
)
def test_every_error_is_one_of_ours(code: str, kind: type[StorageError]) -> None:
    assert type(refusal(code, "words", "there")) is kind


@pytest.mark.parametrize("code", ["08P01", "26000", "42P05"])
def test_statements_lost_behind_a_pooler(code: str) -> None:
    """The error names the option that helps."""
    assert "prepare=off" in str(refusal(code, "words", "there"))
