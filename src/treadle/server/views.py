"""The JSON of the native API: how a job is asked for, and how it is shown.

Without it clients would see the codec's text inside JSON, and would have to know which fields a storage keeps for
itself. Durations are seconds, moments are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from treadle import codec, defaults
from treadle.errors import TreadleError
from treadle.model import Record, State
from treadle.options import Key, When
from treadle.retry import Retry

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.job import JobSpec

Id = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:@-]{1,255}$", description="The id of a job.")]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Span = Annotated[float, Meta(ge=0, le=defaults.MAX_DELAY, description="Seconds.")]
Priority = Annotated[int, Meta(ge=defaults.PRIORITY_RANGE[0], le=defaults.PRIORITY_RANGE[1])]


class KeyAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """At most one unfinished job per key; see the option `key`."""

    key: Name
    conflict: Literal["keep", "replace", "raise"] = "keep"
    window: Span | None = None
    until: Literal["ended", "started"] = "ended"
    shared: bool = False


class RetryAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields not given are the task's, then the app's."""

    attempts: Annotated[int, Meta(ge=1)] | UnsetType | None = UNSET
    base: Span | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1)] | UnsetType = UNSET
    max: Span | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class WhenAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """How many of `after` must have ended; without `need`, all of them."""

    need: Annotated[int, Meta(ge=1)] | None = None
    of: Literal["succeeded", "done"] = "succeeded"


class JobAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to send: a task by name, its arguments, and any of the options of docs/guides/options.md."""

    task: Name
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: Name | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    delay: Span | UnsetType = UNSET
    run_at: float | UnsetType = UNSET
    deadline: float | UnsetType = UNSET
    expires: Span | UnsetType = UNSET
    timeout: Span | UnsetType | None = UNSET
    retry: RetryAsked | UnsetType = UNSET
    lease: Span | UnsetType = UNSET
    max_lost: Annotated[int, Meta(ge=0)] | UnsetType = UNSET
    key: KeyAsked | Name | UnsetType = UNSET
    lane: Name | UnsetType = UNSET
    limits: list[Name] | UnsetType = UNSET
    cost: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    aging: Span | UnsetType = UNSET
    keep: Span | UnsetType = UNSET
    keep_failed: Span | UnsetType = UNSET
    after: list[Id] | UnsetType = UNSET
    when: WhenAsked | UnsetType = UNSET
    wait_timeout: Span | UnsetType = UNSET
    pass_result: bool | UnsetType = UNSET
    labels: list[Name] | dict[str, str] | UnsetType = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    id: Id | UnsetType = UNSET


class JobsAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to send together: all of them, or none."""

    jobs: Annotated[list[JobAsked], Meta(max_length=10_000)]


CALL: Final = ("task", "args", "kwargs")


def options_of(asked: JobAsked) -> dict[str, Any]:
    """The options as `task.options()` takes them."""
    found: dict[str, Any] = {}
    for name in asked.__struct_fields__:
        value = getattr(asked, name)
        if name not in CALL and value is not UNSET:
            found[name] = _option(name, value)
    return found


def spec_of(app: App, asked: JobAsked, id: str | None = None) -> JobSpec[Any]:
    """The job as the app would make it: checked against its task where the app has that, else taken as it is."""
    options = options_of(asked)
    if id is not None and "id" not in options:
        options["id"] = id
    task = app.tasks.get(asked.task)
    if task is None:
        return app.stub(asked.task, **options).job(*asked.args, **asked.kwargs)
    args, kwargs = task.signature.decode_call(codec.encode_foreign_call(asked.args, asked.kwargs, asked.task))
    return task.options(**options).job(*args, **kwargs)


def _option(name: str, value: Any) -> Any:
    if name in ("run_at", "deadline"):
        return moment_of(value)
    if isinstance(value, KeyAsked):
        return Key(value.key, value.conflict, value.window, value.until, value.shared)
    if isinstance(value, RetryAsked):
        return Retry(value.attempts, value.base, value.factor, value.max, value.jitter)
    if isinstance(value, WhenAsked):
        return When(value.need, value.of)
    return value


def moment_of(at: float) -> datetime:
    """A moment in range: what is before 1970 is past all the same, what is beyond the year 9000 is a mistake."""
    return datetime.fromtimestamp(min(max(at, 0.0), 2.2e11), UTC)


class JobView(Struct, frozen=True, kw_only=True):
    """A job as it stands.

    state   one of waiting, ready, running, succeeded, failed, cancelled
    result  what it returned, as JSON; null until it has succeeded
    reason  of a failure: error, aborted, lost, expired, children; of a cancellation: asked, upstream, superseded
    """

    id: str
    task: str
    queue: str
    state: State
    priority: int
    args: list[Any]
    kwargs: dict[str, Any]
    version: int
    attempt: int
    lost: int
    result: Any
    error: str | None
    reason: str | None
    progress: float | None
    note: str | None
    key: str | None
    lane: str | None
    labels: tuple[str, ...]
    headers: dict[str, str]
    after: tuple[str, ...]
    pending: int
    workflow: str
    parent: str | None
    worker: str | None
    parked: str | None
    due_at: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    deadline_at: float | None


def view(row: Record) -> JobView:
    """The row for everybody."""
    job = row.job
    args, kwargs = _arguments(job.payload)
    progress, note = _progress(row.note)
    return JobView(
        id=job.id, task=job.task, queue=job.queue, state=row.state, priority=job.priority, args=args, kwargs=kwargs,
        version=row.version, attempt=row.attempt, lost=row.lost, result=_plain(row.result), error=row.error,
        reason=row.reason, progress=progress, note=note, key=None if job.key is None else job.key.partition(" ")[2],
        lane=job.lane, labels=job.labels, headers=dict(job.headers), after=row.after, pending=row.pending,
        workflow=job.root or job.id, parent=job.parent, worker=row.worker, parked=row.parked, due_at=row.due_at,
        created_at=row.created_at, started_at=row.started_at, ended_at=row.ended_at, deadline_at=row.deadline_at,
    )  # fmt: skip


def _arguments(payload: str) -> tuple[list[Any], dict[str, Any]]:
    try:
        args, kwargs = codec.decode_foreign_call(payload)
        return [_json(each) for each in args], {name: _json(each) for name, each in kwargs.items()}
    except (TreadleError, ValueError, TypeError):
        return [payload], {}


def _plain(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return _json(codec.decode_any(text))
    except (TreadleError, ValueError, TypeError):
        return text


def _json(value: object) -> Any:
    """A value as JSON can say it: dates as text, bytes as base64, what is left by its words."""
    return msgspec.to_builtins(value, enc_hook=repr, str_keys=True)


def _progress(note: str | None) -> tuple[float | None, str | None]:
    if note is None:
        return None, None
    try:
        found = msgspec.json.decode(note)
        return float(found["progress"]), str(found["text"])
    except (ValueError, TypeError, KeyError):
        return None, note


class PageView(Struct, frozen=True):
    """One page of jobs. `cursor` goes on with the next one; null: this was the last."""

    jobs: Sequence[JobView]
    cursor: str | None
    total: int | None = None


class JobViews(Struct, frozen=True):
    jobs: Sequence[JobView]
