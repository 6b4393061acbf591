"""A supervisor of worker processes: starts them, restarts those that die, stops them together.

Each child has its own process group, so that Ctrl-C reaches it once, through the supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from treadle.cli.app_loader import refuse_hiding
from treadle.cli.child_protocol import Hello, Orders
from treadle.cli.output import FAILED, OK, note, plural
from treadle.core import defaults
from treadle.core.clock import monotonic

BACKOFF = (0.2, 30.0)  # s before the first restart, and at most
HEALTHY = 60.0  # s of running after which the back-off starts over
STARTS = 10  # starts of a process in a row that end before its Hello, in about two minutes; then the others stop too
AT_ONCE = 5.0  # s from the second stop to SIGKILL
MARGIN = 20.0  # s beyond grace and lease from the first stop to SIGKILL

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
        inherited: Sequence[int] = (),
    ) -> None:
        refuse_hiding()
        self.orders, self.size = orders, processes
        self._roles = roles  # of each process, in order
        self._inherited = inherited  # descriptors that each process gets
        self._say, self._greeted, self._environment = say, greeted, environment
        self._asked = 0  # calls of `stop`
        self._stop = asyncio.Event()
        self._children: dict[int, asyncio.subprocess.Process] = {}  # live processes by number
        self._proven = False  # a process has sent Hello, so the orders work
        self._unproven: Counter[int] = Counter()  # starts in a row without a Hello, by number of the process
        self._code = OK
        self._killer: asyncio.TimerHandle | None = None

    @property
    def pids(self) -> dict[int, int]:
        """Process ids of the live processes by number."""
        return {number: child.pid for number, child in self._children.items()}

    async def run(self) -> int:
        """Run until all processes have stopped -> the exit code. Kills them if it is cancelled or fails."""
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
        """First call: stop within grace. Second: stop at once. Third: kill."""
        self._asked += 1
        self._stop.set()
        if self._asked > 2:
            self._signal(signal.SIGKILL)
            return
        # Different signals, because the system merges two pending signals of one kind.
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
                "their jobs are queued again when the leases expire"
            )
            self._code = FAILED
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    # --- one process

    async def _keep(self, number: int, first: asyncio.Event) -> None:
        """Run one process and restart it when it dies. All but the first wait until a process has sent Hello."""
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
            if self._unproven[number] >= STARTS:
                self._say(f"worker {number} could not start {STARTS} times in a row; stopping the others")
                self._code = code if 0 < code < 128 else FAILED
                self.stop()
                break
            failures = 1 if monotonic() - began > HEALTHY else failures + 1
            delay = min(BACKOFF[0] * 2 ** (failures - 1), BACKOFF[1])
            self._say(f"worker {number} {_ended(code)}; restarting it in {delay:.1f} s")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stop.wait()
        first.set()

    async def _one(self, number: int, first: asyncio.Event) -> int:
        """Run one process to its end -> its exit code."""
        self._unproven[number] += 1
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "treadle.cli.child",
                    str(theirs.fileno()),
                    self.orders.app or ("the only app" if self.orders.search else "delayed"),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), *self._inherited],
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
        self._unproven[number] = 0
        first.set()
        if self._greeted is not None:
            self._greeted(hello, number)


def _own_group() -> dict[str, Any]:
    """A process group of the child's own: Ctrl-C reaches only the supervisor, which forwards it once. uvloop, which a
    server may run on, can make a group only with a session."""
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return {"start_new_session": True} if is_uvloop else {"process_group": 0}


def greet_again(hello: Hello, before: Hello) -> None:
    """Print which tasks a reload has added and removed."""
    added, removed = sorted(set(hello.tasks) - set(before.tasks)), sorted(set(before.tasks) - set(hello.tasks))
    found = [f"new task {name}" for name in added] + [f"task {name} is gone" for name in removed]
    note("treadle: claiming jobs again" + "".join(f"; {each}" for each in found[:8]))


def greet(hello: Hello, processes: int) -> None:
    """Print the storage, queues, tasks and slots, and how to stop."""
    queues = ", ".join(name if weight == 1 else f"{name} (weight {weight})" for name, weight in hello.queues.items())
    tasks = ", ".join(hello.tasks[:8]) + (f" and {len(hello.tasks) - 8} more" if len(hello.tasks) > 8 else "")
    note(f"treadle: jobs live in {hello.url}")
    if hello.found:
        note(f"  app     {hello.found}")
    note(f"  queues  {queues}")
    note(f"  tasks   {tasks}")
    note(f"  slots   {hello.slots} in each of {plural(processes, 'process')}")
    for task, jobs in hello.strangers.items():
        wait = "waits" if jobs == 1 else "wait"
        of = f"{plural(jobs, 'job')} of task {task!r}"
        note(f"  note    {of} {wait} for another worker: this app does not have the task")
    note(f"treadle: claiming jobs; press Ctrl-C to stop after at most {hello.grace:g} s, twice to stop at once")


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
