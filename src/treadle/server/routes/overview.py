"""The operations that show the present state of a storage: the overview, figures for autoscalers, the checks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Final, Literal

from msgspec import Meta, Struct

from treadle.server.doctor import Check, examine
from treadle.server.doctor.common import warn
from treadle.server.kept_answer import KeptAnswers
from treadle.server.longpoll import EventStream, LongPoll
from treadle.server.middleware import for_everybody
from treadle.server.operation import Call, Operation
from treadle.server.overview import Looks, Overview
from treadle.server.scale import MOST_ASKED, Scale, ScaleReader
from treadle.storage import messages
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore

FRESH: Final = 30.0  # s for which an answer is kept: the checks count all rows
LONGEST: Final = 20.0  # s of the checks; a response may take 30

Verdict = Literal["ok", "warning", "error"]
VERDICTS: Final[dict[str, Verdict]] = {"ok": "ok", "warn": "warning", "fail": "error"}


class CheckView(Struct, frozen=True):
    """One check: what it found, and what to do about it."""

    verdict: Verdict
    name: str
    text: str
    advice: str | None = None


class Examined(Struct, frozen=True):
    """The checks of the storage and its contents. at: when they were made, 30 s ago at most."""

    at: float
    checks: Sequence[CheckView]


class ScaleQuery(Struct, frozen=True, kw_only=True):
    """Which queues to add up; may be repeated. Default: all."""

    queue: Annotated[tuple[Name, ...], Meta(max_length=MOST_ASKED)] = ()


class OverviewRoutes:
    """The operations that show the present state of one storage."""

    def __init__(self, core: AppCore, waiting: LongPoll, looks: Looks) -> None:
        self._core, self._looks, self._scale = core, looks, ScaleReader(core, waiting)
        self._checks = KeptAnswers[Examined](FRESH)

    @Operation("GET /v1/overview", tag="overview", scope="read")
    async def overview(self, call: Call[None, messages.Nothing]) -> Overview:
        """Show queues, workers, limits, rates and what needs attention."""
        return await self._looks.overview(call.token)

    @Operation("GET /v1/overview/events", tag="overview", scope="read", gives=Overview, media="text/event-stream")
    async def events(self, call: Call[None, messages.Nothing]) -> EventStream:
        """Follow the overview as server-sent events: `overview` at each look, `operation` at each progress of an
        operation, `bye` when the server stops."""
        self._looks.check_room()
        return EventStream(self._looks.follow(call.token))

    @Operation("GET /v1/scale", tag="overview", scope="read", at_once=True)
    async def scale(self, call: Call[None, ScaleQuery]) -> Scale:
        """Show how much work there is for how many slots, for autoscalers; answers within a second with the last
        figures."""
        call.allowed(call.query.queue)
        return await self._scale.scale(call.token, call.query.queue)

    @Operation("GET /v1/doctor", tag="operate", scope="read")
    async def doctor(self, call: Call[None, messages.Nothing]) -> Examined:
        """Check the storage and its contents, at most once in 30 s."""
        for_everybody(call.token, "the checks")
        return await self._checks.get(None, self._examine)

    async def _examine(self) -> Examined:
        results: list[Check] = []
        try:
            async with asyncio.timeout(LONGEST), aclosing(examine(self._core)) as checks:
                async for check in checks:
                    results.append(check)  # noqa: PERF401  # one by one, to keep them at a timeout
        except TimeoutError:
            text = f"the checks took more than {LONGEST:.0f} s, so the others were left out"
            results.append(warn("time", text, "`treadle doctor` makes all of them, without a bound of time"))
        self._looks.examined(results)
        views = [CheckView(VERDICTS[check.verdict], check.name, check.text, check.advice or None) for check in results]
        return Examined(self._core.now(), views)
