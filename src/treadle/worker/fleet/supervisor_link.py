"""The connection of a worker process to its supervisor: replies to its requests from the worker's event loop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Self

import msgspec

from treadle.concurrency.spawn import started
from treadle.core.errors import StorageError
from treadle.worker.core import WorkerCore
from treadle.worker.fleet.messages import (
    Count,
    Counted,
    Drain,
    Found,
    HandedOver,
    HandOver,
    Message,
    NoteDeath,
    Probe,
    RenewFor,
    Request,
    Stopping,
    Suspects,
    Trial,
    TrialsFailed,
    Try,
    Vitals,
)
from treadle.worker.jobs_of_others import JobsOfOthers, Place
from treadle.worker.trials import Suspect

REQUEST: Final = 65_536  # bytes of a request at most
_read = msgspec.json.Decoder(Request).decode
_line = msgspec.json.Encoder().encode


class SupervisorLink:
    """Lives on the event loop of the worker. When the supervisor closes it, the process stops as after a SIGTERM."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, core: WorkerCore) -> None:
        self._reader, self._writer, self._core = reader, writer, core
        self._acting = set[asyncio.Task[None]]()  # requests of the supervisor that need the storage
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def over(cls, channel: socket.socket, core: WorkerCore) -> Self:
        """The link over this socket."""
        return cls(*await asyncio.open_unix_connection(sock=channel, limit=REQUEST), core)

    def send(self, message: Message) -> None:
        """Send a message; nothing happens if the supervisor is gone."""
        if not self._writer.is_closing():
            self._writer.write(_line(message) + b"\n")

    def offer(self, suspects: Sequence[Suspect]) -> None:
        """Ask the supervisor to have these suspects tried; see `WorkerCore.offer_suspects`."""
        self.send(Suspects(list(suspects)))

    def stopping(self) -> None:
        """Report that the worker stops on request."""
        self.send(Stopping())

    def close(self) -> None:
        """Send the last numbers, and answer no more."""
        self._send_numbers()
        for task in (self._hearing, *self._acting):
            task.cancel()
        self._writer.transport.abort()

    async def _hear(self) -> None:
        with suppress(OSError):
            while line := await self._reader.readline():
                self._answer(_read(line))
        os.kill(os.getpid(), signal.SIGTERM)

    def _answer(self, request: Request) -> None:
        if isinstance(request, Probe):
            lease = self._core.shortest_lease
            self.send(Vitals(self._core.health(), resident_memory(), threads(), lease))
        elif isinstance(request, Count):
            self._send_numbers()
        elif isinstance(request, Drain):
            self._core.drain(request.reason, request.grace)
        elif isinstance(request, HandOver):
            suspect = request.suspect
            held = self._core.hand_over(suspect.id, suspect.version, request.explained)
            self.send(HandedOver(suspect, held))
        elif isinstance(request, TrialsFailed):
            self._core.trials_failed()
        else:
            acting = started(self._try(request.suspect) if isinstance(request, Try) else self._find(request))
            self._acting.add(acting)
            acting.add_done_callback(self._acting.discard)

    async def _try(self, suspect: Suspect) -> None:
        await self._core.try_alone(suspect, lambda: self.send(Trial(suspect, "taken")))
        self.send(Trial(suspect, "ended"))

    async def _find(self, request: NoteDeath | RenewFor) -> None:
        """Act for another process."""
        jobs: list[Place] | None = None
        others = self._core.jobs_of_others()
        if others is not None:
            with suppress(StorageError):
                jobs = await _acted(others, request)
        self.send(Found(request.number, jobs))

    def _send_numbers(self) -> None:
        counts = self._core.app.counts
        if counts is not None:
            self.send(Counted(counts.numbers()))


async def _acted(others: JobsOfOthers, request: NoteDeath | RenewFor) -> list[Place]:
    if isinstance(request, NoteDeath):
        return await others.end(request.death)
    return await others.renew(request.worker, request.jobs)


def threads() -> list[tuple[int, int, str]]:
    """The threads of Python, the main thread first: native id, identifier and name."""
    main = threading.main_thread()
    ordered = sorted(threading.enumerate(), key=lambda thread: thread is not main)
    return [(thread.native_id or 0, thread.ident or 0, thread.name) for thread in ordered]


def resident_memory() -> int:
    """The bytes of memory that this process occupies now; where the system does not say so, the most that it did."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
