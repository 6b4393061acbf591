"""The JSON of the native API: how a job is asked for, and how it is shown.

Without it clients would see the codec's text inside JSON, and would have to know which fields a storage keeps for
itself. Durations are seconds, moments are seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from treadle.admin import stored_values
from treadle.core import defaults, ids
from treadle.core.model import Record, State
from treadle.errors import UNREADABLE, TooLarge
from treadle.policy.retry import Retry
from treadle.serialization import call_codec
from treadle.serialization.tagged_json import has_mark
from treadle.server.body_weight import SMALL, weigh
from treadle.server.errors import Refused
from treadle.storage import messages
from treadle.tasks.options import Key
from treadle.tasks.when import When

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.job import JobSpec

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

    attempts: Annotated[int, Meta(ge=1, le=defaults.MAX_COUNT)] | UnsetType | None = UNSET
    base: Span | UnsetType = UNSET
    factor: Annotated[float, Meta(ge=1)] | UnsetType = UNSET
    max: Span | UnsetType = UNSET
    jitter: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET


class WhenAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """How many of `after` must have ended; without `need`, all of them."""

    need: Annotated[int, Meta(ge=1)] | None = None
    of: Literal["succeeded", "done"] = "succeeded"


MANY: Final = 1_000  # limits, labels or headers of one job; their options say how many make sense
Args = Annotated[Raw | UnsetType, Meta(extra_json_schema={"type": "array", "items": {}, "default": []})]
Kwargs = Annotated[Raw | UnsetType, Meta(extra_json_schema={"type": "object", "default": {}})]
Labels = Annotated[list[Name], Meta(max_length=MANY)] | Annotated[dict[str, str], Meta(max_length=MANY)] | UnsetType


class CallAsked(Struct, frozen=True):
    """What of a job is kept as text until its size is known."""

    args: Raw | UnsetType = UNSET
    kwargs: Raw | UnsetType = UNSET


class JobAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to send: a task by name, its arguments, and any of the options of docs/guides/options.md."""

    task: Name
    args: Args = UNSET
    kwargs: Kwargs = UNSET
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
    limits: Annotated[list[Name], Meta(max_length=MANY)] | UnsetType = UNSET
    cost: Annotated[int, Meta(ge=1, le=defaults.MAX_COUNT)] | UnsetType = UNSET
    aging: Span | UnsetType = UNSET
    keep: Span | UnsetType = UNSET
    keep_failed: Span | UnsetType = UNSET
    after: Annotated[list[Id], Meta(max_length=messages.LONG)] | UnsetType = UNSET
    when: WhenAsked | UnsetType = UNSET
    wait_timeout: Span | UnsetType = UNSET
    pass_result: bool | UnsetType = UNSET
    labels: Labels = UNSET
    headers: Annotated[dict[str, str], Meta(max_length=MANY)] | UnsetType = UNSET
    id: Id | UnsetType = UNSET


class JobsAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """Jobs to send together: all of them, or none."""

    jobs: Annotated[list[JobAsked], Meta(max_length=10_000)]


ENCODE: Final = msgspec.json.Encoder(enc_hook=repr).encode  # dates as text, bytes as base64, what is left by its words
CALL: Final = ("task", "args", "kwargs")


_any = msgspec.json.Decoder(Raw).decode
_envelope = msgspec.json.Decoder(CallAsked).decode


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
    task, payload = app.tasks.get(asked.task), None
    if task is None:
        payload = _payload(asked)
        given, named = _call(asked) if payload is None else ([], {})
        spec = app.stub(asked.task, **options).job(*given, **named)
        if payload is not None:
            spec = spec.changed(payload=payload)
    else:
        args, kwargs = task.signature.decode_call(call_codec.encode_foreign_call(*_call(asked), asked.task))
        spec = task.options(**options).job(*args, **kwargs)
    # Not as an option: derived ids are refused there.
    return spec if id is None or "id" in options else spec.changed(id=id, nonce=ids.nonce())


async def check_call(app: App, asked: JobAsked) -> None:
    """Raises TooLarge for arguments beyond the app's sizes, Refused (413) for too many values to be looked at."""
    args, kwargs = _texts(asked)
    size = len(args) + len(kwargs)
    if size > app.sizes.payload:
        raise TooLarge(f"the payload of {asked.task}", size, app.sizes.payload)
    if size > SMALL and (asked.task in app.tasks or _payload(asked) is None):
        await weigh(args)
        await weigh(kwargs)


