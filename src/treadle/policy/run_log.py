"""The last log lines of a run, kept as a checkpoint of its job. Pure.

Only a worker with `capture_logs` stores them, with the outcome of the run. A row keeps the lines of three attempts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Struct

from treadle.core.errors import UNREADABLE
from treadle.core.model import Record
from treadle.core.ranges import Natural

MOST: Final = 16 * 1024  # bytes of text of one attempt
LINE: Final = 4 * 1024  # characters of one line; a traceback is part of its line
KEPT: Final = 3  # attempts whose lines are kept
LOG: Final = "treadle:log:"  # prefix of the checkpoints; the number of the attempt modulo KEPT follows


class LogLine(Struct, frozen=True, omit_defaults=True):
    """One log record of a run.

    at     seconds since 1970, by the clock of the process that ran the job
    level  debug, info, warning, error or critical
    text   the message, and the traceback if the record has an exception
    """

    at: float
    level: str
    text: str


class StoredLog(Struct, frozen=True, omit_defaults=True):
    """The stored lines of one attempt. `dropped`: how many lines before them were not kept."""

    number: Natural
    reopening: Natural = 0
    lines: tuple[LogLine, ...] = ()
    dropped: Natural = 0


_read = msgspec.json.Decoder(StoredLog).decode


class RunLog:
    """The lines of a run, the last `MOST` bytes of them.

    owner  the handler that adds them
    level  the lowest level of its lines, a number of `logging`
    """

    __slots__ = ("_size", "dropped", "level", "lines", "owner")

    def __init__(self, owner: object = None, level: int = 0) -> None:
        self.owner, self.level = owner, level
        self.lines: deque[LogLine] = deque()
        self.dropped = self._size = 0

    def add(self, line: LogLine) -> None:
        """Add a line, and drop the first ones if there are too many bytes."""
        text = line.text if len(line.text) <= LINE else f"{line.text[: LINE - 3]}..."
        line = LogLine(line.at, line.level, text.encode("utf-8", "replace").decode())
        self.lines.append(line)
        self._size += len(line.text.encode())
        while self._size > MOST:
            self._size -= len(self.lines.popleft().text.encode())
            self.dropped += 1

    def extend(self, lines: Sequence[LogLine], dropped: int = 0) -> None:
        """Add lines that another process has kept."""
        self.dropped += dropped
        for line in lines:
            self.add(line)

    def pair(self, record: Record) -> tuple[str, str] | None:
        """The checkpoint with these lines after the lines of earlier runs of this attempt; None: there are no lines. A
        run that slept or was deferred has the number of its next run."""
        if not self.lines:
            return None
        number, whole = record.attempt + 1, RunLog()
        before = stored(record).get((number, record.reopenings))
        if before is not None:
            whole.extend(before.lines, before.dropped)
        whole.extend(tuple(self.lines), self.dropped)
        log = StoredLog(number, record.reopenings, tuple(whole.lines), whole.dropped)
        return f"{LOG}{number % KEPT}", msgspec.json.encode(log).decode()


def stored(row: Record) -> dict[tuple[int, int], StoredLog]:
    """The stored lines by number of attempt and reopening. Entries that cannot be read are left out."""
    logs = {}
    for name, text in row.checkpoints:
        if name.startswith(LOG):
            try:
                log = _read(text)
            except UNREADABLE:  # another program has stored it
                continue
            logs[log.number, log.reopening] = log
    return logs
