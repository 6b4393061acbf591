"""`treadle doctor` and `treadle storage migrate` on PostgreSQL: their output, failures, and what they do not change."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import subprocess
import sys
from typing import Any, NamedTuple
from urllib.parse import quote

import psycopg
import pytest
from msgspec.structs import replace

from tests.servers.process import free_port
from tests.storage.postgres import support
from treadle.cli import root
from treadle.server.doctor import postgres as words
from treadle.storage.postgres import PostgresHealth, PostgresStorage, Table, migrate
from treadle.storage.postgres.health import Holder


class Said(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(*parts: str) -> Said:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = root.run(parts)
    return Said(code, out.getvalue(), err.getvalue())


def doctor(url: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """Run doctor. Return its exit code, and name -> (verdict, text), the worst of each name."""
    function_done = run("doctor", "--url", url, "--json")
    found: dict[str, tuple[str, str]] = {}
    for check in json.loads(function_done.stdout):
        if found.get(check["name"], ("ok",))[0] == "ok":
            found[check["name"]] = (check["verdict"], check["text"])
    return function_done.exit_code, found


def execute(url: str, *texts: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for text in texts:
            connection.execute(text.encode())


@pytest.fixture
def url() -> str:
    """An empty database for one test."""
    return support.postgres.database()


@pytest.fixture
def role() -> str:
    name = "r" + support.take_schema()
    execute(support.postgres.url(), f"CREATE ROLE {name} LOGIN")
    return name


# --- doctor


def test_a_healthy_server_passes(url: str) -> None:
    """The tests' own server is not durable, which is a failure; every other check passes."""
    run("storage", "migrate", "--url", url)
    code, found = doctor(url)
    assert code == 1
    assert found.pop("durability") == ("fail", "fsync is off: a crash of the machine may destroy the database")
    assert {verdict for verdict, _ in found.values()} == {"ok"}
    assert found["server"][1].startswith(support.postgres.version())
    assert "answers" in found["storage"][1]
    assert "connections in use" in found["connections"][1]


def test_the_checks_are_printed_for_people_too(url: str) -> None:
    said = run("doctor", "--url", url).stdout
    assert "fail  durability   fsync is off" in said
    assert "-> set fsync = on" in said
    assert "ok    transactions" in said


@pytest.mark.parametrize(
    ("done", "name", "says"),
    [
        ("ALTER TABLE treadle.job SET (autovacuum_enabled = off)", "autovacuum", "it is off for job"),
        (
            "BEGIN; INSERT INTO treadle.meta VALUES ('x', 'y'); PREPARE TRANSACTION 'forgotten'",
            "prepared",
            "1 transaction prepared and not finished",
        ),
    ],
)
def test_manual_changes_are_reported(url: str, done: str, name: str, says: str) -> None:
    run("storage", "migrate", "--url", url)
    try:
        execute(url, *done.split("; "))
        assert doctor(url)[1][name] == ("warn", says)
    finally:
        if name == "prepared":
            execute(url, "ROLLBACK PREPARED 'forgotten'")


def test_an_old_open_transaction_is_a_warning(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "OLD", 0.0)
    with psycopg.connect(url, autocommit=False) as other:
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        other.execute("SELECT count(*) FROM pg_class")
        verdict, said = doctor(url)[1]["transactions"]
        assert verdict == "warn"
        assert "cannot be vacuumed" in said
        other.rollback()
    assert doctor(url)[1]["transactions"][0] == "ok"


def test_a_publication_that_stops_the_workers_is_a_failure(url: str) -> None:
    run("storage", "migrate", "--url", url)
    execute(url, "CREATE PUBLICATION dbz FOR ALL TABLES")
    assert doctor(url)[1]["publications"][0] == "ok"
    execute(url, "ALTER TABLE treadle.recheck REPLICA IDENTITY DEFAULT")
    verdict, said = doctor(url)[1]["publications"]
    assert (verdict, "dbz publish recheck" in said) == ("fail", True)


def test_a_transaction_that_holds_jobs_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "HELD", 0.0)
    run("storage", "migrate", "--url", url)
    with psycopg.connect(url, application_name="shop") as other:
        asyncio.run(PostgresStorage(url).within(other).enqueue([support.job("a", key="k")]))
        verdict, said = doctor(url)[1]["locks"]
        assert verdict == "warn"
        assert f"{other.info.backend_pid} (application 'shop'" in said
        other.rollback()
    assert doctor(url)[1]["locks"][0] == "ok"


