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
