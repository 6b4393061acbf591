"""One worker process, seen from its supervisor: its start, its messages, whether its event loop answers, its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from treadle.core.clock import monotonic
from treadle.metrics import Numbers
from treadle.worker.fleet.messages import (
    Count,
    Counted,
    Drain,
    Found,
    Hello,
    Message,
    NoteDeath,
    Orders,
    Probe,
    RenewFor,
    Request,
    Stopping,
    Vitals,
)
from treadle.worker.fleet.recycling import Recycling
from treadle.worker.jobs_of_others import Death, Lease, Place

PROGRAM: Final = "treadle.cli.child"  # it finds the app, as the command line does, and runs one worker
EVERY: Final = 1.0  # s from an answer to the next probe
OFTEN: Final = 0.05  # s; the least pause between two probes
STUCK: Final = 8.0  # s without an answer after which an event loop counts as stuck: with EVERY and one check, under 10
UNRENEWED: Final = 4  # a silent process has its leases renewed after a lease divided by this
PROBES: Final = 16  # parts of a lease, at least one Probe in each
STARTING: Final = 600.0  # s that importing the app may take: no loop runs until then, and models take minutes to load
LAST: Final = 0.2  # s for reading what an ended process has sent; a child of its own may keep the socket open
MARGIN: Final = 20.0  # s beyond grace and lease until a process that stops is killed
MESSAGE: Final = 16 * 2**20  # bytes of a message at most
STACKS: Final = 2**20  # bytes of the stacks of all threads that are read
_read = msgspec.json.Decoder(Message).decode
_line = msgspec.json.Encoder().encode


class WorkerProcess:
    """Starts a process. `over` is its end: a task that returns the exit code, and kills the process if it is cancelled.

    limits      when it is due to be replaced
    on_message  called with each message, including the Hello
    """

    def __init__(
        self,
        orders: Orders,
        limits: Recycling,
        on_message: Callable[[WorkerProcess, Message], None],
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self.orders, self.number, self.limits = orders, orders.number, limits
        self._on_message, self._environment, self._inherited = on_message, environment, inherited
        self._child: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._early: int | None = None  # a signal that came before the process was there
        self._waiting = False  # whether it waits for the reply to a Probe
        self.hello: Hello | None = None
        self.vitals: Vitals | None = None
        self.idle_memory = 0  # bytes, before its first job
        self.numbers: Numbers | None = None  # the numbers in its last reply to a Count
        self._counting: asyncio.Future[None] | None = None  # until that reply
        self.claims = asyncio.Event()  # it has sent its Hello
        self.claims_since = 0.0  # an instant of the monotonic clock
        self.unanswered = 0.0  # s that its event loop has not answered
        self.asked = False  # it stops on request
        self.killed_for = ""  # why the supervisor has killed it, as a clause
        self._numbers = itertools.count(1)
        self._found: dict[int, asyncio.Future[list[Place] | None]] = {}  # requests without a reply
        # Where it writes its stacks at SIGURG, see `show_stacks`; closed when it is over.
        self._stacks = tempfile.TemporaryFile("ab+", buffering=0)  # noqa: SIM115
        self.over: asyncio.Task[int] = asyncio.create_task(self._run())
        self.over.add_done_callback(lambda _: self._stacks.close())

    @property
    def pid(self) -> int:
        """0 before it is started."""
        return 0 if self._child is None else self._child.pid

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{'trial process' if self.orders.trial else f'worker {self.number}'} (pid {self.pid})"

    @property
    def lease(self) -> float:
        """Seconds of the shortest lease that it renews."""
        own = self.orders.lease_or_default
        return own if self.vitals is None or not self.vitals.lease else min(own, self.vitals.lease)

    @property
    def probe_every(self) -> float:
        """Seconds from an answer to the next probe."""
        return min(EVERY, max(OFTEN, self.lease / PROBES))

    @property
    def needs_renewals(self) -> bool:
        """Whether its event loop has been silent for so long that others must renew its leases."""
        return self.hello is not None and self.unanswered >= min(STUCK, self.lease / UNRENEWED)

    @property
    def may_need_renewals(self) -> bool:
        """Whether others will have to renew its leases soon: there is time to start one that can."""
        return self.hello is not None and self.unanswered >= min(STUCK, self.lease / UNRENEWED) / 2

    @property
    def may_help(self) -> bool:
        """Whether it can act for other processes."""
        return self.hello is not None and self.hello.helps and not self.over.done() and not self.may_need_renewals

    @property
    def stuck(self) -> str | None:
        """That its event loop does not answer, with how long; None if it does."""
        if self.unanswered < (STARTING if self.vitals is None else STUCK):
            return None
        state = "its event loop has not answered" if self.vitals is not None else "it has not started its event loop"
        return f"{self.label}: {state} for {self.unanswered:.0f} s"

    def signal(self, number: int) -> None:
        """Send a signal, if the process has not ended; while it is being created, the last one is kept."""
        self.asked |= number in (signal.SIGTERM, signal.SIGINT)
        if self._child is None:
            self._early = number
        else:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)

    def send(self, request: Request) -> None:
        """Send a request. Nothing happens if the process has ended."""
        self.asked |= isinstance(request, Drain)
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(_line(request) + b"\n")

    def drain(self, reason: str, grace: float, kill: Callable[[], None]) -> None:
        """Let it end its running jobs and exit. `kill` is called if it has not ended by then."""
        self.send(Drain(reason, grace))
        killer = asyncio.get_running_loop().call_later(grace + self.orders.lease_or_default + MARGIN, kill)
        self.over.add_done_callback(lambda _: killer.cancel())

    async def note(self, death: Death) -> list[Place] | None:
        """Ask it to note the end of another process -> that process's jobs; None: it could not."""
        return await self._ask(lambda number: NoteDeath(number, death))

    async def renew_for(self, worker: str, jobs: list[Lease]) -> list[Place] | None:
        """Ask it to renew the leases of another process -> that process's jobs; None: it could not."""
        return await self._ask(lambda number: RenewFor(number, worker, jobs))

    async def _ask(self, request: Callable[[int], Request]) -> list[Place] | None:
        number = next(self._numbers)
        reply = self._found[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(request(number))
            # Another process may do it if this one is stuck, or its storage does not answer.
            await asyncio.wait((reply, self.over), timeout=self.lease / 3, return_when=asyncio.FIRST_COMPLETED)
            return reply.result() if reply.done() else None
        finally:
            del self._found[number]

    async def stacks(self, patience: float) -> str:
        """Ask it to write the stacks of all threads -> what it has written within this many seconds."""
        text, end = b"", monotonic() + patience
        if self.over.done():
            return ""
        before = os.fstat(self._stacks.fileno()).st_size
        self.signal(signal.SIGURG)
        while monotonic() < end:
            await asyncio.sleep(0.05)
            if self.over.done():
                break
            text, size = os.pread(self._stacks.fileno(), STACKS, before), len(text)
            if len(text) == size > 0:  # it writes no more
                break
        return text.decode(errors="replace")

    def count(self) -> asyncio.Future[None]:
        """Ask for its numbers. Returns a future that is done when `numbers` has them, or when the process has ended."""
        if self._counting is None or self._counting.done():
            self._counting = asyncio.get_running_loop().create_future()
            self.send(Count())
        return self._counting

    def _counted(self) -> None:
        if self._counting is not None and not self._counting.done():
            self._counting.set_result(None)

    async def _run(self) -> int:
        """Run the process to its end -> its exit code. Kills it if this is cancelled."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                child = self._child = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-P",  # no module of the current directory replaces one of Python's
                    "-m",
                    PROGRAM,
                    str(theirs.fileno()),
                    self.orders.app or ("the only app" if self.orders.search else "delayed"),
                    str(self._stacks.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), self._stacks.fileno(), *self._inherited],
                    env=self._environment,
                    **_own_group(),
                )
            except BaseException:
                ours.close()
                raise
        if self._early is not None:
            self.signal(self._early)
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=MESSAGE)
        self._writer = writer
        writer.write(_line(self.orders) + b"\n")
        talking = [asyncio.create_task(talk) for talk in (self._hear(reader), self._probe())]
        try:
            code = await child.wait()
            await asyncio.wait(talking[:1], timeout=LAST)
            return code
        finally:
            self._counted()
            for task in talking:
                task.cancel()
            await asyncio.gather(*talking, return_exceptions=True)
            writer.transport.abort()
            if child.returncode is None:
                child.kill()
                await child.wait()

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                self._heard(_read(line))

    def _heard(self, message: Message) -> None:
        if isinstance(message, Hello):
            self.hello, self.claims_since = message, monotonic()
            self.claims.set()
        elif isinstance(message, Vitals):
            self.vitals, self._waiting, self.unanswered = message, False, 0.0
            if not message.health.started:
                self.idle_memory = message.memory
        elif isinstance(message, Counted):
            self.numbers = message.numbers
            self._counted()
        elif isinstance(message, Stopping):
            self.asked = True
        elif isinstance(message, Found) and message.number in self._found:
            self._found[message.number].set_result(message.jobs)
        self._on_message(self, message)

    async def _probe(self) -> None:
        """Send a Probe a second after the last answer, and count the seconds without one."""
        last = monotonic()
        while True:
            if not self._waiting:
                self._waiting = True
                self.send(Probe())
            every = self.probe_every
            await asyncio.sleep(every)
            now = monotonic()
            if self._waiting:
                # If this process itself stood still, for example because the machine slept, the other one did too.
                self.unanswered += min(now - last, 2 * every)
            last = now


async def first_of(
    *events: Coroutine[Any, Any, object], over: Sequence[asyncio.Task[int]], timeout: float | None = None
) -> None:
    """Wait until one of `events` or `over` has ended, or for `timeout` seconds. Then cancel `events`."""
    waiting = [asyncio.create_task(event) for event in events]
    try:
        await asyncio.wait((*waiting, *over), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _own_group() -> dict[str, Any]:
    """A process group of the child's own: Ctrl-C reaches only the supervisor, which forwards it once. uvloop, which a
    server may run on, can make a group only with a session."""
    is_uvloop = type(asyncio.get_running_loop()).__module__.startswith("uvloop")
    return {"start_new_session": True} if is_uvloop else {"process_group": 0}