def test_jobs_run_under_a_role_that_owns_nothing(url: str, role: str) -> None:
    """Jobs run, and doctor reports what the role may not do."""
    run("storage", "migrate", "--url", url)
    execute(
        url,
        f"GRANT USAGE ON SCHEMA treadle TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO {role}",
    )
    verdict, said = doctor(url.replace("postgres@", f"{role}@"))[1]["rights"]
    assert verdict == "warn"
    assert "it cannot vacuum or migrate them" in said


def test_a_role_that_lacks_the_table_of_a_later_version(url: str, role: str) -> None:
    """Its rights were granted table by table, before a migration created another one."""
    run("storage", "migrate", "--url", url)
    execute(
        url,
        f"GRANT USAGE ON SCHEMA treadle TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO {role}",
        f"REVOKE INSERT ON treadle.metrics FROM {role}",
    )
    code, found = doctor(url.replace("postgres@", f"{role}@"))
    assert code == 1
    assert found["rights"] == ("fail", "this role may not read and write metrics")


def test_settings_in_the_url_are_checked(url: str) -> None:
    """With prepare=off the session sets nothing, so the defaults from the URL apply."""
    other = f"options={quote('-c default_transaction_isolation=serializable -c synchronous_commit=off')}"
    assert "isolation" not in doctor(f"{url}?{other}")[1]
    verdict, said = doctor(f"{url}?{other}&prepare=off")[1]["isolation"]
    assert (verdict, "the default is serializable" in said) == ("warn", True)


@pytest.mark.parametrize("how", ["away", "no such database", "newer", "somebody else's"])
def test_a_storage_that_cannot_be_opened_is_a_failure(url: str, how: str) -> None:
    where = {
        "away": f"postgresql://postgres@127.0.0.1:{free_port()}/postgres",
        "no such database": f"{url}_not",
        "newer": url,
        "somebody else's": f"{url}?schema=public",
    }[how]
    says = {
        "away": "refused",
        "no such database": "create the database first",
        "newer": "9999",
        "somebody else's": "orders",
    }[how]
    if how == "newer":
        run("storage", "migrate", "--url", url)
        execute(url, "INSERT INTO treadle.migration (number, name) VALUES (9999, 'later')")
    if how == "somebody else's":
        execute(url, "CREATE TABLE public.orders (id int)")
    code, found = doctor(where)
    assert (code, found.keys(), found["storage"][0]) == (1, {"storage"}, "fail")
    assert says in found["storage"][1].lower()
    migrated = run("storage", "migrate", "--url", where)
    assert migrated.exit_code == 3
    assert says in migrated.stderr.lower()


WELL = PostgresHealth(
    version="18.0",
    fsync=True,
    full_page_writes=True,
    synchronous_commit="on",
    autovacuum=True,
    isolation="read committed",
    standby=False,
    oldest=None,
    prepared=0,
    idle_slots=0,
    kept_wal=None,
    publications="",
    holders=(),
    connections=5,
    max_connections=100,
    encoding="UTF8",
    tables=(Table("job", 8_192, 10, 10, False, True),),
)


def test_a_server_as_it_should_be() -> None:
    found = words.judged(WELL)
    assert {check.verdict for check in found} == {"ok"}
    assert any("of the synchronous standbys" in check.text for check in found)


