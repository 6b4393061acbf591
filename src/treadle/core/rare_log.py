"""Logs an error at most once a minute for each cause: thousands of jobs may fail for the same cause."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from treadle.core.clock import monotonic

EVERY: Final = 60.0  # s
CAUSES: Final = 10  # causes with a line of their own; senders may choose what a cause contains


class RareLog:
    """The errors of one place."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._began = float("-inf")
        self.seen: Counter[str] = Counter()  # number of errors in this minute, by cause

    def error(self, cause: str, text: str) -> None:
        """Log this text unless an error of the cause was logged in this minute."""
        if monotonic() - self._began >= EVERY:
            if more := self.seen.total() - len(self.seen):
                self._log.error("%d more errors of this kind in the last minute", more)
            self._began = monotonic()
            self.seen.clear()
        cause = cause if cause in self.seen or len(self.seen) < CAUSES else "others"
        self.seen[cause] += 1
        if self.seen[cause] == 1:
            self._log.error("%s", text)
