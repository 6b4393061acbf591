"""The checks of an app's outbox: its tables, a relay, rows that are old or cannot be delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from treadle.core.errors import StorageError
from treadle.core.words import lasts, plural
from treadle.server.doctor.common import Check, fail, ok, warn

if TYPE_CHECKING:
    from treadle.outbox import Outbox, OutboxStats

OLD = 60.0  # s that a row may wait without a warning; a relay that works needs less than one
SHOWN = 3  # refused jobs that are named


async def checks(outbox: Outbox, place: str | None = None) -> AsyncIterator[Check]:
    """The checks change nothing. A database that does not answer is one of them.

    place  the storage of the app, as a relay records it; None: it has no URL
    """
    try:
        version = await outbox.version()
        if version is None:
            advice = "`treadle storage migrate --app MODULE:APP`, or put the output of `treadle storage relay ddl` "
            advice += "into a migration"
            yield fail("outbox", f"{outbox.url} has no table treadle_outbox", advice)
            return
        stats = await outbox.stats()
        refused = await outbox.list(SHOWN, failing=True) if stats.failing else []
    except StorageError as error:
        yield fail(
            "outbox",
            str(error),
            "check the URL of the outbox, whether its database is running, and the rights of this process",
        )
        return
    yield _waiting(stats)
    if place is not None and stats.storage not in (None, place):
        yield warn(
            "outbox",
            f"it was relayed to {stats.storage} last, and the jobs of this app are in {place}",
            "if these are two storages, give each an outbox of its own: in another database, or on PostgreSQL with "
            "another schema=",
        )
    if refused:
        named = "; ".join(f"{row.id} ({row.task}): {row.error}" for row in refused)
        more = f", {stats.given_up:,} of them given up" if stats.given_up else ""
        yield warn(
            "outbox",
            f"{plural(stats.failing, 'job')} cannot be delivered{more}: {named}",
            "`treadle storage relay list` shows them; correct the cause, then `treadle storage relay retry`, or "
            "`treadle storage relay delete`",
        )


def _waiting(stats: OutboxStats) -> Check:
    waiting = stats.rows - stats.failing
    if waiting and stats.relay is None:
        return warn(
            "outbox",
            f"{plural(waiting, 'job')} wait, the oldest for {lasts(stats.oldest)}, and no process relays",
            "start a worker of this app, or `treadle storage relay MODULE:APP`",
        )
    if waiting and not stats.failing and stats.oldest > OLD:
        return warn(
            "outbox",
            f"{plural(waiting, 'job')} wait, the oldest for {lasts(stats.oldest)}; {stats.relay} relays",
            "its log says whether the storage of the jobs is away; otherwise the relay is behind",
        )
    return ok("outbox", f"{plural(waiting, 'job')} wait; {stats.relay or 'no process'} relays")
