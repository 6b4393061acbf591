"""The JSON of the native API: the request that enqueues a job, and the job as answers show it.

Durations are in seconds, times in seconds since 1970. Arguments and results are JSON values, not the texts of the
codec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, cast

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict, replace

from treadle.core import ids
from treadle.core.errors import TooLarge
from treadle.core.long_numbers import unreadable
from treadle.core.model import NewJob, Record, State, progress_of
from treadle.core.payload_redaction import Redaction
from treadle.core.plain_json import read_json, refuse_deep
from treadle.core.ranges import OWN
from treadle.policy import guilt
from treadle.policy.pauses import due_at, paused_at
from treadle.policy.retry import Retry, read_policy
from treadle.serialization import call_codec, has_mark
from treadle.server.errors import Refused
from treadle.server.long_lists import SMALL, weigh
from treadle.server.routes.job_messages import Status
from treadle.server.shown_payloads import Payload, Why, arguments, headers, hides, plain
from treadle.storage import ready_kind
from treadle.tasks.json_options import JobOptions, Name, RetryAsked, options_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.job import JobSpec

Args = Annotated[
    Raw | UnsetType,
    Meta(description="Arguments by position.", extra_json_schema={"type": "array", "items": {}, "default": []}),
]
Kwargs = Annotated[
    Raw | UnsetType,
    Meta(description="Arguments by name.", extra_json_schema={"type": "object", "default": {}}),
]


class CallAsked(Struct, frozen=True):
    """The fields of a request that stay JSON text until their size is known."""

    args: Raw | UnsetType = UNSET
    kwargs: Raw | UnsetType = UNSET


class JobAsked(JobOptions, frozen=True, forbid_unknown_fields=True):
    """A job to enqueue: a task by name, its arguments and options.

    If the server has the task, options that are not given are the task's.
    """

    task: Annotated[Name, Meta(description="Name of the task.")]
    args: Args = UNSET
    kwargs: Kwargs = UNSET


class JobsAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to enqueue together: all of them, or none."""

    jobs: Annotated[list[JobAsked], Meta(max_length=10_000)]


def spec_of(core: AppCore, sent: JobAsked, id: str | None = None) -> JobSpec[Any]:
    """The job as the app would create it. Its arguments are checked if the app has the task, else stored unchanged."""
    options = options_of(sent)
    task, payload = core.declared.get(sent.task), None
    if task is None:
        payload = _payload(sent)
        positional, named = _call(sent) if payload is None else ([], {})
        spec = core.stub(sent.task, **options).job(*positional, **named)
        if payload is not None:
            spec = spec.changed(payload=payload)
    else:
        args, kwargs = task._core.signature.decode_call(call_codec.encode_foreign_call(*_call(sent), sent.task))
        spec = task.options(**options).job(*args, **kwargs)
    # The id is set here, because the option `id` refuses derived ids.
    return spec if id is None or "id" in options else spec.changed(id=id, nonce=ids.nonce())


async def check_call(core: AppCore, sent: JobAsked) -> None:
    """Raises TooLarge for arguments beyond the app's sizes, Refused (413) for more values than the server decodes."""
    args, kwargs = _texts(sent)
    size = len(args) + len(kwargs)
    if size > core.sizes.payload:
        raise TooLarge(f"the payload of {sent.task}", size, core.sizes.payload)
    if size > SMALL and (sent.task in core.tasks or _payload(sent) is None):
        await weigh(args)
        await weigh(kwargs)


def _texts(sent: JobAsked) -> tuple[memoryview, memoryview]:
    return memoryview(sent.args or b"[]"), memoryview(sent.kwargs or b"{}")


