"""A server as a process that can be stopped, killed, frozen and started again, on the port and the data it had.

All kinds of servers wait for a port and clean up in the same way.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.waiting import NotSeen, until_blocking

VERSIONS: set[str] = set()  # what has been started in this process; the report of the run ends with it
PATIENCE = 60.0  # s until a server must be there

# Runs next to each server, with a pipe from us: it stops the server when our process has ended in any way.
GUARD = 'cat >/dev/null; kill -9 "$1"; rm -rf "$2"'


def free_port() -> int:
    """A free port of 127.0.0.1; the one 10,000 above it is free too (the bus of a cluster's node).

    The system does not use these ports for outgoing connections. While our server is down, such a connection could take
    its port, or be connected to itself.
    """
    while True:
        port = random.SystemRandom().randrange(12_000, 22_000)
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + 10_000))
            except OSError:
                continue
            if reserved(port):
                return port


def reserved(port: int) -> bool:
    """Reserve a port for as long as this process lives. False if another test process of this machine has it.

    Otherwise another run could start a server on the port before this one does; once, a Sentinel found another run's
    Valkey there. A socket with an abstract name disappears with its process, however that ends; only Linux has them.
    """
    if sys.platform != "linux":
        return True
    mark = socket.socket(socket.AF_UNIX)
    try:
        mark.bind(f"\0treadle-test-port-{port}")
    except OSError:
        mark.close()
        return False
    _marks.append(mark)
    return True


_marks: list[socket.socket] = []


class ServerFailed(RuntimeError):
    """A server was not available, or did not start; the message has the end of its output."""


class Process:
    """One server. Subclasses have its command, and the check that it answers.

    port, folder  stay the same over restarts
    """

    name = "server"
    patience = PATIENCE

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"treadle-{self.name}-"))
        self.port = free_port()
        self._child: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        """Whether it accepts requests now."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        assert self._child is not None, "it does not run"
        return self._child.pid

    # --- starting and stopping

    def start(self) -> Self:
        """Start it with its existing data, and return when it answers. Raises ServerFailed."""
        if self._child is not None:
            return self
        with open(self.folder / "log", "ab") as log:
            self._child = subprocess.Popen(
                [*self.command()], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder
            )
        guard = ["/bin/sh", "-c", GUARD, "guard", str(self._child.pid), str(self.folder)]
        self._guard = subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True)
        child = self._child
        with contextlib.suppress(NotSeen):
            until_blocking(lambda: child.poll() is not None or self.answers(), "an answer", self.patience)
            if child.poll() is None:
                return self
        code, said = child.poll(), self.said()
        self.kill()
        raise ServerFailed(f"{' '.join(self.command())} (exit code {code}) did not start:\n{said}")

    def stop(self) -> None:
        """Stop it as an operator does; its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9; its data stays as it is."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Freeze it with SIGSTOP: the system still accepts connections, and no request is answered."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def said(self) -> str:
        """The end of its log."""
        return (self.folder / "log").read_text("utf-8", "replace")[-2_000:]

    def _end(self, how: signal.Signals) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(how)
        if how is not signal.SIGKILL:
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()
        child.wait()
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            guard.kill()  # before the server, whose end it would take for ours
            guard.stdin.close()
            guard.wait()
