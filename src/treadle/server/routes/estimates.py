"""The operations that estimate when a job starts and when a queue is empty. One is made at a time, in a thread."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec.structs import replace

from treadle.admin import Estimate, QueuePlan
from treadle.core.errors import UnknownJob
from treadle.server.auth import rights
from treadle.server.errors import Refused
from treadle.server.operation import Call, Operation
from treadle.server.routes.shown import jobs_of
from treadle.storage import messages
from treadle.tasks.options import name_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore

T = TypeVar("T")

ASKING: Final = 8  # estimates under way or waiting, each up to a second; beyond that only each caller's first one
MOST: Final = 32  # estimates under way or waiting, including each caller's first one


class EstimateRoutes:
    """The estimates of one server."""

    def __init__(self, core: AppCore) -> None:
        self._core, self._asking = core, list[str]()

    @Operation("GET /v1/jobs/{id}/eta", tag="jobs", scope="read", others=(404, 503))
    async def eta(self, call: Call[None, messages.Nothing]) -> Estimate:
        """Estimate when a job starts and ends, and what would let it start earlier."""
        jobs = jobs_of(self._core, call)
        row = await jobs.get(call.part("id"))
        if not rights.sees(call.token, row):
            raise UnknownJob(row.id)
        estimate = await self._in_turn(call.by, jobs.eta(row.id))
        text = call.redaction.about(row, call.redaction.within(estimate.explanation, row.error)) or ""
        return replace(estimate, explanation=text)

    @Operation("GET /v1/queues/{name}/plan", tag="operate", scope="read", others=(503,))
    async def plan(self, call: Call[None, messages.Nothing]) -> QueuePlan:
        """Estimate when a queue is empty, what its jobs wait for, and what would change that."""
        name = name_of(call.part("name"), "queue")
        call.allowed([name])
        with call.heard():  # a queue that nothing uses is an empty one
            return await self._in_turn(call.by, self._core.queues.plan(name, call.token.queues))

    async def _in_turn(self, caller: str, estimate: Coroutine[Any, Any, T]) -> T:
        """Raises Refused (503) if many estimates are waiting already, also one of this caller."""
        if len(self._asking) >= (ASKING if caller in self._asking else MOST):
            estimate.close()  # a coroutine that is not awaited must be closed
            message = f"{ASKING} estimates are being made already: ask again in some seconds"
            raise Refused(503, "too_many", message, {"Retry-After": "5"})
        self._asking.append(caller)
        try:
            return await estimate
        finally:
            self._asking.remove(caller)