def _payload(sent: JobAsked) -> str | None:
    """Large arguments unchanged: to decode and encode 16 MB of small values takes a second. None: they are small, or
    contain a value that the codec writes in another way."""
    args, kwargs = _texts(sent)
    if len(args) + len(kwargs) <= SMALL:
        return None
    _check_shape(args, kwargs)
    try:
        refuse_deep(args)
        refuse_deep(kwargs)
        first, second = bytes(args).decode(), bytes(kwargs).decode()
    except UnicodeDecodeError as error:
        raise Refused(400, "malformed", f"the body is not UTF-8: {error}") from None
    except RecursionError as error:
        raise Refused(400, "malformed", f"the body is nested too deep: {error}") from None
    text = f'{{"args":{first},"kwargs":{second}}}' if sent.kwargs else first
    return None if has_mark(text) else text


def _call(sent: JobAsked) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = _texts(sent)
    _check_shape(args, kwargs)
    try:
        return read_json(args), read_json(kwargs)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_shape", f"invalid body: {unreadable(error, bytes(args) + bytes(kwargs))}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not JSON: {error}") from None


def _check_shape(args: memoryview, kwargs: memoryview) -> None:
    for name, text, sign, word in (("args", args, b"[", "array"), ("kwargs", kwargs, b"{", "object")):
        if text[:1] != sign:
            raise Refused(422, "wrong_shape", f"invalid body: expected `{word}` - at `$.{name}`")


class Again(Struct, frozen=True):
    """How to enqueue a job like this one.

    options  the options of its request; also those with a default, because a task may have another one
    without  what the new job would lack, although this one has it: "key", "after", "workflow", "headers", "lane weight"
    """

    options: JobOptions
    without: tuple[str, ...]


class JobView(Struct, frozen=True, kw_only=True):
    """A job in its present state.

    state    one of waiting, ready, running, succeeded, failed, cancelled
    result   the returned value as JSON; null until the job has succeeded
    reason   of a failure: error, arguments, result, code, aborted, lost, expired, children; of a cancellation: asked,
             upstream, superseded; of a job that is queued again: "lost by <worker>", "declined by <worker>", "asleep in
             <step>"
    status   the state, or of a ready job whether it is queued, scheduled or blocked
    suspect  of a job whose worker was lost, which may be the cause: it waits to run alone (if it is running: a worker
             holds it), runs alone now, or shares its process with other jobs
    reopenings      how often it was reopened
    function_done   its function has run (or it has none), and only its ending is left
    queue_position  the instant that orders it in its queue; null: it is not queued
    limits          the limits that it names
    expires_at      when its row may be deleted
    due_at    when the job is due, or its lease ends; null for a paused job
    paused_at since when the job is paused: it runs when it is resumed
    withheld        the payloads that are not shown as they are stored, and why: hidden (a secret is replaced by `***`),
                    shape (the token has no right to payloads), offloaded (the blob store did not return the text),
                    encrypted (its key is not known here), unreadable, typed (a value of a type that JSON lacks, such as
                    a date, is shown as text)
    again    in the answer to a request for one job: how to enqueue an equal job
    warning  in the answer to a request that enqueues: a name in the request that seems to be mistyped
    """

    id: str
    task: str
    queue: str
    state: State
    status: Status
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
    blocked_on: str | None
    due_at: float | None
    paused_at: float | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    deadline_at: float | None
    expires_at: float | None
    reopenings: int
    function_done: bool
    queue_position: float | None
    limits: tuple[str, ...]
    suspect: guilt.Standing | None = None
    withheld: dict[Payload, Why] = {}
    again: Again | UnsetType = UNSET
    warning: str | UnsetType = UNSET


def view_of_one(row: Record, redaction: Redaction) -> JobView:
    """As `view`, with what a request needs that enqueues an equal job."""
    hidden = redaction.row(row)
    shown = _view(row, hidden, redaction)
    return replace(shown, again=_again(row, *headers(row, hidden, redaction.rest)))


def view(row: Record, redaction: Redaction) -> JobView:
    """The row as answers show it to a caller with this redaction."""
    return _view(row, redaction.row(row), redaction)


