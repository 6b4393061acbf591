"""Reports the health of one process: to HTTP probes, in a file, and to systemd, all from one verdict.

A verdict that says "alive" must need no storage: a restart does not bring back a storage that is away.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic_ns
from typing import Final, NamedTuple, Self

from treadle.worker.probes.listener import Address, Page, PageListener, PageRequest, Reply, text_reply
from treadle.worker.probes.notify import Notifier

log = logging.getLogger("treadle.health")

BEAT: Final = 1.0  # s between two beats
EXTEND: Final = 30.0  # s by which each message extends the time that systemd allows for the start


class Verdict(NamedTuple):
    """Whether a process is alive and ready, each with the reason if it is not.

    stuck    why it should be restarted, in one line; None: it is alive
    unready  why it should get no work, in one line; None: it is ready. A process that is not alive is not ready either
    status   what it does, in one line, while it is ready
    """

    stuck: str | None
    unready: str | None
    status: str

    @property
    def problem(self) -> str | None:
        """Why it is not ready; None if it is."""
        return self.stuck or self.unready

    @property
    def line(self) -> str:
        """One line for people: `ready: ...`, `not ready: ...` or `not alive: ...`."""
        if self.stuck is not None:
            return f"not alive: {self.stuck}"
        return f"ready: {self.status}" if self.unready is None else f"not ready: {self.unready}"


def first_problem(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict of several parts of a process: the first problem of each kind."""
    stuck = next((verdict.stuck for verdict in verdicts if verdict.stuck is not None), None)
    unready = next((verdict.unready for verdict in verdicts if verdict.unready is not None), None)
    return Verdict(stuck, unready, "; ".join(dict.fromkeys(verdict.status for verdict in verdicts)))


class HealthFile:
    """Replaced at each beat while the process is alive, so its modification time is the time of the last beat.

    Its one line begins with `ready` or `not ready`. A reader sees the whole line or the one before: the file is
    replaced by a rename. While the process is not alive the file stays as it was and grows old.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()
        self._new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        self._failing = False

    def beat(self, verdict: Verdict) -> None:
        """Replace the file, unless the process is not alive. A failure is logged once until one beat succeeds."""
        if verdict.stuck is not None:
            return
        try:
            self._write(verdict.line + "\n")
            self._new.replace(self._path)
        except OSError as error:
            if not self._failing:
                log.warning("cannot write the health file %s (%s); retrying", self._path, error.strerror or error)
            self._failing = True
        else:
            self._failing = False

    def _write(self, line: str) -> None:
        """Write a new file. An existing one is not opened: it may be a link of another user of the folder."""
        if os.path.lexists(self._new):  # left behind by a beat that failed
            self._new.unlink()
        with self._new.open("x") as file:
            file.write(line)

    def remove(self) -> None:
        """Remove it: the process has ended, or has not begun."""
        for path in (self._new, self._path):
            with suppress(OSError):
                path.unlink()


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
        """Note that the process stops, which may take this long: it is not ready from now on, and systemd waits for
        it."""
        self._stopping, self._is_reloading = True, False
        self._notifier.send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}", self._notifier.status("stopping"))

    def reloading(self) -> None:
        """The process replaces its parts; systemd waits until they are ready again. Does nothing once it stops."""
        if self._stopping:
            return
        self._is_reloading = True
        self._notifier.send("RELOADING=1", f"MONOTONIC_USEC={monotonic_ns() // 1000}")

    def reloaded(self) -> None:
        """The parts have been replaced, or could not be. A reload does not make a process ready that was not."""
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
        """Send what has changed since the last message. A message that the socket did not take is sent again at the
        next beat."""
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
