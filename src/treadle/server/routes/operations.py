"""The room of whoever operates: queues, limits, workers, counts. Without it they would need a shell on the server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from treadle.core.defaults import MAX_COUNT
from treadle.core.model import Count, Limit, LimitUse, Presence, State, Stats
from treadle.server.auth import rights
from treadle.server.errors import Refused
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.storage import messages
from treadle.tasks.options import name_of

if TYPE_CHECKING:
    from treadle.app import App


class QueueView(Struct, frozen=True, kw_only=True):
    """What is in one queue.

    in_line  due, and standing in line; the rest of the ready ones is scheduled for later or stands aside
    parked   stand aside for a limit
    oldest   s the first in line has stood there
    """

    name: str
    paused: bool
    waiting: int = 0
    ready: int = 0
    in_line: int = 0
    parked: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    oldest: float | None = None


class QueueViews(Struct, frozen=True):
    queues: Sequence[QueueView]


class Workers(Struct, frozen=True):
    workers: Sequence[Presence]


class LimitViews(Struct, frozen=True):
    """Each rule, and each partition of it that is in use."""

    limits: Sequence[LimitUse]


class LimitAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """A rule; `slots` or `rate` must be given. Slots 0 is a pause."""

    slots: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None
    rate: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    per: Annotated[float, Meta(gt=0)] = 1.0
    how: Literal["window", "bucket"] = "window"
    burst: Annotated[int, Meta(ge=1, le=MAX_COUNT)] | None = None
    hold: Literal["running", "ended"] = "running"


class Noted(Struct, frozen=True, omit_defaults=True):
    """The act is done. warning: what seems wrong with the name that was given."""

    warning: str | UnsetType = UNSET


class OperatorRoutes:
    """What one does to a whole storage."""

    def __init__(self, app: App) -> None:
        self._app = app

    def operations(self) -> list[Operation]:
        made = Operation
        return [
            made(
                method="GET",
                path="/v1/queues",
                run=self.queues,
                summary="Queues and what is in them",
                tag="operate",
                scope="read",
                gives=QueueViews,
            ),
            made(
                method="POST",
                path="/v1/queues/{name}/pause",
                run=self.pause,
                tag="operate",
                scope="operate",
                summary="Claim nothing more from a queue",
                gives=Noted,
            ),
            made(
                method="POST",
                path="/v1/queues/{name}/resume",
                run=self.resume,
                tag="operate",
                scope="operate",
                summary="Claim from it again",
                gives=Noted,
            ),
            made(
                method="GET",
                path="/v1/limits",
                run=self.limits,
                summary="Limits and their use",
                tag="operate",
                scope="read",
                gives=LimitViews,
            ),
            made(
                method="PUT",
                path="/v1/limits/{name}",
                run=self.set_limit,
                summary="Add or replace a limit",
                tag="operate",
                scope="operate",
                takes=LimitAsked,
                gives=Noted,
            ),
            made(
                method="DELETE",
                path="/v1/limits/{name}",
                run=self.drop_limit,
                summary="Remove a limit",
                tag="operate",
                scope="operate",
                gives=Noted,
            ),
            made(
                method="GET",
                path="/v1/workers",
                run=self.workers,
                summary="The workers heard of lately",
                tag="operate",
                scope="read",
                gives=Workers,
            ),
            made(
                method="GET",
                path="/v1/stats",
                run=self.stats,
                tag="operate",
                scope="read",
                gives=Stats,
                summary="Counts by queue, task and state; workers; limits",
            ),
        ]

    async def queues(self, call: Call[None, messages.Nothing]) -> QueueViews:
        stats = await self._app.storage.stats()
        paused = {use.key.partition(":")[2] for use in stats.limits if use.rule.slots == 0 and use.key[:6] == "queue:"}
        found: dict[str, dict[str, Any]] = {name: {} for name in paused}
        for count in stats.counts:
            _add(found.setdefault(count.queue, {}), count)
        return QueueViews(
            [
                QueueView(name=name, paused=name in paused, **parts)
                for name, parts in sorted(found.items())
                if call.token.serves([name]) is None
            ]
        )

    async def pause(self, call: Call[None, messages.Nothing]) -> Noted:
        return await self._shut_queue(call, True)

    async def resume(self, call: Call[None, messages.Nothing]) -> Noted:
        return await self._shut_queue(call, False)

    async def _shut_queue(self, call: Call[None, messages.Nothing], shut: bool) -> Noted:
        name = name_of(call.part("name"), "queue")
        call.allowed([name])
        with call.heard() as said:
            await (self._app.queues.pause(name) if shut else self._app.queues.resume(name))
        return Noted(said.text)

    async def limits(self, call: Call[None, messages.Nothing]) -> LimitViews:
        return LimitViews(rights.limits_seen(call.token, await self._app.limits.list()))

    async def set_limit(self, call: Call[LimitAsked, messages.Nothing]) -> Noted:
        for_everybody(call.token, "limits")
        asked = call.body
        if asked.slots is None and asked.rate is None:
            raise Refused(422, "wrong_shape", "a limit needs slots, rate, or both; DELETE removes it")
        rule = Limit(call.part("name"), asked.slots, asked.rate, asked.per, asked.how, asked.burst, asked.hold)
        with call.heard() as said:
            await self._app.limits.set(rule)
        return Noted(said.text)

    async def drop_limit(self, call: Call[None, messages.Nothing]) -> Noted:
        for_everybody(call.token, "limits")
        with call.heard() as said:
            await self._app.limits.set(Limit(call.part("name")))
        return Noted(said.text)

    async def workers(self, call: Call[None, messages.Nothing]) -> Workers:
        return Workers(rights.workers_seen(call.token, (await self._app.storage.stats()).workers))

    async def stats(self, call: Call[None, messages.Nothing]) -> Stats:
        return rights.seen(call.token, await self._app.storage.stats())


def _add(parts: dict[str, Any], count: Count) -> None:
    """One line of the counts onto its queue's."""
    for name, jobs in ((str(count.state), count.jobs), ("in_line", count.in_line), ("parked", count.parked)):
        parts[name] = parts.get(name, 0) + jobs
    if count.state is State.READY and count.oldest is not None:
        parts["oldest"] = max(parts.get("oldest") or 0.0, count.oldest)
