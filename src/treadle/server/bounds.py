"""Bounds of connections that apply before a caller is authenticated: sizes, times and numbers, with defaults."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from treadle.core.errors import BadOption
from treadle.core.open_files import most_open_files

MOST: Final = 10_000  # connections, even if the process may open more files
SPARE: Final = 64  # descriptors kept for the program; a quarter of the others is for its storage and its files
HEAD: Final = 64 * 2**10  # bytes


class Bounds(Struct, frozen=True, kw_only=True):
    """Bounds of one connection, and of their number. Times are in seconds.

    connections  open at once; None: three quarters of the files that the process may open, at most 10,000
    head         bytes of a request line and its headers; beyond that 431
    headers      of one request; beyond that 431
    head_time    for a whole head, from the start of the connection or the first byte of a request; then 408
    body_time    between two pieces of a body; then 408
    read_time    in which the client must read `read_step` bytes of a buffered response
    idle_time    that a connection stays open between two requests
    late_time    for which a client may keep sending after its response, at most `late_size` bytes
    pipelined    requests that may wait behind the current one
    """

    connections: int | None = None
    head: int = HEAD
    headers: int = 200
    head_time: float = 10.0
    body_time: float = 30.0
    read_time: float = 30.0
    read_step: int = 32 * 2**10
    idle_time: float = 5.0
    late_time: float = 5.0
    late_size: int = 64 * 2**20
    pipelined: int = 32

    @property
    def shortest(self) -> float:
        return min(self.head_time, self.body_time, self.read_time, self.idle_time, self.late_time)

    def most_connections(self) -> int:
        """The number of connections that may be open. Raises BadOption if the process may not open that many."""
        opens = most_open_files()
        if self.connections is None:
            return MOST if opens is None else max(16, min(MOST, (opens - SPARE) * 3 // 4))
        if opens is not None and self.connections > opens - SPARE:
            reason = f"expected at most {max(0, opens - SPARE):,}, because this process may open {opens:,} files"
            raise BadOption("connections", f"{reason}, found {self.connections:,}: raise the limit (ulimit -n)")
        return self.connections
