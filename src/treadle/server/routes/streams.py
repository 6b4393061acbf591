"""The operations on the streams of jobs: their names, their entries, and chunks that runners write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle.server.longpoll import LongPoll
from treadle.server.operation import Call, Operation
from treadle.server.settings import Settings
from treadle.server.stream_messages import StreamNames, StreamPage, StreamRead
from treadle.storage import messages

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class StreamRoutes:
    """The operations on the streams of one app's jobs."""

    def __init__(self, core: AppCore, settings: Settings, waiting: LongPoll) -> None:
        self._core, self._settings, self._waiting = core, settings, waiting

    @Operation("GET /v1/jobs/{id}/streams", tag="jobs", scope="read", others=(404,))
    async def names(self, call: Call[None, messages.Nothing]) -> StreamNames:
        """List the streams of a job."""
        return StreamNames(())

    @Operation("GET /v1/jobs/{id}/streams/{name}", tag="jobs", scope="read", gives=StreamPage, others=(404,))
    async def read(self, call: Call[None, StreamRead]) -> object:
        """Read a stream of a job, or follow it as server-sent events."""
        return StreamPage((), 0, True)
