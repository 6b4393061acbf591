"""The connection of a worker process to its supervisor: replies to its requests from the worker's event loop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import sys
from contextlib import suppress
from typing import Final, Self

import msgspec

from treadle.cli.child_protocol import Count, Counted, Drain, Message, Probe, Request, Vitals
from treadle.worker.core import WorkerCore

REQUEST: Final = 65_536  # bytes of a request at most
_read = msgspec.json.Decoder(Request).decode
_line = msgspec.json.Encoder().encode


class SupervisorLink:
    """Lives on the event loop of the worker. When the supervisor closes it, the process stops as after a SIGTERM."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, core: WorkerCore) -> None:
        self._reader, self._writer, self._core = reader, writer, core
        self._hearing = asyncio.create_task(self._hear())

    @classmethod
    async def over(cls, channel: socket.socket, core: WorkerCore) -> Self:
        """The link over this socket."""
        return cls(*await asyncio.open_unix_connection(sock=channel, limit=REQUEST), core)

    def send(self, message: Message) -> None:
        """Send a message; nothing happens if the supervisor is gone."""
        if not self._writer.is_closing():
            self._writer.write(_line(message) + b"\n")

    def close(self) -> None:
        """Send the last numbers, and answer no more."""
        self._send_numbers()
        self._hearing.cancel()
        self._writer.transport.abort()

    async def _hear(self) -> None:
        with suppress(OSError):
            while line := await self._reader.readline():
                self._answer(_read(line))
        os.kill(os.getpid(), signal.SIGTERM)

    def _answer(self, request: Request) -> None:
        if isinstance(request, Probe):
            self.send(Vitals(self._core.health(), resident_memory()))
        elif isinstance(request, Count):
            self._send_numbers()
        elif isinstance(request, Drain):
            self._core.drain(request.reason, request.grace)

    def _send_numbers(self) -> None:
        counts = self._core.app.counts
        if counts is not None:
            self.send(Counted(counts.numbers()))


def resident_memory() -> int:
    """The bytes of memory that this process occupies now; where the system does not say so, the most that it did."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * 1024
