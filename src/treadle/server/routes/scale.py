"""The operation that autoscalers call."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from treadle.server.operation import Call, Operation
from treadle.server.scale import MOST_ASKED, Scale, ScaleReader
from treadle.tasks.json_options import Name


class ScaleQuery(Struct, frozen=True, kw_only=True):
    """Which queues to add up; may be repeated. Default: all."""

    queue: Annotated[tuple[Name, ...], Meta(max_length=MOST_ASKED)] = ()


class ScaleRoutes:
    """The operations of autoscalers."""

    def __init__(self, reader: ScaleReader) -> None:
        self._reader = reader

    @Operation("GET /v1/scale", tag="overview", scope="read", at_once=True)
    async def scale(self, call: Call[None, ScaleQuery]) -> Scale:
        """Show how much work there is for how many slots, for autoscalers; answers within a second with the last
        figures."""
        call.allowed(call.query.queue)
        return await self._reader.scale(call.token, call.query.queue)
