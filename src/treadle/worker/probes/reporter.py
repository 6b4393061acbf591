"""Reports the health of one process: to HTTP probes, in a file, and to systemd, all from one verdict.

A verdict that says "alive" must need no storage: a restart does not bring back a storage that is away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic_ns
from typing import Final, Self

from treadle.worker.probes.address import Address
from treadle.worker.probes.health_file import HealthFile
from treadle.worker.probes.listener import Page, PageListener, PageRequest, Reply, text_reply
from treadle.worker.probes.notify import Notifier
from treadle.worker.probes.verdict import Verdict

BEAT: Final = 1.0  # s between two beats
EXTEND: Final = 30.0  # s by which each message extends the time that systemd allows for the start


class Probes:
    """Where a process reports its health, for `Worker.run`.

    listen   `[HOST:]PORT` of a listener that answers GET /livez and /readyz; a port alone is for this machine only,
             `:8080` for every address; port 0 picks a free one
    file     a file that is replaced once a second while the process is alive
    systemd  whether to notify the service manager if $NOTIFY_SOCKET is set

    Raises BadOption.
    """

    def __init__(
        self, listen: str | None = None, *, file: str | os.PathLike[str] | None = None, systemd: bool = True
    ) -> None:
        self.address = None if listen is None else Address.parse(listen)
        self.file = None if file is None else Path(file)
        self.systemd = systemd


class HealthReporter:
    """Reports what `look` returns, inside an `async with` block. Raises BadOption if it cannot listen.

    look   called at each beat and each probe; fast, and never raises
    pages  more pages of the listener, by path
    """

    def __init__(self, probes: Probes, look: Callable[[], Verdict], pages: Mapping[str, Page] | None = None) -> None:
        self._look = look
        self._pages = {"/livez": self._livez, "/readyz": self._readyz, **(pages or {})}
        self._listener = None if probes.address is None else PageListener(probes.address, self._pages)
        self._file = None if probes.file is None else HealthFile(probes.file)
        self._notifier = Notifier.take() if probes.systemd else Notifier()
        self._ready = self._is_reloading = self._stopping = False
        self._status = ""
        self._beating: asyncio.Task[None] | None = None

    @property
    def address(self) -> Address | None:
        """Where its listener listens, if it has one."""
        return None if self._listener is None else self._listener.address

    async def __aenter__(self) -> Self:
        if self._file is not None:
            self._file.remove()  # the previous process may have left it
        if self._listener is not None:
            await self._listener.__aenter__()
        if self._file is not None or self._notifier:
            self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._listener is not None:
            await self._listener.__aexit__(*exc)
        if self._file is not None:
            self._file.remove()

    def stopping(self, seconds: float) -> None:
        """The process stops, which may take this long: it is not ready from now on, and systemd waits so long."""
        self._stopping, self._is_reloading = True, False
        self._notifier.send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}", self._notifier.status("stopping"))

    def reloading(self) -> None:
        """The process replaces its parts; systemd waits until they are ready again. Does nothing once it stops."""
        if self._stopping:
            return
        self._is_reloading = True
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """The parts have been replaced, or could not be. A process that was never ready is no more so by a reload."""
        if self._is_reloading:
            self._is_reloading = False
            if self._ready:
                self._ready = self._notifier.send("READY=1", self._notifier.status(self._verdict().line))

    # --- pages

    def _verdict(self) -> Verdict:
        verdict = self._look()
        return verdict._replace(unready=verdict.unready or "stopping") if self._stopping else verdict

    async def _livez(self, _: PageRequest) -> Reply:
        stuck = self._verdict().stuck
        return text_reply(200, "alive") if stuck is None else text_reply(503, stuck)

    async def _readyz(self, _: PageRequest) -> Reply:
        verdict = self._verdict()
        return text_reply(200 if verdict.problem is None else 503, verdict.line)

    # --- beats

    async def _beat(self) -> None:
        # Watchdog messages at half of the time that systemd allows, as its documentation asks.
        watchdog = self._notifier.watchdog
        pause = BEAT if watchdog is None else min(BEAT, watchdog / 2)
        while True:
            verdict = self._verdict()
            if self._file is not None:
                self._file.beat(verdict)
            if self._notifier:
                self._notify(verdict)
            await asyncio.sleep(pause)

    def _notify(self, verdict: Verdict) -> None:
        """Send what has changed. A message that the socket did not take is sent again at the next beat."""
        lines, is_ready = [], self._ready
        if verdict.stuck is None:
            if self._notifier.watchdog is not None:
                lines.append("WATCHDOG=1")
            if verdict.problem is None and not self._ready:
                is_ready = True
                lines.append("READY=1")
            elif not self._stopping and (not self._ready or self._is_reloading):
                # Alive, but without its storage: that is no failed start.
                lines.append(f"EXTEND_TIMEOUT_USEC={EXTEND * 1e6:.0f}")
        if verdict.line != self._status:
            lines.append(self._notifier.status(verdict.line))
        if lines and self._notifier.send(*lines):
            self._ready, self._status = is_ready, verdict.line
