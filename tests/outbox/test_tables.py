"""The tables of an outbox: created by `treadle storage migrate` or the user's own migration, used by separate roles."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from tests.cli.tools import Command
from tests.outbox.kit import Data, a_database, an_app, mail, relayed, stored
from tests.servers import valkey
from tests.waiting import until
from treadle import App, BadOption, Outbox, StorageDenied, StorageError
from treadle.errors import BadUrl
from treadle.server.doctor import outbox as doctor
from treadle_testkit.shows import shows

MODULE = """
from treadle import App, Outbox
app = App({url!r}, outbox=Outbox({outbox!r}))

@app.task
async def send(to: str) -> str:
    return to
"""


def a_module(folder: Path, namespace: str, data: Data) -> None:
    (folder / "shop.py").write_text(MODULE.format(url=f"{valkey.url()}?ns={namespace}", outbox=data.url))


@pytest.mark.slow
@shows("`treadle storage migrate` creates the tables of an outbox, and `--check` says whether it must")
def test_migrate_creates_the_tables_of_an_outbox(
    data: Data, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one test, because each part needs the one before."""
    from treadle.cli.root import run

    monkeypatch.chdir(tmp_path)
    a_module(tmp_path, namespace, data)
    monkeypatch.delitem(__import__("sys").modules, "shop", raising=False)
    target = ["--app", "shop:app"]
    assert run(["storage", "migrate", "--check", *target]) == 3
    assert "has no tables" in capsys.readouterr().out
    assert run(["doctor", *target]) == 1
    assert "has no table treadle_outbox" in capsys.readouterr().out
    assert run(["storage", "relay", "list", *target]) == 1
    assert "treadle storage migrate --app MODULE:APP" in capsys.readouterr().err

    assert run(["storage", "migrate", *target]) == 0
    assert run(["storage", "migrate", *target]) == 0
    assert "created" in capsys.readouterr().out
    data.run("UPDATE treadle_relay SET version = 99")
    capsys.readouterr()
    assert run(["storage", "migrate", "--check", *target]) == 1
    assert "version 99, this Treadle knows up to 1" in capsys.readouterr().err
    data.run("UPDATE treadle_relay SET version = 1")
    assert run(["storage", "migrate", "--check", *target]) == 0
    app: App = __import__("sys").modules["shop"].app
    capsys.readouterr()

    task = app.find_task("shop.send")
    with closing(data.connect()) as db:
        app.sync.enqueue([task.job("ada")], within=db)
        app.sync.enqueue([task.options(after=["nobody"]).job("eve")], within=db)
        db.commit()
    assert run(["doctor", *target]) == 0
    assert "2 jobs wait, the oldest for" in capsys.readouterr().out
    assert run(["storage", "relay", "shop:app", "--once"]) == 0
    assert "1 job delivered" in capsys.readouterr().err
    assert run(["storage", "relay", "list", *target, "--json"]) == 0
    [row] = json.loads(capsys.readouterr().out)["jobs"]
    assert (row["job"]["task"], row["tries"]) == ("shop.send", 1)
    assert run(["storage", "relay", "list", "--outbox", data.url]) == 0
    assert "waits for unknown job 'nobody'" in capsys.readouterr().out
    assert run(["doctor", *target]) == 0
    out = capsys.readouterr().out
    assert "1 job cannot be delivered" in out
    assert "`treadle storage relay retry`" in out
    assert run(["storage", "relay", "retry", row["id"], *target]) == 0
    assert run(["storage", "relay", "delete", *target]) == 2, "nothing is deleted without ids"
    assert run(["storage", "relay", "delete", row["id"], *target]) == 0
    assert run(["storage", "relay", "list", "--all", *target]) == 0
    assert "the outbox is empty" in capsys.readouterr().err
    assert run(["storage", "relay", "ddl", "--outbox", data.url]) == 0
    assert "CREATE TABLE treadle_outbox" in capsys.readouterr().out
    app.sync.close()


async def test_the_ddl_in_a_migration_of_the_users(data: Data, namespace: str) -> None:
    app = an_app(data, namespace)
    assert app.outbox is not None
    for statement in app.outbox.ddl().split(";\n"):
        if statement:
            data.run(statement.replace("%", "%%"))
    async with app:
        assert not await app.outbox.create()
        with closing(data.connect()) as db:
            await app.enqueue(mail(app, "ada"), within=db)
            db.commit()
        assert await relayed(app) == 1


async def test_tables_of_a_newer_treadle(app: App, data: Data) -> None:
    data.run("UPDATE treadle_relay SET version = 99")
    assert app.outbox is not None
    with pytest.raises(StorageError, match="version 99, this Treadle knows up to 1"):
        await app.outbox.create()
    with closing(data.connect()) as db, pytest.raises(StorageError, match="version 99"):
        await app.enqueue(mail(app, "ada"), within=db)
    with pytest.raises(StorageError, match="version 99"):
        await relayed(app)
    with pytest.raises(StorageError, match="version 99"):
        await app._core.relay.run()  # type: ignore[union-attr]
    assert data.run("SELECT holder FROM treadle_relay") == [(None,)], "it does not keep a newer relay from its work"


