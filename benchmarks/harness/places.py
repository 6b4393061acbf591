"""The servers and files that hold the jobs: started with the measured durability, emptied, and inspected.

Both sides of a comparison use the same ones, one after the other. They end with this process, however it ends.
"""

from __future__ import annotations

import ctypes.util
import functools
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

import psycopg
import redis

from benchmarks.harness import procs
from tests.servers import postgres, valkey

Settled = str | Sequence[Sequence[str]]


class Place(Protocol):
    """The storage of a system."""

    url: str
    says: str  # description with version and durability

    def reset(self) -> None:
        """Empty it, as if new."""

    def cpu(self) -> float:
        """CPU seconds of the server so far; 0 if the library works in our process."""

    def stored(self) -> int:
        """Bytes it holds now."""

    def written(self, clients: Sequence[int]) -> int | None:
        """Bytes written to disk so far, by it or by these processes; None: it writes nothing."""

    def left(self, settled: Settled) -> int:
        """How many jobs are not settled, by the adapter's definition."""

    def close(self) -> None: ...


LOG, PIECE = 1 << 29, 1 << 23  # bytes of log to write before measuring, and of one record


class PostgresPlace:
    def __init__(self) -> None:
        # the settings of a fresh installation, except the number of connections and the size of its cache
        self.server = postgres.Postgres(durable=True, settings=("shared_buffers=256MB",)).start()
        self.says = f"{postgres.version()}, fsync and synchronous_commit on, shared_buffers 256 MB"
        self.url = self.server.url_of("bench")
        self._admin = psycopg.connect(self.server.url, autocommit=True)
        self._inside: psycopg.Connection[Any] | None = None
        # A server that has run reuses its log files; creating new ones would cost the first system measured 10 %.
        for _ in range(LOG // PIECE):
            self._admin.execute("SELECT pg_logical_emit_message(false, 'warm', repeat('x', %s))", (PIECE,))
        self._admin.execute("CHECKPOINT")

    def reset(self) -> None:
        if self._inside is not None:
            self._inside.close()
            self._inside = None
        self._admin.execute("DROP DATABASE IF EXISTS bench WITH (FORCE)")
        self._admin.execute("CREATE DATABASE bench")
        self._admin.execute("CHECKPOINT")  # earlier changes must not be written during the measurement

    def _ask(self, sql: str) -> int:
        if self._inside is None or self._inside.closed:
            self._inside = psycopg.connect(self.url, autocommit=True)
        row = self._inside.execute(sql).fetchone()  # type: ignore[arg-type]
        return int(row[0]) if row else 0

    def cpu(self) -> float:
        return procs.cpu([self.server.pid])

    def stored(self) -> int:
        return self._ask("SELECT pg_database_size(current_database())")

    def written(self, clients: Sequence[int]) -> int | None:
        return self._ask("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

    def left(self, settled: Settled) -> int:
        return self._ask(settled) if isinstance(settled, str) else 0

    def close(self) -> None:
        if self._inside is not None:
            self._inside.close()
        self._admin.close()
        self.server.close()


@functools.cache
def allocator() -> tuple[str, str | None]:
    """The server's memory allocator, and the library to preload for it. The build of the tests has glibc's, which slows
    down with the memory in use; the builds of distributions, which are the usual ones, have jemalloc.
    """
    own = valkey.allocator()
    found = ctypes.util.find_library("jemalloc") if own == "libc" else None
    return ("jemalloc", found) if found else (own, None)


class ValkeyServer(valkey.Valkey):
    """With jemalloc, if this machine has it."""

    def command(self) -> Sequence[str]:
        _, library = allocator()
        return ["env", f"LD_PRELOAD={library}", *super().command()] if library else super().command()


class ValkeyPlace:
    def __init__(self, durable: bool) -> None:
        self.server = ValkeyServer(fsync="everysec" if durable else None).start()
        self.durable = durable
        keeps = "appendonly, appendfsync everysec" if durable else "nothing written to disk"
        self.says = f"{valkey.version()} on {allocator()[0]}, {keeps}"
        self.url = self.server.url
        self._client: Any = redis.Redis.from_url(self.url)

    def reset(self) -> None:
        self._client.execute_command("FLUSHALL", "SYNC")  # in the background it would halve the next figure
        if self.durable:  # start with a small log, and finish its rewrite before measuring
            self._wait_for_log()  # a rewrite that already runs would refuse another one
            self._client.bgrewriteaof()
            self._wait_for_log()

    def _wait_for_log(self) -> None:
        while any(self._client.info("persistence")[f"aof_rewrite_{word}"] for word in ("in_progress", "scheduled")):
            time.sleep(0.01)

    def cpu(self) -> float:
        info = self._client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    def stored(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    def written(self, clients: Sequence[int]) -> int | None:
        return int(self._client.info("persistence")["aof_current_size"]) if self.durable else None

    def left(self, settled: Settled) -> int:
        return sum(self._count(*words) for words in settled) if not isinstance(settled, str) else 0

    def _count(self, verb: str, *keys: str) -> int:
        if verb == "GROUP":  # entries of a stream that its first group has not read, and those not acknowledged
            if not self._client.exists(keys[0]):
                return 0
            group = self._client.xinfo_groups(keys[0])[0]
            return int(group["lag"] or 0) + int(group["pending"])
        return int(self._client.execute_command(verb, *keys) or 0)

    def close(self) -> None:
        self._client.close()
        self.server.close()


class SqlitePlace:
    """A folder on the disk of the system's temporary files; each system creates its file there."""

    WAYS: ClassVar = {
        "sqlite-full": "WAL, synchronous=full",
        "sqlite-normal": "WAL, synchronous=normal",
        "sqlite-off": "WAL, without fsync",
        "sqlite-own": "as the library sets it",
    }

    def __init__(self, storage: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="treadle-bench-"))
        self.file = self.folder / "jobs.db"
        self.url = f"sqlite:///{self.file}"
        self.says = f"SQLite {sqlite3.sqlite_version}, {self.WAYS[storage]}"

    def reset(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()

    def cpu(self) -> float:
        return 0.0

    def stored(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("*.db*") if path.suffix != ".lock")

    def written(self, clients: Sequence[int]) -> int | None:
        return procs.written(clients)

    def left(self, settled: Settled) -> int:
        if not isinstance(settled, str):
            return 0
        connection = sqlite3.connect(f"file:{self.file}?mode=ro", uri=True, timeout=10)
        try:
            return int(connection.execute(settled).fetchone()[0])
        finally:
            connection.close()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def filesystem() -> str:
    """The file system of the servers' folders and files; tmpfs would have no durability."""
    place, found = Path(tempfile.gettempdir()).resolve(), "unknown"
    mounts = Path("/proc/mounts")
    best = -1
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        _, folder, kind, *_ = line.split()
        if place.is_relative_to(folder) and len(folder) > best:
            best, found = len(folder), kind
    return found


class Places:
    """All places of a run, each started on first use."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}

    def of(self, storage: str) -> Place:
        if storage not in self._places:
            self._places[storage] = self._make(storage)
        return self._places[storage]

    def _make(self, storage: str) -> Place:
        if storage == "postgres":
            return PostgresPlace()
        if storage in ("redis", "redis-aof"):
            return ValkeyPlace(durable=storage == "redis-aof")
        return SqlitePlace(storage)

    def says(self) -> dict[str, str]:
        return {storage: place.says for storage, place in self._places.items()}

    def close(self) -> None:
        while self._places:
            self._places.popitem()[1].close()

    def __enter__(self) -> Places:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
