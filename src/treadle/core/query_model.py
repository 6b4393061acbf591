"""The data of reading: queries and their pages, counts, glances, and rows of metrics."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.core.limit_model import LimitUse
from treadle.core.model import Presence, Record, State

Order = Literal["newest", "oldest", "ended", "queue", "due", "started"]


class Query(Struct, frozen=True, gc=False, kw_only=True):
    """Which jobs to read. Every field that is set narrows the result; `cursor` continues after a page.

    order     newest | oldest (by creation, id) | ended (latest ending first) | queue (queue, then queue order) | due
              (unfinished jobs with a `due_at`, the earliest first) | started (running jobs, the earliest start first)
    ready     only the ready jobs that are queued, scheduled (not queued before their `due_at`) or blocked by a limit
    ahead_of  only the jobs queued ahead of this job, in its queue
    before    created before this instant
    since     created at this instant or later
    limit     rows per page
    scan      rows that the call looks at, at most; the page may then have fewer rows than `limit` and still a cursor,
              and says how far it looked (`scanned`, `scanned_to`). None: as many as it takes. It bounds the cost of
              filters that no index serves. A storage may look at fewer rows than it could, and passes over rows that an
              index excludes. At least 1.
    count     also count all jobs that match (`Page.total`), from the first one on, whatever the cursor. With `scan`
              those among the first `scan` rows: a total that equals `scan` may be too low.
    whole     with all checkpoints of each row. Otherwise a page has only those whose names begin with `OURS`: the steps
              of a durable function may have 16 MiB
    """

    ids: tuple[str, ...] = ()
    state: tuple[State, ...] = ()
    task: str | None = None
    queue: str | None = None
    root: str | None = None
    parent: str | None = None
    label: str | None = None
    before: float | None = None
    since: float | None = None
    cursor: str | None = None
    order: Order = "newest"
    ready: Literal["queued", "scheduled", "blocked"] | None = None
    ahead_of: str | None = None
    limit: int = 50
    scan: int | None = None
    count: bool = False
    whole: bool = False


class Page(Struct, frozen=True, gc=False):
    """A page of rows.

    scanned     with `Query.scan`: how many rows the call looked at
    scanned_to  with `Query.scan`, if a cursor remains: the instant of the last row it looked at, in the page's order
                (creation, ending, due time or start; None for "queue")
    """

    records: tuple[Record, ...] = ()
    cursor: str | None = None  # None: this is the last page
    total: int | None = None
    scanned: int | None = None
    scanned_to: float | None = None


Kind = Literal["waiting", "queued", "scheduled", "blocked", "running", "succeeded", "failed", "cancelled"]
"""The kinds that a storage counts: the states, with ready jobs as queued, scheduled (not due yet) or blocked."""


class Count(Struct, frozen=True, gc=False, kw_only=True):
    """The number of jobs of one queue and task in one state; for ready jobs, also how many are queued and how many are
    blocked.

    oldest  if any of these jobs is queued: seconds since the first queued job of the queue, of any task and priority,
            was queued
    """

    queue: str
    task: str
    state: State
    jobs: int
    queued: int = 0
    blocked: int = 0
    oldest: float | None = None


class CountDrift(Struct, frozen=True, gc=False, kw_only=True):
    """A group of jobs whose kept count differs from its rows.

    kept     the number that the storage kept
    counted  the number of rows
    limit    of blocked jobs, in a storage that counts them by limit: the limit that blocks them
    """

    queue: str
    task: str
    kind: Kind
    kept: int
    counted: int
    limit: str = ""


class Stats(Struct, frozen=True, gc=False, kw_only=True):
    counts: tuple[Count, ...] = ()
    workers: tuple[Presence, ...] = ()
    limits: tuple[LimitUse, ...] = ()


class QueueGlance(Struct, frozen=True, gc=False, kw_only=True):
    """The unfinished and the failed jobs of one queue.

    queued     due jobs that wait for a worker, counted up to the bound; `queued_capped`: there are at least as many
    oldest     seconds since the first queued job, of any priority, was queued; None: none is queued
    scheduled  ready jobs that are not due yet
    blocked    ready jobs that a limit blocks
    """

    name: str
    queued: int = 0
    queued_capped: bool = False
    oldest: float | None = None
    running: int = 0
    scheduled: int = 0
    blocked: int = 0
    waiting: int = 0
    failed: int = 0


class Glance(Struct, frozen=True, gc=False, kw_only=True):
    """The present state of a storage, at a cost that does not depend on how many rows it has.

    at      the storage's time
    queues  by name; those with a queued, running, scheduled, blocked, waiting or failed job
    capped  the counts that stopped at the bound, over all queues together, in this order: "running", "scheduled",
            "blocked", "waiting" and "failed". Each queue then has at least as many as its number says, and a queue
            without any other job may be missing.
    """

    at: float
    queues: tuple[QueueGlance, ...] = ()
    workers: tuple[Presence, ...] = ()
    limits: tuple[LimitUse, ...] = ()
    capped: tuple[str, ...] = ()


class MetricsRow(Struct, frozen=True, gc=False, kw_only=True):
    """The measurements of one source in one span of time. Storages do not read `data`.

    (at, span, source) is its identity: storing it again replaces it.

    at      the beginning of the span, seconds since 1970
    span    its length in seconds
    source  a worker's name; "" for a row that was made of the rows of several sources
    """

    at: float
    span: float
    source: str
    data: bytes = b""
