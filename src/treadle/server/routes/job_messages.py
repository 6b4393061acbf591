"""The request and response types of the operations on jobs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from treadle.core.query_model import Order
from treadle.tasks.json_options import Id, Name, moment_of

Status = Literal["queued", "scheduled", "blocked", "waiting", "running", "succeeded", "failed", "cancelled"]


class JobFilter(Struct, frozen=True, kw_only=True):
    """Filters for jobs.

    state   one or several, separated by commas
    status  queued, scheduled or blocked, which are the three kinds of ready jobs, or one of the other states
    q       an id, the first 8 or more characters of one, or a text in task, arguments, error, labels or key of a job;
            case does not matter
    since   created at this instant or later; before: earlier. Seconds since 1970
    """

    state: str | None = None
    status: Status | None = None
    q: Annotated[str, Meta(min_length=1, max_length=1_000)] | None = None
    task: Name | None = None
    queue: Name | None = None
    workflow: Id | None = None
    parent: Id | None = None
    label: Name | None = None
    since: Annotated[float, Meta(ge=0)] | None = None
    before: Annotated[float, Meta(ge=0)] | None = None

    def filters(self) -> dict[str, Any]:
        """The filters as arguments of `app.jobs.list`."""
        filters: dict[str, Any] = {
            "task": self.task,
            "queue": self.queue,
            "workflow": self.workflow,
            "parent": self.parent,
            "label": self.label,
            "status": self.status,
            "search": self.q,
        }
        if self.state is not None:
            filters["state"] = tuple(state.strip() for state in self.state.split(","))
        for name, moment in (("since", self.since), ("before", self.before)):
            if moment is not None:
                filters[name] = moment_of(moment)
        return {name: value for name, value in filters.items() if value is not None}


class Listing(JobFilter, frozen=True, kw_only=True):
    """Filters for jobs, and the page to read.

    scan   rows to look at; 100,000 by default, on Redis and similar storages 10,000. The page may be short, or empty,
           and still have a cursor. Not together with `count`
    count  also count all jobs that match; not together with `q`. The call then looks at as many rows as it takes
    order  newest, oldest, ended (latest ending first), queue, due (unfinished jobs, the earliest due time first) or
           started (running jobs, the earliest start first)
    worker only the jobs that the worker with this name runs now; not together with `count`
    """

    worker: Name | None = None
    scan: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    order: Order = "newest"
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 50
    count: bool = False


class Patience(Struct, frozen=True):
    timeout: Annotated[float, Meta(ge=0, description="Seconds.")] = 20.0


class ValueRead(Struct, frozen=True):
    """The name of a published value, and how long to wait for the first one."""

    name: Name
    timeout: Annotated[float, Meta(ge=0, description="Seconds.")] = 0.0


class Cancel(Struct, frozen=True, forbid_unknown_fields=True):
    """tree: with its children. force: without the cleanup of a durable job."""

    tree: bool = True
    force: bool = False


class Rerun(Struct, frozen=True, forbid_unknown_fields=True):
    """The stored step from which a job runs again; null: from the start."""

    from_step: str | None = None


class Fork(Struct, frozen=True, forbid_unknown_fields=True):
    """The stored step from which a new job continues; null: from the start. Without `args` and `kwargs` it has the
    arguments of the other job."""

    from_step: str | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None


class SignalAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a signal, and its value, any JSON."""

    name: Name
    value: Any = None


class MessageSent(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a mailbox, and a value, any JSON.

    key  a message that is sent again with its key is received once
    """

    name: Name
    value: Any = None
    key: Name | None = None


class AskSent(MessageSent, frozen=True, forbid_unknown_fields=True):
    """A message, and how long its sender waits for the answer."""

    timeout: Annotated[float, Meta(ge=0, description="Seconds.")] = 10.0


class Answered(Struct, frozen=True):
    """A value of a job, any JSON."""

    value: Any


class Acted(Struct, frozen=True):
    """The number of jobs that were changed. warning: a hint that the given name may be mistyped."""

    jobs: int
    warning: str | UnsetType = UNSET


class Explained(Struct, frozen=True):
    """One sentence: why the job is not running, or how it ended."""

    text: str
    position: int | None
