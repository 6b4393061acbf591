"""The facts that a sentence is made of: the row, and what was read of its surroundings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin.explain.locked import Locked
from treadle.core import ids
from treadle.core.errors import UNREADABLE
from treadle.core.limit_model import LimitUse
from treadle.core.model import ASLEEP, DECLINED, KEPT_FROM, LOST_BY, Record, State
from treadle.core.query_model import Glance
from treadle.durable import kind_of, read_entry
from treadle.storage import MoveState
from treadle.storage.row_rules import costs, delay_of


class Facts(Struct, frozen=True, kw_only=True):
    """The job of a sentence and its surroundings, as far as its state makes them relevant.

    row        the job
    glance     queues, workers and limits
    now        the storage's time
    upstreams  the rows that it waits for, by id; None: not stored, or of a queue that the caller may not see
    ahead      the number of queued jobs before it, counted up to MOST_AHEAD; None: it is not queued
    first      the first job of its queue, if others are ahead of it
    running    running jobs that the caller may see, the earliest start first, a bounded number
    rivals     jobs that come before it and need room in the limit that blocks it
    parent     the running job whose function enqueued it
    holder     the job that has its key and still runs
    other      the job that it cleans up after or takes a step of, or the cleanup of an ended job
    lock       the lock that it waits for
    mark       the move that the storage takes part in
    paused     for limits that an operator has paused: when and by whom, as far as the audit log says
    """

    row: Record
    glance: Glance
    now: float
    upstreams: Mapping[str, Record | None] = {}
    ahead: int | None = None
    first: Record | None = None
    running: tuple[Record, ...] = ()
    rivals: tuple[Record, ...] = ()
    parent: Record | None = None
    holder: Record | None = None
    other: Record | None = None
    lock: Locked | None = None
    mark: MoveState | None = None
    paused: Mapping[str, tuple[float, str]] = {}

    def use_of(self, *keys: str) -> LimitUse | None:
        """The first of these limits that has a rule."""
        uses = {use.key: use for use in self.glance.limits}
        return next((uses[key] for key in keys if key in uses), None)

    def rule_of(self, key: str) -> LimitUse | None:
        """The rule that this key obeys: its own, or else the rule of the name before the colon. The counts of that rule
        are not those of this key."""
        return self.use_of(key, key.partition(":")[0])

    @property
    def waiting_row(self) -> Record:
        """The row, which also waits for the former holder of its key by name."""
        row = self.row
        return row if self.holder is None else replace(row, after=(*row.after, self.holder.job.id))

    @property
    def late(self) -> bool:
        """Whether its deadline has passed."""
        row = self.row
        return row.deadline_at is not None and row.deadline_at <= self.now and not row.function_done

    def holders(self, key: str) -> list[Record]:
        """The running jobs that hold slots of a limit."""
        return [row for row in self.running if key in dict(costs(row.job))]


def limits_within(glance: Glance, reach: Sequence[str]) -> Glance:
    """The glance for a caller whose rights cover these queues; (): all queues.

    It contains the limits of these queues, and the rule for every queue without its use.
    """
    if not reach:
        return glance
    own = {f"queue:{queue}" for queue in reach}
    common = [replace(use, used=0, blocked=0, starts=0, next_start=None) for use in glance.limits if use.key == "queue"]
    return replace(glance, limits=(*[use for use in glance.limits if use.key in own], *common))


def made_by(rows: Sequence[Record], id: str) -> Record | None:
    """The one of these runs that enqueued the job with this id; None if none of them did."""
    stem = ids.stem(id)
    return next((row for row in rows if ids.derived(row.job.id, row.version) == stem), None) if stem else None


def asleep_in(row: Record) -> str | None:
    """The durable sleep, time limit or step for whose time its last run suspended; None: it does not sleep."""
    if (key := _after(ASLEEP, row)) is None:
        return None
    with suppress(KeyError, *UNREADABLE):
        if kind_of(key, read_entry(dict(row.checkpoints)[key])) == "timeout":
            return f"time limit {key!r}"
    return f"step {key!r}"


def declined_by(row: Record) -> str | None:
    """The worker whose `accept=` declined the job, if it has not run since."""
    return _after(DECLINED, row)


def kept_from(row: Record) -> str | None:
    """The lock that its last run may not take, and why."""
    return _after(KEPT_FROM, row)


def lost_by(row: Record) -> str | None:
    """The worker whose lease on the job expired, if it has not been settled since."""
    return _after(LOST_BY, row)


def _after(prefix: str, row: Record) -> str | None:
    reason = row.reason or ""
    return reason.removeprefix(prefix) if reason.startswith(prefix) else None


def is_due(row: Record, now: float) -> bool:
    """Whether a ready job would be queued by the next claim, although no claim has queued it yet."""
    return row.state is State.READY and row.due_at is not None and row.due_at <= now


def waits_since(row: Record) -> float:
    """Since when a ready job has waited to run. If it has a lane, its position is not a point in time."""
    place = row.return_position
    if place is None or row.job.lane is not None:
        begun = row.created_at + delay_of(row.job, row.created_at) if row.started_at is None else row.updated_at
        return max(begun, row.updated_at)
    return max(place + row.job.aging * row.job.priority, row.updated_at if row.started_at is not None else 0.0)
