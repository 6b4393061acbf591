"""The log lines of the runs of a job: the entries of its stream `log`. Pure.

Only a worker with `capture_logs` keeps them. A few lines of a short run go with its outcome into the row of the job:
they cost no call. The others go to pages of the stream. The lines in the row are always the last ones of the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from logging import Handler
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE
from treadle.core.model import Pairs
from treadle.core.ranges import Natural

LOG: Final = "log"  # the name of the stream
MOST: Final = 16 * 1024  # bytes of lines in the row of a job
HELD: Final = 4 * 1024 * 1024  # bytes of lines of one run that wait for the storage
LINE: Final = 4 * 1024  # characters of one line; a traceback is part of its line
FRAME: Final = 100  # bytes of a line besides its text
TAIL: Final = "treadle:log"  # the checkpoint with the last lines


class LogLine(Struct, frozen=True):
    """One log record of a run.

    time   seconds since 1970, by the clock of the process that ran the job
    level  debug, info, warning, error or critical
    logger the name of the logger
    text   the message, and the traceback if the record has an exception
    run    the number of the attempt; a run that slept or was deferred has the number of its next run
    """

    time: float
    level: str
    logger: str
    text: str
    run: int

    @property
    def size(self) -> int:
        return FRAME + len(self.logger) + len(self.text.encode())


class LogTail(Struct, frozen=True, omit_defaults=True):
    """The last lines of a log, in the row of its job.

    start  the offset of the first of them in the stream; those before it are in pages
    page   the number of the next page, as the run knew it that stored this
    open   a run has begun to write pages, and has not ended: there may be more pages
    """

    start: Natural = 0
    lines: tuple[LogLine, ...] = ()
    page: Natural = 1
    open: bool = False

    def after(self, offset: int) -> tuple[LogLine, ...]:
        """The lines from this offset on."""
        return self.lines[max(0, offset - self.start) :]

    @property
    def cut(self) -> LogTail:
        """The last of them that fit into the row."""
        room, first = MOST, len(self.lines)
        while first and (room := room - self.lines[first - 1].size) >= 0:
            first -= 1
        return replace(self, start=self.start + first, lines=self.lines[first:])

    @property
    def pair(self) -> tuple[str, str]:
        """The checkpoint."""
        return TAIL, msgspec.json.encode(self).decode()


_read = msgspec.json.Decoder(LogTail).decode


def tail_of(checkpoints: Pairs) -> LogTail:
    """The lines in the row of a job. None if they cannot be read."""
    for name, text in checkpoints:
        if name == TAIL:
            try:
                return _read(text)
            except UNREADABLE:  # another program has stored it, or it is encrypted
                break
    return LogTail()


class Reader(Protocol):
    """Takes the lines of a run."""

    def begun(self) -> None:
        """There is a line, and there was none before. Called in any thread."""


class RunLog:
    """The lines of a run that were not taken yet. Its methods may be called in any thread.

    owner  the handler that adds them, whose lock guards them
    level  the lowest level of its lines, a number of `logging`
    number of the attempt
    """

    __slots__ = ("_dropped", "_lines", "_size", "level", "number", "owner", "reader")

    def __init__(self, owner: Handler, number: int) -> None:
        self.owner, self.level, self.number = owner, owner.level, number
        self.reader: Reader | None = None
        self._lines: deque[LogLine] = deque()
        self._size = self._dropped = 0

    def add(self, time: float, level: str, logger: str, text: str) -> None:
        """Add a line."""
        text = text if len(text) <= LINE else f"{text[: LINE - 3]}..."
        self.extend([LogLine(time, level, logger, text.encode("utf-8", "replace").decode(), self.number)])

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines that another process has made. The oldest lines beyond `HELD` bytes are dropped, for example while
        the storage is away; a line says how many."""
        with self._lock:
            was_empty = not self._lines
            for line in lines:
                self._lines.append(line)
                self._size += line.size
            while self._size > HELD:
                self._size -= self._lines.popleft().size
                self._dropped += 1
            has_begun = was_empty and bool(self._lines)
        if has_begun and self.reader is not None:
            self.reader.begun()

    def __bool__(self) -> bool:
        """Whether there are lines."""
        return bool(self._lines)

    def take(self) -> list[LogLine]:
        """Take all lines out."""
        with self._lock:
            taken, dropped = list(self._lines), self._dropped
            self._lines.clear()
            self._size = self._dropped = 0
        if dropped:
            text = f"{dropped:,} lines before this one were not kept: they came faster than they were stored"
            taken.insert(0, LogLine(taken[0].time, "warning", "treadle", text, self.number))
        return taken

    @property
    def _lock(self) -> AbstractContextManager[object]:
        assert self.owner.lock is not None
        return self.owner.lock
