"""Sends a claim as JSON, and reads the rows that it returns.

`functions/settle_and_claim.sql` and `claim_with_limits.sql` decide which jobs are next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from treadle.core.model import Claim, Claimed, Record
from treadle.storage.postgres.connection import Row
from treadle.storage.postgres.rows import escaped, record, text
from treadle.storage.postgres.scan_floor import Floor
from treadle.storage.postgres.topics import Caller, noting
from treadle.storage.row_rules import claim_slot, in_order

AGAIN, UNFINISHED = 1, 2  # in the last row: the claim id was used before; more is left to scan
CLAIM: Final = noting("SELECT * FROM {schema}.settle_and_claim(%s::float8, NULL, 0, false, %s::json)", 13)

Floors = dict[str, Floor] | None


class Watch(Protocol):
    """Observes claims, and chooses where the next ones begin to scan."""

    def floors(self, ask: Claim) -> Floors:
        """Where to begin to scan each queue; None: at the head."""
        ...

    def claimed(self, ask: Claim, floors: Floors, records: Sequence[Record], blocked: int) -> None:
        """These jobs were claimed, and `blocked` jobs were blocked by limits."""
        ...


class Nobody:
    """The watch inside a user's transaction, which never claims."""

    def floors(self, ask: Claim) -> Floors:
        return None

    def claimed(self, ask: Claim, floors: Floors, records: Sequence[Record], blocked: int) -> None: ...


async def claim(run: Caller, ask: Claim, now: float | None, watch: Watch) -> Claimed:
    while True:
        floors = watch.floors(ask)
        answer = claimed(await run.call(CLAIM, [now, claim_fields(ask, floors)]), ask, watch, floors)
        if answer is not None:
            return answer


def claim_fields(ask: Claim, floors: Floors) -> str:
    name, slot = claim_slot(ask.worker)
    tasks = None if ask.tasks is None else sorted(ask.tasks)
    fields: dict[str, Any] = {
        "worker": ask.worker,
        "name": name,
        "slot": slot,
        "queues": [queue for queue, _ in ask.queues],
        "shares": [share for _, share in ask.queues],
        "limit": ask.limit,
        "lease": ask.lease,
        "ids": list(dict.fromkeys(ask.ids)),
        "running": ask.running,
    }
    if ask.ids and ask.reach:
        fields["reach"] = ask.reach
    if floors is not None:
        fields["floors"] = {escaped(queue): floor for queue, floor in floors.items()}
    if ask.tasks is not None and tasks is not None:
        fields["tasks"] = tasks
        if any(lease is not None for _, lease in ask.tasks.values()):
            fields["leases"] = [ask.tasks[task][1] or None for task in tasks]
        if any(room is not None for room, _ in ask.tasks.values()):
            fields["rooms"] = [ask.tasks[task][0] for task in tasks]
    return text(fields)


def claimed(rows: Sequence[Row], ask: Claim, watch: Watch, floors: Floors) -> Claimed | None:
    """The result of a claim: its last row describes the claim, the others are its jobs. None: repeat the claim, it has
    found none yet and more is left to scan."""
    *job_rows, head = rows
    again, blocked, now, due_at = head[2], head[3], head[9], head[8]
    records = [record(row) for row in job_rows]
    unread = again == UNFINISHED and not job_rows
    if again != AGAIN and (blocked or not unread):  # without its turn, a call has read no queue
        watch.claimed(ask, floors, records, blocked)
    if unread:
        return None
    if again == AGAIN:
        records = in_order(records, ask.queues)
    return Claimed(tuple(records), None if due_at is None else max(0.0, due_at - now))
