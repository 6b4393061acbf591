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

    def operations(self) -> list[Operation]:
        return [
            Operation(
                method="GET",
                path="/v1/scale",
                run=self.scale,
                tag="overview",
                scope="read",
                summary="Show how much work there is for how many slots, for autoscalers; answers within a second with "
                "the last figures",
                query=ScaleQuery,
                gives=Scale,
                at_once=True,
            )
        ]

    async def scale(self, call: Call[None, ScaleQuery]) -> Scale:
        call.allowed(call.query.queue)
        return await self._reader.scale(call.token, call.query.queue)
