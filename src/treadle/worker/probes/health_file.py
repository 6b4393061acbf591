"""A file whose time says that a process is alive, for probes that run a command in its container."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

from treadle.worker.probes.verdict import Verdict

log = logging.getLogger("treadle.health")


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
        if os.path.lexists(self._new):  # also after a beat that failed
            self._new.unlink()
        with self._new.open("x") as file:
            file.write(line)

    def remove(self) -> None:
        """Remove it: the process has ended, or has not begun."""
        for path in (self._new, self._path):
            with suppress(OSError):
                path.unlink()
