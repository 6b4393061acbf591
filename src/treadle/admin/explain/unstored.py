"""Explains jobs that the storage does not have, because the relay of the outbox has not delivered them yet."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from treadle.admin.explain import Facts, explain
from treadle.admin.job_filters import id_of
from treadle.core.command_lines import command
from treadle.core.errors import UnknownJob
from treadle.producer import Outboxes
from treadle.tasks.when import HasId


async def explained(facts: Callable[[HasId | str], Awaitable[Facts]], job: HasId | str, outbox: Outboxes | None) -> str:
    """The sentence about a job. Raises UnknownJob if it is not in the storage and not in the outbox."""
    try:
        return explain(await facts(job))
    except UnknownJob:
        entry = None if outbox is None else await outbox.find(id_of(job))
        if entry is None:
            return explain(await facts(job))  # it may have been delivered between the two reads
    if entry.became is not None:
        return f"The storage returned job {entry.became} for it. {explain(await facts(entry.became))}"
    failed = f" (failed deliveries: {entry.tries:,}; the last error: {entry.error})" if entry.error else ""
    relays, lists = (
        command("storage", "relay", "MODULE:APP"),
        command("storage", "relay", "list", options=["--app", "MODULE:APP"]),
    )
    delivered = f"A worker or {relays} delivers it; {lists} shows such jobs"
    return f"It is in the outbox and not delivered to the storage yet{failed}. {delivered}."