def _texts(asked: JobAsked) -> tuple[memoryview, memoryview]:
    return memoryview(asked.args or b"[]"), memoryview(asked.kwargs or b"{}")


def _payload(asked: JobAsked) -> str | None:
    """Large arguments word for word: to decode and encode them takes a second for 16 MB of small values. None: they are
    small, or something in them has to be written in another way."""
    args, kwargs = _texts(asked)
    if len(args) + len(kwargs) <= SMALL:
        return None
    _check_shape(args, kwargs)
    try:
        first, second = bytes(args).decode(), bytes(kwargs).decode()
    except UnicodeDecodeError as error:
        raise Refused(400, "malformed", f"the body is not UTF-8: {error}") from None
    text = f'{{"args":{first},"kwargs":{second}}}' if asked.kwargs else first
    return None if has_mark(text) else text


def _call(asked: JobAsked) -> tuple[list[Any], dict[str, Any]]:
    args, kwargs = _texts(asked)
    _check_shape(args, kwargs)
    try:
        return msgspec.json.decode(args), msgspec.json.decode(kwargs)
    except msgspec.ValidationError as error:
        raise Refused(422, "wrong_shape", f"the body does not fit: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not JSON: {error}") from None


def _check_shape(args: memoryview, kwargs: memoryview) -> None:
    for name, found, sign, word in (("args", args, b"[", "array"), ("kwargs", kwargs, b"{", "object")):
        if found[:1] != sign:
            raise Refused(422, "wrong_shape", f"the body does not fit: expected `{word}` - at `$.{name}`")


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
    reason  of a failure: error, aborted, lost, expired, children; of a cancellation: asked, upstream, superseded;
            of a job that came back into line: "lost by <worker>", "declined by <worker>"
    warning of a call that sends: what seems wrong with a name in it
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
    warning: str | UnsetType = UNSET


def view(row: Record) -> JobView:
    """The row for everybody."""
    job = row.job
    args, kwargs = _arguments(job.payload)
    progress, note = stored_values.progress(row.note)
    return JobView(
        id=job.id,
        task=job.task,
        queue=job.queue,
        state=row.state,
        priority=job.priority,
        args=args,
        kwargs=kwargs,
        version=row.version,
        attempt=row.attempt,
        lost=row.lost,
        result=_plain(row.result),
        error=row.error,
        reason=row.reason,
        progress=progress,
        note=note,
        key=None if job.key is None else job.key.partition(" ")[2],
        lane=job.lane,
        labels=job.labels,
        headers=dict(job.headers),
        after=row.after,
        pending=row.pending,
        workflow=job.root or job.id,
        parent=job.parent,
        worker=row.worker,
        parked=row.parked,
        due_at=row.due_at,
        created_at=row.created_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        deadline_at=row.deadline_at,
    )


def _arguments(payload: str) -> tuple[Any, Any]:
    if len(payload) > SMALL and not has_mark(payload):  # as it stands
        try:
            found = _large(payload)
            return found.args or [], found.kwargs or {}
        except UNREADABLE:
            return [stored_values.utf8(payload)], {}
    return stored_values.carried_call(*stored_values.arguments(payload), payload, ENCODE)


def _large(payload: str) -> CallAsked:
    """Raises ValueError for what are no arguments."""
    if not payload.startswith("["):
        return _envelope(payload)
    return CallAsked(_any(payload))


def _plain(text: str | None) -> Any:
    if text is None:
        return None
    if len(text) > SMALL and not has_mark(text):
        try:
            return _any(text)
        except UNREADABLE:
            return stored_values.utf8(text)
    return stored_values.carried(stored_values.value(text), text, ENCODE)


class PageView(Struct, frozen=True):
    """One page of jobs. `cursor` goes on with the next one; null: this was the last."""

    jobs: Sequence[JobView]
    cursor: str | None
    total: int | None = None
    warning: str | UnsetType = UNSET


class JobViews(Struct, frozen=True):
    jobs: Sequence[JobView]
    warning: str | UnsetType = UNSET
