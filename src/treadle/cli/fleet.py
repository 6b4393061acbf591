"""Several worker processes as one: started, watched, started again when they die, stopped together.

Without it a worker that crashed would stay dead, and Ctrl-C would reach its children twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.cli.child_protocol import Hello, Orders
from treadle.cli.output import FAILED, OK, note, plural
from treadle.core import defaults
from treadle.core.clock import monotonic

BACKOFF = (0.2, 30.0)  # s before the first new start, and at most
HEALTHY = 60.0  # s after which a death is the first one again
AT_ONCE = 5.0  # s that "at once" may take before we kill
MARGIN = 10.0  # s beyond grace and lease before we kill

Say = Callable[[str], None]


class Fleet:
    """`processes` workers with the same orders. All calls belong to one event loop."""

    def __init__(
        self,
        orders: Orders,
        processes: int,
        say: Say = lambda text: note(f"treadle: {text}"),
        greeted: Callable[[Hello, int], None] | None = None,
        environment: Mapping[str, str] | None = None,
        roles: Sequence[str] = (),
    ) -> None:
        self.orders, self.size = orders, processes
        self._roles = roles  # of each, in order
        self._say, self._greeted, self._environment = say, greeted, environment
        self._asked = 0  # how often we were told to stop
        self._stop = asyncio.Event()
        self._children: dict[int, asyncio.subprocess.Process] = {}  # those alive, by number
        self._proven = False  # one has said hello: the orders are good
        self._code = OK
        self._killer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of those alive, by number."""
        return {number: child.pid for number, child in self._children.items()}

    async def run(self) -> int:
        """Until all have stopped; answers the exit code. However this ends, no child is left."""
        first = asyncio.Event()
        keepers = [asyncio.create_task(self._keep(number, first)) for number in range(1, self.size + 1)]
        try:
            await asyncio.gather(*keepers)
        finally:
            self._signal(signal.SIGKILL)
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)
            if self._killer is not None:
                self._killer.cancel()
        return self._code

    def stop(self) -> None:
        """Once: decently, within grace. Twice: at once. A third time: kill."""
        self._asked += 1
        self._stop.set()
        if self._asked > 2:
            self._signal(signal.SIGKILL)
            return
        # Two signals, because two of a kind that arrive together are one.
        self._signal(signal.SIGTERM if self._asked == 1 else signal.SIGINT)
        grace = defaults.GRACE if self.orders.grace is None else self.orders.grace
        lease = defaults.LEASE if self.orders.lease is None else self.orders.lease
        if self._killer is not None:
            self._killer.cancel()
        patience = grace + lease + MARGIN if self._asked == 1 else AT_ONCE
        self._killer = asyncio.get_running_loop().call_later(patience, self._kill)

    def _kill(self) -> None:
        if self._children:
            self._say(
                f"{plural(len(self._children), 'process')} did not stop and will be killed; "
                "what they ran comes back when its lease runs out"
            )
            self._code = FAILED
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    # --- one of them

    async def _keep(self, number: int, first: asyncio.Event) -> None:
        """Run one, again and again. The others wait until the first one has shown that the orders are good."""
        failures = 0
        if number > 1:
            await first.wait()
        while not self._stop.is_set():
            began = monotonic()
            try:
                code = await self._one(number, first)
            finally:
                self._children.pop(number, None)
            if self._stop.is_set():
                break
            if not self._proven:
                self._code = code if 0 < code < 128 else FAILED
                self._stop.set()
                break
            failures = 1 if monotonic() - began > HEALTHY else failures + 1
            delay = min(BACKOFF[0] * 2 ** (failures - 1), BACKOFF[1])
            self._say(f"worker {number} {_ended(code)}; another one starts in {delay:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()
        first.set()

    async def _one(self, number: int, first: asyncio.Event) -> int:
        """One process from start to end -> its exit code."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "treadle.cli.child",
                    str(theirs.fileno()),
                    self.orders.app or "delayed",
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    env=self._environment,
                    **_own_group(),
                )
            self._children[number] = child
            if self._stop.is_set():
                self._signal(signal.SIGTERM if self._asked < 3 else signal.SIGKILL)
            ours.setblocking(False)
            orders = msgspec.structs.replace(self.orders, number=number)
            if self._roles:
                role = self._roles[number - 1]
                orders = msgspec.structs.replace(orders, role=role, name=orders.name or role)
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(ours, msgspec.json.encode(orders) + b"\n")
            hearing = asyncio.create_task(self._hear(ours, number, first))
            try:
                return await child.wait()
            finally:
                hearing.cancel()
                await asyncio.gather(hearing, return_exceptions=True)
                if child.returncode is None:
                    child.kill()
                    await child.wait()

    async def _hear(self, channel: socket.socket, number: int, first: asyncio.Event) -> None:
        found = bytearray()
        while not found.endswith(b"\n"):
            piece = await asyncio.get_running_loop().sock_recv(channel, 65_536)
            if not piece:
                return
            found += piece
        hello = msgspec.json.decode(found, type=Hello)
        self._proven = True
        first.set()
        if self._greeted is not None:
            self._greeted(hello, number)


def _own_group() -> dict[str, Any]:
    """A group of its own: Ctrl-C reaches us alone, and we pass it on once. uvloop, under which a server runs us, can
    make one only with a session."""
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return {"start_new_session": True} if is_uvloop else {"process_group": 0}


def greet(hello: Hello, processes: int) -> None:
    """The short block at the start: where jobs live, what is claimed, how to stop."""
    queues = ", ".join(name if weight == 1 else f"{name} (weight {weight})" for name, weight in hello.queues.items())
    tasks = ", ".join(hello.tasks[:8]) + (f" and {len(hello.tasks) - 8} more" if len(hello.tasks) > 8 else "")
    note(f"treadle: jobs live in {hello.url}")
    note(f"  queues  {queues}")
    note(f"  tasks   {tasks}")
    note(f"  slots   {hello.slots} in each of {plural(processes, 'process')}")
    for task, jobs in hello.strangers.items():
        note(f"  note    {plural(jobs, 'job')} of task {task!r} wait for another worker: this app does not have it")
    note(f"treadle: claiming; Ctrl-C once: running jobs get {hello.grace:g} s to end, twice: at once")


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
