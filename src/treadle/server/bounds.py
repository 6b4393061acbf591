"""The bounds of a port that hold before anybody is known: sizes, times and numbers, each with its default."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from treadle.errors import BadOption

MOST: Final = 10_000  # connections, however many descriptors there are
SPARE: Final = 64  # descriptors for the program itself; a quarter of the others is for its storage and its files
HEAD: Final = 64 * 2**10  # bytes


class Bounds(Struct, frozen=True, kw_only=True):
    """What one connection may take, and how many there may be. Times are seconds.

    connections  at once; None: three quarters of what the process may open, at most 10,000
    head         bytes of a request line and its headers; then 431
    headers      of one request; then 431
    head_time    for a whole head, from the first moment of a connection or the first byte of a request; then 408
    body_time    between two pieces of a body; then 408
    read_time    in which the reader of an answer has to take `read_step` bytes of what waits for it
    idle_time    a connection is kept open between two requests
    late_time    a client may go on sending after its answer, and `late_size` bytes
    pipelined    requests that wait behind the one that is answered
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
        """How many connections may be open. Raises BadOption where the process may not open that many."""
        opens = _descriptors()
        if self.connections is None:
            return MOST if opens is None else max(16, min(MOST, (opens - SPARE) * 3 // 4))
        if opens is not None and self.connections > opens - SPARE:
            words = f"this process may open {opens:,} files, so at most {max(0, opens - SPARE):,} connections"
            raise BadOption("connections", f"{words}, found {self.connections:,}: raise the limit (ulimit -n)")
        return self.connections


def _descriptors() -> int | None:
    """How many files the process may have open; None: any number, or it is not known."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
