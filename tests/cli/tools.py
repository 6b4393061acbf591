"""Runs the command line as a process, and reads its output line by line, so that tests wait for events."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.waiting import until_blocking

PATIENCE = 40.0  # s until something that must happen counts as never happening


class Command:
    """`python -m treadle ARGS` in a folder, in a session of its own. It is killed at the end of the `with`.

    flags  of the interpreter; -P: the folder is not on its path, as for the script `treadle`
    """

    def __init__(
        self, *args: str, cwd: Path, program: str = sys.executable, flags: tuple[str, ...] = (), **environment: str
    ) -> None:
        inherited = {name: value for name, value in os.environ.items() if name != "TREADLE_URL"}
        self.process = subprocess.Popen(
            [program, *flags, "-m", "treadle", *args],
            cwd=cwd,
            env={**inherited, **environment},
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.said: list[str] = []
        self.data: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stderr, True), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stdout, False), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: object, notes: bool) -> None:
        for line in stream:  # type: ignore[attr-defined]
            if notes:
                self._lines.put(line.rstrip("\n"))
            else:
                self.data.append(line)
        if notes:
            self._lines.put(None)

    def wait_for(self, words: str, patience: float = PATIENCE) -> str:
        """The next line on stderr that contains these words."""
        until = time.monotonic() + patience
        while True:
            line = self._lines.get(timeout=max(0.01, until - time.monotonic()))
            assert line is not None, f"it ended without saying {words!r}:\n" + "\n".join(self.said)
            self.said.append(line)
            if words in line:
                return line

    def ended(self) -> int:
        """The exit code, after the process has ended."""
        code = self.process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        while not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                self.said.append(line)
        return code

    @property
    def stderr(self) -> str:
        return "\n".join(self.said)

    @property
    def stdout(self) -> str:
        return "".join(self.data)

    def signal(self, number: int) -> None:
        """Send a signal to the process alone, as a supervisor does."""
        self.process.send_signal(number)

    def ctrl_c(self) -> None:
        """Send SIGINT to the whole process group, as a terminal does."""
        os.killpg(self.process.pid, signal.SIGINT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for reader in self._readers:
            reader.join(PATIENCE)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def alive(session: int) -> list[int]:
    """The processes of a session that still run."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,sess=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    return [int(pid) for pid, sess, stat in rows if sess == str(session) and not stat.startswith("Z")]


def gone(session: int) -> bool:
    """Until all of them have ended."""
    return bool(until_blocking(lambda: not alive(session), "the end of all processes of a session", PATIENCE))
