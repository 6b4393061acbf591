"""Planted secrets on PostgreSQL and Redis: a wrong password, failing statements and a server that stops show none of
them, from Python, by HTTP, by the command line or by a worker."""

from __future__ import annotations

import json
import logging
import secrets
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from tests.served import host
from tests.server.raw import ask
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey
from treadle import App, StorageError, Worker
from treadle.cli.root import run
from treadle.core.model import Claim, Outcome, Record, State
from treadle.server import Settings, Token
from treadle.server.auth.tokens import digest

CLAIM = Claim(worker="w#1", queues=(("default", 9),), limit=9, lease=600.0)
NAMES = ("password", "wrong", "payload", "header", "result", "error", "checkpoints", "token")


class Server:
    """A server with a user who has the planted password. Each of `ways` makes the server's statements fail."""

    def __init__(self, url: str, ways: list[Callable[[], object]], stop: Callable[[], object]) -> None:
        self.url, self.ways, self.stop = url, ways, stop


@contextmanager
def a_postgres(password: str) -> Iterator[Server]:
    with Postgres() as server, psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE me LOGIN PASSWORD '{password}'".encode())
        admin.execute("GRANT ALL ON DATABASE postgres TO me")
        rules = "host all me all scram-sha-256\nhost all all all trust\n"
        (server.folder / "data/pg_hba.conf").write_text(rules)
        admin.execute("SELECT pg_reload_conf()")

        def checked() -> None:
            """Such an error shows the whole row as its detail."""
            found = admin.execute(
                "SELECT oid::regclass::text FROM pg_class WHERE relkind = 'r'"
                " AND relnamespace = 'treadle'::regnamespace AND NOT relispartition"
            ).fetchall()
            assert found
            for (table,) in found:
                admin.execute(f"ALTER TABLE {table} ADD CONSTRAINT broken CHECK (false) NOT VALID".encode())

        def denied() -> None:
            admin.execute("REVOKE ALL ON ALL TABLES IN SCHEMA treadle FROM me")
            admin.execute("ALTER SCHEMA treadle OWNER TO postgres")

        yield Server(server.url.replace("postgres@", f"me:{password}@"), [checked, denied], server.stop)


@contextmanager
def a_redis(password: str) -> Iterator[Server]:
    with Valkey("--user", "me", "on", f">{password}", "~*", "&*", "+@all") as server:
        admin = redis.Redis.from_url(server.url)

        def of_another_type() -> None:
            for key in admin.scan_iter():
                admin.delete(key)
                admin.set(key, "odd") if b"{" in key else None

        def denied() -> None:
            admin.execute_command("ACL", "SETUSER", "me", "-@scripting", "-@write")

        yield Server(server.url.replace("redis://", f"redis://me:{password}@"), [of_another_type, denied], server.stop)
        admin.close()


SERVERS = {"postgres": a_postgres, "redis": a_redis}
SIGNS = {"postgres": ("broken", "permission denied"), "redis": ("WRONGTYPE", "no permissions")}


def here(call: Callable[[], Awaitable[Any]]) -> Any:
    """Make a call on the servers' loop. Return its result."""

    async def called() -> Any:
        return await call()

    return host().run(called())


class Said:
    """All output: errors with their causes, responses, printed text and logs."""

    def __init__(self, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
        self._capfd, self._caplog = capfd, caplog
        self.texts: list[str] = []

    def fails(self, *calls: Callable[[], Awaitable[Any]]) -> None:
        """Make these calls; at least one must fail, because another may find nothing to do."""
        failed = 0
        for call in calls:
            try:
                here(call)
            except StorageError as error:
                failed += 1
                self.texts += traceback.format_exception(error)
        assert failed

    def command(self, *words: str) -> None:
        assert run(list(words)) != 0, words
        said = self._capfd.readouterr()
        assert said.out + said.err
        self.texts += [said.out, said.err]

    def text(self) -> str:
        said = self._capfd.readouterr()
        records = [f"{each.getMessage()} {each.args} {each.exc_text}" for each in self._caplog.records]
        return "\n".join([*self.texts, said.out, said.err, self._caplog.text, *records])


class Run:
    """A program and a server on a storage that fails."""

    def __init__(self, app: App, url: str, row: Record, planted: dict[str, str], said: Said) -> None:
        self.app, self.url, self.row, self.planted, self.said = app, url, row, planted, said

    def python(self) -> None:
        storage, planted = self.app.storage, self.planted
        options = self.app.stub("t", headers={"h": planted["header"]})
        outcome = Outcome(
            id=self.row.id,
            version=self.row.version,
            state=State.FAILED,
            result=planted["result"],
            error=planted["error"],
            checkpoints=(("step", planted["checkpoints"]),),
        )
        self.said.fails(
            lambda: self.app.enqueue(options.job(planted["payload"])),
            lambda: storage.settle([outcome]),
            lambda: storage.claim(CLAIM),
            storage.stats,
        )

    def http(self) -> None:
        job = {"task": "t", "args": [self.planted["payload"]], "headers": {"h": self.planted["header"]}}
        outcome = {
            "id": self.row.id,
            "version": self.row.version,
            "fail": self.planted["error"],
            "checkpoints": [["step", self.planted["checkpoints"]]],
        }
        for method, path, body in (
            ("POST", "/v1/jobs", job),
            ("POST", "/v1/work/settle", {"outcomes": [outcome]}),
            ("GET", "/v1/stats", None),
            ("GET", "/readyz", None),
        ):
            content = b"" if body is None else json.dumps(body).encode()
            right = f"Bearer {self.planted['token']}"
            answer = ask(self.url, method, path, content, authorization=right, content_type="application/json")
            if answer.status != 200:
                assert answer.status >= 500, answer
            self.said.texts.append(json.dumps(answer.body))

    def worker(self) -> None:
        async def tried() -> None:
            worker = Worker(self.app, grace=0)
            try:
                await worker.start()
            finally:
                await worker.stop()

        try:
            here(tried)
        except StorageError as error:
            self.said.texts += traceback.format_exception(error)


def commands(said: Said, url: str, planted: dict[str, str]) -> None:
    for words in (
        ("jobs", "list"),
        ("enqueue", "t", planted["payload"]),
        ("doctor",),
        ("doctor", "--json"),
        ("queues", "stats", "--json"),
        ("storage", "migrate"),
        ("limits", "set", "x", "--slots", "1"),
    ):
        said.command(*words, "--url", url)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_no_error_of_a_server_shows_a_secret(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.DEBUG)
    planted = {name: f"planted-{name}-{secrets.token_hex(6)}" for name in NAMES}
    said = Said(capfd, caplog)
    token = Token(name="all", digest=digest(planted["token"]), scopes=("enqueue", "work", "read", "operate"))
    with SERVERS[kind](planted["password"]) as server:
        wrong = server.url.replace(planted["password"], planted["wrong"])
        said.fails(App(wrong).open)
        commands(said, wrong, planted)
        app = App(server.url)
        site = host().add(app, Settings(tokens=(token,)))
        here(lambda: app.enqueue(app.stub("t").job(planted["payload"])))
        [row] = here(lambda: app.storage.claim(CLAIM)).records
        failing = Run(app, site, row, planted, said)
        for way in (*server.ways, server.stop):
            way()
            failing.python()
            failing.http()
            failing.worker()
        commands(said, server.url, planted)
        here(app.close)
    text = said.text()
    assert all(sign in text for sign in SIGNS[kind])
    for name, secret in planted.items():
        assert secret not in text, name
