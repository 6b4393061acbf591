"""A PostgreSQL primary and its synchronous standby, which replaces the primary when that is gone."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any, LiteralString, Self

import psycopg

from tests.servers.postgres import Postgres
from tests.servers.process import PATIENCE
from tests.waiting import until_blocking

# Every commit waits for a standby's disk, also between a promotion and the start of a new standby.
SETTINGS = ("synchronous_standby_names=*", "wal_retrieve_retry_interval=100ms", "recovery_init_sync_method=syncfs")


class Standby(Postgres):
    """A server that begins as a copy of another one and follows it."""

    def __init__(self, primary: Postgres) -> None:
        self._primary = primary
        super().__init__(durable=True, settings=SETTINGS)

    def _initialise(self) -> None:
        words = ["-h", "127.0.0.1", "-p", str(self._primary.port), "-U", "postgres", "--no-sync", "--no-password"]
        command = [self._bin / "pg_basebackup", "-D", self.folder / "data", "-R", "-c", "fast", *words]
        if self._identity:
            self.folder.chmod(0o777)
        made = subprocess.run(
            command, capture_output=True, text=True, cwd="/", env=self._environment, check=False, **self._identity
        )
        if made.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise RuntimeError(f"pg_basebackup failed: {made.stderr or made.stdout}")


class Pair:
    """`primary` takes the writes, and acknowledges none before `standby` has it on its disk."""

    def __init__(self) -> None:
        self.primary = Postgres(durable=True, settings=SETTINGS)
        self.standby: Postgres | None = None

    def start(self) -> Self:
        self.primary.start()
        self._add_standby()
        return self

    def fail_over(self) -> None:
        """Kill the primary and promote the standby. There is no standby until `restore`, so no commit ends."""
        new = self.standby
        assert new is not None, "no standby: call restore() first"
        self.primary.kill()
        self.standby, old = None, self.primary
        with psycopg.connect(new.url, autocommit=True) as connection:
            connection.execute("SELECT pg_promote(true, 60)")
        self.primary = new
        old.close()

    def restore(self) -> None:
        """Make a copy of the new primary its standby, in place of the server that was killed."""
        if self.standby is None:
            self._add_standby()
        until_blocking(self.in_step, "the standby catches up", PATIENCE)

    def in_step(self) -> bool:
        """Whether the standby is synchronous and has everything that was written before this call."""
        caught_up: LiteralString = (
            "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync' AND flush_lsn >= %s::pg_lsn"
        )
        try:
            return bool(self._one(caught_up, self._one("SELECT pg_current_wal_flush_lsn()::text")))
        except psycopg.OperationalError:
            return False

    def close(self) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                server.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add_standby(self) -> None:
        self.standby = Standby(self.primary).start()
        until_blocking(self.in_step, "the standby begins to follow", PATIENCE)

    def _one(self, statement: LiteralString, *values: Any) -> Any:
        with psycopg.connect(self.primary.url, autocommit=True, connect_timeout=2) as connection:
            row = connection.execute(statement, values).fetchone()
            return row[0] if row else None
