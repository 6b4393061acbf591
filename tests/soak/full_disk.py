"""Stages on a file system of their own, which is full for a while: a SQLite file, a Valkey and a PostgreSQL server."""

from __future__ import annotations

import contextlib
import subprocess
from pathlib import Path
from typing import ClassVar

import psycopg

from tests.faults.stages import PostgresStage, RedisStage, SqliteStage, aside
from tests.servers.postgres import Postgres

CHUNK = b"\0" * 65_536
SEGMENTS = 10  # of 16 MB, more than such a log has
SMALL_WAL = ("min_wal_size=32MB", "max_wal_size=64MB")


class SmallDisk:
    """A tmpfs on this folder. Needs Linux and the right to mount."""

    def __init__(self, folder: Path | str, megabytes: int) -> None:
        self.folder, self._megabytes = Path(folder), megabytes
        self._mounted = False

    def mount(self) -> None:
        """Raises RuntimeError without the right to mount. The folder keeps its owner."""
        owner = self.folder.stat()
        options = f"size={self._megabytes}m,mode=0700,uid={owner.st_uid},gid={owner.st_gid}"
        command = ["mount", "-t", "tmpfs", "-o", options, "treadle-soak", str(self.folder)]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            raise RuntimeError(f"a file system of its own needs the right to mount one: {made.stderr.strip()}")
        self._mounted = True

    def fill(self) -> None:
        """Take all room. Earlier contents can still be read, and overwritten."""
        with self._filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                if file.write(CHUNK) < len(CHUNK):
                    return

    def clear(self) -> None:
        self._filler.unlink()

    def unmount(self) -> None:
        if self._mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=True)
            self._mounted = False

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"


class SmallDiskStage(SqliteStage):
    name = "small disk"
    ways: ClassVar[tuple[str, ...]] = ("disk full", "locked")

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared)
        self.disk = SmallDisk(self.folder.name, 64)  # more than a trial needs
        self.outages["disk full"] = aside(self.disk.fill), aside(self.disk.clear)

    async def open(self) -> None:
        await aside(self.disk.mount)()

    async def close(self) -> None:
        self.lock.close()
        await aside(self.disk.unmount)()
        self.folder.cleanup()


class SmallDiskValkeyStage(RedisStage):
    """With `appendfsync always` the server ends when it cannot write its log. It is started when there is room."""

    name = "small disk valkey"
    ways: ClassVar[tuple[str, ...]] = ("disk full", "killed")

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared)
        self.disk = SmallDisk(self.server.folder, 512)
        self.outages["disk full"] = aside(self.disk.fill), aside(self._clear)

    async def open(self) -> None:
        await aside(self.disk.mount)()
        await super().open()

    async def close(self) -> None:
        await self.proxy.close()
        await aside(self.server.kill)()
        await aside(self.disk.unmount)()
        await aside(self.server.close)()

    def _clear(self) -> None:
        self.disk.clear()
        if not self.server.answers():
            self.server.kill()
            self.server.start()


class SmallPostgres(Postgres):
    """Its data, with its write-ahead log, is on a small disk."""

    disk: SmallDisk

    def __init__(self) -> None:
        super().__init__(durable=True, settings=SMALL_WAL)

    def close(self) -> None:
        self.kill()
        self.disk.unmount()
        super().close()

    def answers(self) -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=2).close()
            return True
        return False

    def _make_folder(self) -> Path:
        data = super()._make_folder()
        self.disk = SmallDisk(data, 256)
        self.disk.mount()
        return data


class SmallDiskPostgresStage(PostgresStage):
    """A server that cannot extend its write-ahead log ends all sessions, and itself if there is no room to recover. It
    is started when there is room."""

    name = "small disk postgres"
    ways: ClassVar[tuple[str, ...]] = ("disk full", "log full", "killed")

    def __init__(self, shared: bool = False) -> None:
        super().__init__(shared)
        self.outages["disk full"] = aside(self.server.disk.fill), aside(self._clear)
        self.outages["log full"] = aside(self._fill_log), aside(self._clear)

    def _server(self) -> Postgres:
        return SmallPostgres()

    async def close(self) -> None:
        await super().close()
        await aside(self.server.close)()

    def _fill_log(self) -> None:
        """The segments of the log that exist already are used up as well."""
        self.server.disk.fill()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.direct, autocommit=True) as connection:
            for _ in range(SEGMENTS):
                connection.execute("SELECT pg_logical_emit_message(false, 'soak', ''), pg_switch_wal()")

    def _clear(self) -> None:
        self.server.disk.clear()
        if not self.server.answers():
            self.server.kill()
            self.server.start()
