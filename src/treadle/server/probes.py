"""The paths that load balancers and container platforms probe, without a token."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from treadle.core.errors import StorageError
from treadle.server.errors import Refused
from treadle.server.settings import Settings
from treadle.storage import NOT_HERE, mark_of
from treadle.storage import words as words_of
from treadle.worker.probes import Verdict

if TYPE_CHECKING:
    from treadle.app.core import AppCore

log = logging.getLogger("treadle.server")

ALIVE: Final = ("/livez", "/healthz")
READY: Final = "/readyz"
PROBES: Final = (*ALIVE, READY)
ALONE: Final = Verdict(None, None, "the server answers")


class ProbeRoutes:
    """Liveness and readiness of a server.

    verdict  the health of the workers that run with the server; a command that runs some replaces it
    """

    def __init__(self, core: AppCore, settings: Settings) -> None:
        self._core = core
        self._hides = settings.has_tokens  # these paths need no token, so host names and paths go to the log only
        self.verdict: Callable[[], Verdict] = lambda: ALONE

    def routes(self) -> Sequence[BaseRoute]:
        return [*(Route(path, self.livez) for path in ALIVE), Route(READY, self.readyz)]

    async def livez(self, request: Request) -> Response:
        """The process answers, and so do the event loops of its worker processes. A storage that is away is no reason
        to restart a process."""
        self._check(self.verdict().stuck)
        return PlainTextResponse("ok")

    async def readyz(self, request: Request) -> Response:
        """The storage answers, its jobs have not moved, and the workers of this server claim."""
        try:
            await self._core.opened()
            await self._core.storage.get(["treadle:ready"])
            mark = await mark_of(self._core.storage)
        except StorageError as error:
            log.warning("storage unavailable: %s", error)
            message = "storage unavailable; the server's log says why" if self._hides else str(error)
            raise Refused(503, "storage_unavailable", message, {"Retry-After": "1"}) from error
        if mark is not None and mark.role in NOT_HERE:
            message = words_of(mark, "the storage") or ""
            log.warning("%s", message)
            if self._hides:
                message = "the jobs are in another storage; the server's log names it"
            raise Refused(503, "storage_moved" if mark.role == "gone" else "storage_unavailable", message)
        self._check(self.verdict().problem)
        return PlainTextResponse("ok")

    def _check(self, problem: str | None) -> None:
        """Raise Refused (503) for a problem of the workers."""
        if problem is not None:
            log.warning("%s", problem)
            message = "a worker of this server has a problem; the server's log says which" if self._hides else problem
            raise Refused(503, "not_ready", message, {"Retry-After": "1"})
