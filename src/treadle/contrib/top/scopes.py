"""The jobs behind a row of a panel: the jobs of a queue, a group of failures, a limit or a worker. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct

from treadle.admin.failure_groups import FailureGroup, key_of
from treadle.cli import job_view
from treadle.cli.output import age
from treadle.contrib.top.grid import Column, Row, Tone, cell
from treadle.core.model import Presence, Record, State
from treadle.core.placement_words import has_words
from treadle.core.query_model import Order
from treadle.core.redaction import in_line
from treadle.server.overview import QueueOverview

STATUSES: Final = ("running", "queued", "scheduled", "blocked", "waiting", "failed", "succeeded", "cancelled")
ORDERS: Final[Mapping[str, Order]] = {
    "running": "started",
    "scheduled": "due",
    "waiting": "newest",
    "blocked": "newest",
    "failed": "ended",
    "succeeded": "ended",
    "cancelled": "ended",
}
COLUMNS: Final = (
    Column(name="task", stretch=True, least=10, most=30),
    Column(name="id", rank=3, most=40),
    Column(name="queue", rank=5, most=16),
    Column(name="attempts", rank=4, right=True),
    Column(name="created", rank=2, right=True),
    Column(name="what", rank=1, stretch=True, least=14, most=200),
)


class Scope(Struct, frozen=True, kw_only=True):
    """Jobs that belong together.

    title     describes them, such as the name of their queue
    filters   arguments of `app.jobs.list`
    statuses  the states that they can have
    first     the index of the state that is shown first
    keeps     whether a row that matches the filters belongs to them
    """

    title: str
    filters: Mapping[str, Any] = {}
    statuses: tuple[str, ...] = STATUSES
    first: int = 0
    keeps: Callable[[Record], bool] = lambda row: True

    def order(self, status: str) -> Order:
        return "queue" if status == "queued" and "queue" in self.filters else ORDERS.get(status, "newest")


def of_queue(queue: QueueOverview) -> Scope:
    """The jobs of a queue. The first state that has any is shown first."""
    counts = (queue.running, queue.queued, queue.scheduled, queue.blocked, queue.waiting, queue.failed)
    first = next((index for index, jobs in enumerate(counts) if jobs), STATUSES.index("succeeded"))
    return Scope(title=f"queue {in_line(queue.name)}", filters={"queue": queue.name}, first=first)


def of_group(group: FailureGroup) -> Scope:
    return Scope(
        title=f"{in_line(group.task)}: {in_line(group.signature)}",
        filters={"queue": group.queue, "task": group.task},
        statuses=("failed",),
        keeps=lambda row: key_of(row).text == group.key,
    )


def of_limit(key: str) -> Scope:
    """The jobs that a limit blocks, and the jobs that hold its slots."""
    name = key.partition(":")[2]
    is_queue = key.startswith("queue:")

    def keeps(row: Record) -> bool:
        if row.state is State.READY:
            return row.blocked_on == key
        return is_queue or key == "queue" or key in dict(row.job.limits)

    return Scope(
        title=f"limit {in_line(key)}",
        filters={"queue": name} if is_queue else {},
        statuses=("blocked", "running"),
        keeps=keeps,
    )


def of_worker(worker: Presence) -> Scope:
    """The jobs that a worker runs; the title has its labels and resources."""
    return Scope(
        title=in_line(f"worker {worker.worker}  {has_words(worker)}".rstrip()),
        filters={"worker": worker.worker},
        statuses=("running",),
    )


def row_of(row: Record, now: float) -> Row:
    """A job as a row."""
    tone: Tone = "bad" if row.error else "warn" if row.blocked_on and row.queue_position is None else ""
    return Row(
        row.id,
        (
            cell(row.job.task or "(promise)", "strong"),
            cell(row.id, "dim"),
            cell(row.job.queue),
            cell(row.attempt, "" if row.attempt else "dim"),
            cell(age(row.created_at, now)),
            cell(job_view.what(row, now), tone),
        ),
    )
