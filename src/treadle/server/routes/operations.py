"""The operations of operators: queues, limits, workers, counts, the audit log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import asdict

from treadle.admin import dropped
from treadle.admin.audit import AuditPage
from treadle.core.defaults import MAX_COUNT, SYSTEM_QUEUE
from treadle.core.limit_model import Limit, LimitUse, WhenFull
from treadle.core.model import Presence, State
from treadle.core.query_model import Count, Stats
from treadle.core.queue_rules import QueueRules
from treadle.server.auth import rights
from treadle.server.errors import Refused
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.storage import bound_of, bounds_in, messages
from treadle.tasks.options import name_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class QueueView(Struct, frozen=True, kw_only=True):
    """The jobs of one queue.

    queued   jobs that are due and wait for a worker; the other ready jobs are scheduled or blocked
    blocked  jobs that wait for a limit
    oldest   seconds that the oldest queued job has waited
    max_waiting  how many ready jobs may wait; null: any number. when_full: what becomes of a call that enqueues more
    """

    name: str
    paused: bool
    waiting: int = 0
    ready: int = 0
    queued: int = 0
    blocked: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    oldest: float | None = None
    max_waiting: int | None = None
    when_full: WhenFull | None = None


class QueueViews(Struct, frozen=True):
    queues: Sequence[QueueView]


class Workers(Struct, frozen=True):
    workers: Sequence[Presence]


class LimitViews(Struct, frozen=True):
    """Each rule, and each of its partitions in use."""

    limits: Sequence[LimitUse]


class LimitAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """The rule of a limit. One of `slots`, `rate` and `max_waiting` is required; `slots: 0` pauses the limit.

    max_waiting  only for a queue (`queue:NAME`): how many of its jobs may wait to be started
    when_full    what becomes of a call that enqueues more: it is refused (429), or other jobs are cancelled
    """

    slots: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    rate: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    per: Annotated[float, Meta(gt=0)] = 1.0
    how: Literal["window", "bucket"] = "window"
    burst: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    hold: Literal["running", "ended"] = "running"
    max_waiting: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    when_full: WhenFull = "refuse"


class Noted(Struct, frozen=True, omit_defaults=True):
    """The change is done.

    warning  a hint that the given name may be mistyped, or which parts of a limit's rule the new one has not
    """

    warning: str | UnsetType = UNSET


class AuditAsked(Struct, frozen=True, kw_only=True):
    """Which page of entries to read."""

    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


operate = partial(Operation, tag="operate", scope="operate")
read = partial(Operation, tag="operate", scope="read")


class OperatorRoutes:
    """The operations on a whole storage."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @read("GET /v1/queues")
    async def queues(self, call: Call[None, messages.Nothing]) -> QueueViews:
        """List queues with the number of their jobs."""
        stats = await self._core.storage.stats()
        rules = QueueRules(stats.limits)
        queues: dict[str, dict[str, Any]] = {name: {} for name in rules.paused}
        for count in stats.counts:
            _add(queues.setdefault(count.queue, {}), count)
        bounds = bounds_in(stats.limits)
        for name, parts in queues.items():
            if (rule := bound_of(bounds, name)) is not None:
                parts |= {"max_waiting": rule.max_waiting, "when_full": rule.when_full}
        return QueueViews(
            [
                QueueView(name=name, paused=rules.pause_of(name) is not None, **parts)
                for name, parts in sorted(queues.items())
                if name != SYSTEM_QUEUE and call.token.serves([name]) is None
            ]
        )

    @operate("POST /v1/queues/{name}/pause", audit="queue.pause")
    async def pause(self, call: Call[None, messages.Nothing]) -> Noted:
        """Pause a queue."""
        return await self._shut_queue(call, True)

    @operate("POST /v1/queues/{name}/resume", audit="queue.resume")
    async def resume(self, call: Call[None, messages.Nothing]) -> Noted:
        """Resume a queue."""
        return await self._shut_queue(call, False)

    async def _shut_queue(self, call: Call[None, messages.Nothing], shut: bool) -> Noted:
        name = name_of(call.part("name"), "queue")
        call.allowed([name])
        with call.heard() as warnings:
            await (self._core.queues.pause(name) if shut else self._core.queues.resume(name))
        return Noted(warnings.text)

    @read("GET /v1/limits")
    async def limits(self, call: Call[None, messages.Nothing]) -> LimitViews:
        """List limits and their use."""
        return LimitViews(rights.limits_seen(call.token, await self._core.limits.list()))

    @operate(
        "PUT /v1/limits/{name}",
        audit="limit.set",
        details=("slots", "rate", "per", "how", "burst", "hold", "max_waiting", "when_full"),
    )
    async def set_limit(self, call: Call[LimitAsked, messages.Nothing]) -> Noted:
        """Add or replace a limit."""
        for_everybody(call.token, "limits")
        body = call.body
        rule = Limit(call.part("name"), **asdict(body))
        if rule.empty:
            raise Refused(422, "wrong_shape", "expected slots, rate or max_waiting; DELETE removes a limit")
        before = await self._core.limits.list(use=False)
        with call.heard() as warnings:
            await self._core.limits.set(rule)
            if (lost := dropped(before, rule)) is not None:
                warnings.tell(lost)
        return Noted(warnings.text)

    @operate("DELETE /v1/limits/{name}", audit="limit.delete")
    async def drop_limit(self, call: Call[None, messages.Nothing]) -> Noted:
        """Remove a limit."""
        for_everybody(call.token, "limits")
        with call.heard() as warnings:
            await self._core.limits.set(Limit(call.part("name")))
        return Noted(warnings.text)

    @operate("POST /v1/limits/{name}/pause", audit="limit.pause")
    async def pause_limit(self, call: Call[None, messages.Nothing]) -> Noted:
        """Start no job that names this limit until it is resumed; its rule is kept."""
        return await self._shut_limit(call, self._core.limits.pause)

    @operate("POST /v1/limits/{name}/resume", audit="limit.resume")
    async def resume_limit(self, call: Call[None, messages.Nothing]) -> Noted:
        """Resume a limit with its current rule."""
        return await self._shut_limit(call, self._core.limits.resume)

    async def _shut_limit(self, call: Call[None, messages.Nothing], act: Callable[[str], Awaitable[None]]) -> Noted:
        for_everybody(call.token, "limits")
        with call.heard() as warnings:
            await act(call.part("name"))
        return Noted(warnings.text)

    @read("GET /v1/workers")
    async def workers(self, call: Call[None, messages.Nothing]) -> Workers:
        """List the workers that have sent a heartbeat recently."""
        return Workers(rights.workers_seen(call.token, (await self._core.storage.glance()).workers))

    @read("GET /v1/stats")
    async def stats(self, call: Call[None, messages.Nothing]) -> Stats:
        """Count jobs by queue, task and state; list workers and limits."""
        return rights.seen(call.token, await self._core.storage.stats())

    @operate("GET /v1/audit")
    async def audit(self, call: Call[None, AuditAsked]) -> AuditPage:
        """List who did what, the newest first."""
        for_everybody(call.token, "entries of the audit log")
        return await self._core.audit.list(cursor=call.query.cursor, limit=call.query.limit)


def _add(parts: dict[str, Any], count: Count) -> None:
    """Add one count to the sums of its queue."""
    for name, jobs in ((str(count.state), count.jobs), ("queued", count.queued), ("blocked", count.blocked)):
        parts[name] = parts.get(name, 0) + jobs
    if count.state is State.READY and count.oldest is not None:
        parts["oldest"] = max(parts.get("oldest") or 0.0, count.oldest)