def _view(stored: Record, row: Record, redaction: Redaction) -> JobView:
    """`row`: what `redaction.row` returns for the stored one. Its secrets are already hidden, so a text is searched
    again only if it is shown in another form."""
    job, rest = row.job, redaction.rest
    args, kwargs, why_args = arguments(job.payload, redaction)
    result, why_result = plain(row.result, redaction)
    shown_headers, why_headers = headers(stored, row, rest)
    if hides(stored.job.payload, job.payload):
        why_args = "hidden"
    if hides(stored.result, row.result):
        why_result = "hidden"
    reasons: dict[Payload, Why | None] = {"arguments": why_args, "result": why_result, "headers": why_headers}
    progress, note = progress_of(row.note)
    return JobView(
        id=job.id,
        task=job.task,
        queue=job.queue,
        state=row.state,
        status=cast("Status", ready_kind(row) or str(row.state)),
        priority=job.priority,
        args=args,
        kwargs=kwargs,
        version=row.version,
        attempt=row.attempt,
        lost=row.lost,
        suspect=guilt.standing(row),
        result=result,
        error=rest.error(row.error),
        reason=row.reason,
        progress=progress,
        note=rest.text(note),
        key=None if job.key is None else job.key.partition(" ")[2],
        lane=job.lane,
        labels=job.labels,
        headers=shown_headers,
        after=row.after,
        pending=row.pending,
        workflow=job.root or job.id,
        parent=job.parent,
        worker=row.worker,
        blocked_on=row.blocked_on,
        due_at=due_at(row),
        paused_at=paused_at(row),
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        deadline_at=row.deadline_at,
        expires_at=row.expires_at,
        reopenings=row.reopenings,
        function_done=row.function_done,
        queue_position=row.queue_position,
        limits=tuple(name for name, _ in job.limits),
        withheld={name: why for name, why in reasons.items() if why is not None},
    )


def _again(row: Record, headers: Mapping[str, str], hidden: str | None) -> Again:
    """How to enqueue an equal job.

    headers  as the caller may see them
    hidden   why these are not the stored headers: then they are left out
    """
    job = row.job
    policy = read_policy(job.retry)
    costs = {name: cost for name, cost in job.limits if not name.startswith(OWN)}
    alike = len(set(costs.values())) < 2
    options: dict[str, Any] = {
        "queue": job.queue,
        "priority": job.priority,
        "timeout": policy.timeout,
        "retry": _retry(policy.retry),
        "max_lost": policy.max_lost,
        "lease": _unless_none(job.lease),
        "expires": _unless_none(job.deadline),
        "lane": _unless_none(job.lane),
        "limits": list(costs) if alike else costs,
        "cost": next(iter(costs.values()), 1) if alike else UNSET,
        "aging": job.aging,
        "keep": job.keep,
        "keep_failed": job.keep_failed,
        "labels": list(job.labels),
        "headers": dict(headers) if hidden is None else UNSET,
    }
    lost = {
        "key": job.key is not None,
        "after": bool(job.after),
        "workflow": job.root is not None,
        "headers": bool(headers) and hidden is not None,
        "lane weight": job.stride != NewJob(id="").stride,
    }
    return Again(JobOptions(**options), tuple(name for name, is_lost in lost.items() if is_lost))


def _retry(retry: Retry | UnsetType) -> RetryAsked | UnsetType:
    return UNSET if retry is UNSET or retry is None else RetryAsked(**asdict(retry))


def _unless_none(value: Any) -> Any:
    return UNSET if value is None else value


class PageView(Struct, frozen=True):
    """One page of jobs. `cursor` reads the next page; null: this was the last one.

    scanned     how many rows the call looked at; null: it did not have to look at rows that do not match
    scanned_to  if a cursor remains, the instant of the last row it looked at, in the order of the page
    """

    jobs: Sequence[JobView]
    cursor: str | None
    total: int | None = None
    scanned: int | None = None
    scanned_to: float | None = None
    warning: str | UnsetType = UNSET


class JobViews(Struct, frozen=True):
    jobs: Sequence[JobView]
    warning: str | UnsetType = UNSET
