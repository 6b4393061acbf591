"""The settings of a PostgreSQL server by which it may lose jobs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from treadle.storage.optional_parts import Risk
from treadle.storage.postgres.pool import Runner

DURABILITY: Final = """
SELECT current_setting('fsync') = 'on', current_setting('full_page_writes') = 'on',
       current_setting('synchronous_commit'), pg_is_in_recovery(),
       ARRAY(SELECT relname::text FROM pg_class
             WHERE relnamespace = to_regnamespace(%s) AND relkind = 'r' AND relpersistence = 'u' ORDER BY relname)
"""


class Durability(Struct, frozen=True, kw_only=True):
    """The promise of a server for a confirmed change. unlogged: our tables that are empty after a crash."""

    fsync: bool
    full_page_writes: bool
    synchronous_commit: str
    standby: bool
    unlogged: tuple[str, ...] = ()

    def risks(self) -> Iterator[Risk]:
        if self.standby:
            yield Risk(
                "fail",
                "server",
                "the server is a standby: nothing can be written",
                "put the primary into the URL, or all servers and target_session_attrs=read-write",
            )
        if not self.fsync or not self.full_page_writes:
            off = "fsync" if not self.fsync else "full_page_writes"
            text = f"{off} is off: a crash of the machine may destroy the database"
            yield Risk("fail", "durability", text, f"set {off} = on")
        elif self.synchronous_commit == "off":
            yield Risk(
                "warn",
                "durability",
                "synchronous_commit is off: a crash may lose the latest confirmed changes",
                "ALTER ROLE ... SET synchronous_commit = on, if jobs must not be lost",
            )
        if self.unlogged:
            named = ", ".join(self.unlogged[:4])
            yield Risk(
                "fail",
                "unlogged",
                f"the server keeps no log of {named}: after a crash of it they are empty",
                f"ALTER TABLE {self.unlogged[0]} SET LOGGED, and so on",
            )


async def durability(run: Runner, schema: str) -> Durability:
    """Read it, in one statement that any role may run."""
    [(fsync, pages, commit, standby, unlogged)] = await run.run(DURABILITY, [schema], often=False)
    return Durability(
        fsync=fsync, full_page_writes=pages, synchronous_commit=commit, standby=standby, unlogged=tuple(unlogged)
    )