@pytest.mark.parametrize(
    ("changes", "name", "verdict", "says"),
    [
        ({"standby": True}, "server", "fail", "a standby"),
        ({"full_page_writes": False}, "durability", "fail", "full_page_writes is off"),
        ({"synchronous_commit": "off"}, "durability", "warn", "lose the latest"),
        ({"synchronous_commit": "local"}, "durability", "ok", "on the disk of this server"),
        ({"synchronous_commit": "remote_apply"}, "durability", "ok", "applied by the synchronous standbys"),
        ({"isolation": "repeatable read"}, "isolation", "warn", "the default is repeatable read"),
        ({"connections": 95}, "connections", "warn", "95 of 100 connections"),
        ({"autovacuum": False}, "autovacuum", "warn", "it is off"),
        ({"oldest": 7_200.0}, "transactions", "warn", "open for 2"),
        ({"idle_slots": 2}, "slots", "warn", "2 unused replication slots"),
        ({"kept_wal": 5.0 * 2**30}, "slots", "warn", "keeps 5.0 GiB of the write-ahead log"),
        ({"kept_wal": 1e6, "publications": "dbz"}, "publications", "ok", "dbz publish the tables"),
        (
            {"publications": "dbz", "tables": (Table("recheck", 8_192, 0, 0, False, True, True, False),)},
            "publications",
            "fail",
            "dbz publish recheck, whose rows have no identity",
        ),
        (
            {"tables": (Table("recheck", 8_192, 0, 0, False, True, True, False),)},
            "publications",
            "warn",
            "recheck: rows without an identity",
        ),
        (
            {"holders": (Holder(4711, "shop", 90.0, "idle in transaction"), Holder(4712, "", 61.0, "active"))},
            "locks",
            "warn",
            "4711 (application 'shop', idle in transaction), open for 90 s, has stored jobs, and so have 1 more",
        ),
        ({"holders": (Holder(None, "", None, ""),)}, "locks", "warn", "a prepared transaction has stored jobs"),
        ({"holders": (Holder(4711, "shop", 5.0, "active"),)}, "locks", "ok", "for long"),
        (
            {"tables": (Table("job", 8_192, 1_000, 900_000, False, True),)},
            "dead rows",
            "warn",
            "900,000 dead and 1,000 live",
        ),
        ({"tables": (Table("job", 8_192, 1_000_000, 900_000, False, True),)}, "tables", "ok", "8"),
    ],
)
def test_each_state_of_a_server_has_a_verdict(changes: dict[str, Any], name: str, verdict: str, says: str) -> None:
    """Also states that no server of these tests has; every warning says what to do."""
    found = {check.name: check for check in words.judged(replace(WELL, **changes))}
    assert (found[name].verdict, says in found[name].text) == (verdict, True)
    assert all(check.advice for check in found.values() if check.verdict != "ok")
    assert {check.verdict for check in found.values() if check.name != name} == {"ok"}


# --- migrate


def test_migrate_creates_the_schema_once(url: str) -> None:
    newest = migrate.known()[-1][0]
    first, second = run("storage", "migrate", "--url", url), run("storage", "migrate", "--url", url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert f"created, with schema {newest}" in first.stdout
    assert f"already has schema {newest}" in second.stdout


def test_only_its_owner_migrates_an_old_schema(url: str, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner migrates it with its contents; a user without the right gets an error and changes nothing."""
    run("storage", "migrate", "--url", url)
    run("enqueue", "greet", "Ada", "--url", url)
    execute(
        url,
        f"GRANT USAGE ON SCHEMA treadle TO {role}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA treadle TO {role}",
    )
    newest = migrate.known()[-1][0]
    numbers = (
        *migrate.known(),
        (newest + 1, "later", "ALTER TABLE job ADD COLUMN later int; ALTER TABLE ended ADD COLUMN later int"),
    )
    monkeypatch.setattr(migrate, "known", lambda: numbers)
    refused = run("storage", "migrate", "--url", url.replace("postgres@", f"{role}@"))
    assert refused.exit_code == 1
    assert "must be owner" in refused.stderr
    assert asyncio.run(PostgresStorage(url).schema()) == newest
    done = run("storage", "migrate", "--url", url)
    assert done.exit_code == 0
    assert f"migrated from schema {newest} to {newest + 1}" in done.stdout
    assert "greet" in run("jobs", "list", "--url", url).stdout


@pytest.mark.slow
@pytest.mark.parametrize("before", ["nothing", "functions of another version"])
def test_several_processes_migrate_at_once(url: str, before: str) -> None:
    """As at a deploy: all of them succeed, and one of them migrates."""
    if before != "nothing":
        run("storage", "migrate", "--url", url)
        run("enqueue", "greet", "Ada", "--url", url)
        execute(url, "DELETE FROM treadle.function_set", "INSERT INTO treadle.function_set VALUES ('0123abcd')")
    command = [sys.executable, "-m", "treadle", "storage", "migrate", "--url", url]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    told = [(*child.communicate(timeout=120), child.returncode) for child in running]
    assert [code for _, _, code in told] == [0, 0, 0], told
    with psycopg.connect(url) as connection:
        sets = connection.execute("SELECT count(*) FROM treadle.function_set").fetchone()
        numbers = connection.execute("SELECT count(*) FROM treadle.migration").fetchone()
    assert (sets, numbers) == ((1 if before == "nothing" else 2,), (len(migrate.known()),))
    if before != "nothing":
        assert "greet" in run("jobs", "list", "--url", url).stdout
