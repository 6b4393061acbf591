"""The protocols of other systems, as `treadle server`, `up` and `worker` use them.

They are guests: `treadle.contrib` names their modules, and no command imports one of them by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING, Any

from treadle.cli.options import Command, added
from treadle.contrib import PROTOCOLS
from treadle.worker.probes import Verdict

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.server import ProtocolRoutes, Serving

Handling = dict[str, Any]  # how a worker handles the jobs of a protocol: plain values, for its processes


class Stopping:
    """Events set by signals: `asked` by the first one, `again` by the second."""

    def __init__(self) -> None:
        self.asked, self.again = asyncio.Event(), asyncio.Event()

    def __call__(self) -> None:
        """Record one signal."""
        if self.asked.is_set():
            self.again.set()
        self.asked.set()


class ServerWorkers(AbstractAsyncContextManager[Any]):
    """A context manager that runs workers with a server, their exit code, and their health."""

    code = 0

    @property
    def verdict(self) -> Verdict:
        return Verdict(None, None, "the server answers")


class GuestProtocol:
    """A protocol, as the commands use it. Each guest overrides the methods that it needs; the others do nothing.

    ports  its first port, and how many ports to try
    """

    ports: tuple[int, int]

    def server_options(self, command: Command) -> Command:
        """Add the options of a server."""
        return command

    def worker_options(self, command: Command) -> Command:
        """Add the options of a worker."""
        return command

    def storage_url(self) -> str | None:
        """The storage URL that its environment variables name. Raises Stop."""
        return None

    def complete(self, options: dict[str, Any]) -> None:
        """Fill in options of the server from its environment variables. Raises Stop."""

    def served(self, options: Mapping[str, Any]) -> AbstractAsyncContextManager[Sequence[ProtocolRoutes]]:
        """The routes for these options of a server, with their resources open until the block ends. Raises Stop."""
        return nullcontext(())

    def announced(self, options: Mapping[str, Any], serving: Serving) -> AbstractAsyncContextManager[None]:
        """Announces the server until the block ends."""
        return nullcontext()

    def check_workers(self) -> None:
        """Raise Stop if `workers` needs a package that is missing."""

    def workers(self, options: Mapping[str, Any], port: int, slots: int, stopping: Stopping) -> list[ServerWorkers]:
        """Runners that `treadle up` starts with the server on this port, in the place of workers."""
        return []

    def handling(self, options: Mapping[str, Any]) -> Handling | None:
        """The way to handle jobs that the worker options name; None: they name none. Raises Stop."""
        return None

    def prepare(self, app: App, named: str | None, handling: Handling | None) -> None:
        """Give the app of a worker a handler for the jobs of the protocol. named: the app, as the user typed it. Raises
        Stop."""

    def role(self, given: str | None) -> str | None:
        """The role of a worker: the option, or its environment variable. Raises Stop."""
        return given

    def id_of(self, typed: str) -> str | None:
        """The id of the job that the protocol calls `typed`."""
        return None


def protocol(name: str) -> GuestProtocol:
    """The protocol of this name."""
    guest = import_module(PROTOCOLS[name]).PROTOCOL
    assert isinstance(guest, GuestProtocol)
    return guest


def all_protocols() -> list[GuestProtocol]:
    """All protocols, in the order of their routes."""
    return [protocol(name) for name in PROTOCOLS]


def server_options(command: Command) -> Command:
    """Add the options of each protocol to a command that serves."""
    return added(*(guest.server_options for guest in all_protocols()))(command)


def worker_options(command: Command) -> Command:
    """Add the options of each protocol to a command that runs workers."""
    return added(*(guest.worker_options for guest in all_protocols()))(command)