@pytest.mark.parametrize("lost", ["DELETE FROM treadle_relay", "DROP TABLE treadle_outbox"])
@shows("`treadle storage migrate` completes the tables of an outbox, for example after a test that empties all tables")
async def test_tables_that_are_there_in_part(app: App, data: Data, lost: str) -> None:
    data.run(lost)
    outbox = app.outbox
    assert outbox is not None
    with closing(data.connect()) as db:
        with pytest.raises(StorageError, match="run `treadle storage migrate"):
            await app.enqueue(mail(app, "ada"), within=db)
        db.cursor().execute("SELECT 1")  # the transaction can still be used
    if lost.startswith("DELETE"):
        with pytest.raises(StorageError, match="no row in its table treadle_relay"):
            await app._core.relay.run()  # type: ignore[union-attr]
    assert await outbox.version() is None
    assert await outbox.create()
    assert not await outbox.create()
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    assert await relayed(app) == 1


@shows("an app that may only insert writes to an outbox, and another role relays")
async def test_one_role_may_insert_and_another_relay(tmp_path: Path, namespace: str) -> None:
    data = a_database("postgresql", tmp_path)
    owner = an_app(data, namespace)
    assert owner.outbox is not None
    await owner.outbox.create()
    role = f"web_{data.name}"
    data.run(f"CREATE ROLE {role} LOGIN")
    data.run(f"GRANT SELECT ON treadle_relay TO {role}")
    data.run(f"GRANT SELECT, INSERT ON treadle_outbox TO {role}")
    web = an_app(data._replace(url=data.url.replace("postgres@", f"{role}@")), namespace)
    with closing(psycopg.connect(data.url.replace("postgres@", f"{role}@"))) as db:
        await web.enqueue(mail(web, "ada"), within=db)
        db.commit()
    async with web:
        with pytest.raises(StorageDenied, match="permission denied"):
            await relayed(web)
    async with owner:
        assert await relayed(owner) == 1
    data.run(f"DROP OWNED BY {role}")
    data.run(f"DROP ROLE {role}")


async def test_a_schema_of_its_own(tmp_path: Path, namespace: str) -> None:
    data = a_database("postgresql", tmp_path)
    data.run("CREATE SCHEMA jobs")
    app = an_app(data, namespace, schema="jobs", notify=False)
    assert app.outbox is not None
    await app.outbox.create()
    async with app:
        with closing(psycopg.connect(data.url)) as db:
            db.tpc_begin(db.xid(1, namespace, "q"))  # in two phases, which forbids notifications
            await app.enqueue(mail(app, "ada"), within=db)
            db.tpc_prepare()
            db.tpc_commit()
        assert await relayed(app) == 1


async def test_dead_rows_are_vacuumed_early(pg_app: tuple[App, Data]) -> None:
    _, data = pg_app
    [(options,)] = data.run("SELECT reloptions FROM pg_class WHERE relname = 'treadle_outbox'")
    assert "autovacuum_vacuum_cost_delay=0" in options
    assert "autovacuum_vacuum_threshold=2000" in options


async def test_a_database_that_does_not_answer() -> None:
    outbox = Outbox("postgresql://user:hunter2secret@127.0.0.1:1/shop")
    [check] = [check async for check in doctor.checks(outbox)]
    assert (check.verdict, check.name) == ("fail", "outbox")
    assert "hunter2secret" not in check.text
    await outbox._close()


@pytest.mark.parametrize(
    "url",
    [
        "redis://h",
        "sqlite://",
        "sqlite:///:memory:",
        "mysql://u:hunter2secret@h",
        "mysql://u:hunter2secret@h/db?x=1",
        "mysql://u:hunter2secret@h:bad/db",
        "postgresql://u:hunter2secret@h:bad/db",
        "postgresql://h/db?password=hunter2secret&nonsense=1",
        "nonsense",
        7,
    ],
)
def test_unusable_urls_are_refused(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        Outbox(url)
    assert "hunter2secret" not in str(caught.value)


def test_other_invalid_arguments_are_refused() -> None:
    with pytest.raises(BadOption, match="expected Outbox"):
        App("memory://", outbox="postgresql://h/db")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="poll"):
        Outbox("postgresql://h/db", poll=0)
    with pytest.raises(BadUrl, match="schema"):
        Outbox("mysql://h/db", schema="x")


@shows("`treadle storage relay` delivers the jobs of an outbox until it is stopped")
async def test_the_relay_process(tmp_path: Path, namespace: str) -> None:
    data = a_database("sqlite", tmp_path)
    a_module(tmp_path, namespace, data)
    app = an_app(data, namespace)
    assert app.outbox is not None
    await app.outbox.create()
    with closing(data.connect()) as db:
        await app.enqueue(mail(app, "ada"), within=db)
        db.commit()
    async with app:
        with Command("storage", "relay", "shop:app", cwd=tmp_path) as relay:
            await until(lambda: stored(app), "the delivery by another process")
            relay.process.terminate()
            assert relay.ended() == 0
    assert (await app.outbox.stats()).relay is None
    await app.outbox._close()
