"""The operations of the overview: once, and as a stream of events."""

from __future__ import annotations

from treadle.server.event_stream import EventStream
from treadle.server.operation import Call, Operation
from treadle.server.overview import Looks, Overview
from treadle.storage import messages


class OverviewRoutes:
    """The operations that show the present state of one storage."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def operations(self) -> list[Operation]:
        made = Operation
        return [
            made(
                method="GET",
                path="/v1/overview",
                run=self.overview,
                tag="overview",
                scope="read",
                summary="Show queues, workers, limits, rates and what needs attention",
                gives=Overview,
            ),
            made(
                method="GET",
                path="/v1/overview/events",
                run=self.events,
                tag="overview",
                scope="read",
                summary="Follow the overview as server-sent events: `overview` at each look, `operation` at each "
                "progress of an operation, `bye` when the server stops",
                gives=Overview,
                media="text/event-stream",
            ),
        ]

    async def overview(self, call: Call[None, messages.Nothing]) -> Overview:
        return await self._looks.overview(call.token)

    async def events(self, call: Call[None, messages.Nothing]) -> EventStream:
        self._looks.check_room()
        return EventStream(self._looks.follow(call.token))
