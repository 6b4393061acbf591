"""Runs tasks of kind "process", each in a child of this worker that can be killed.

Without it CPU-bound functions would hold each other up, and one that never returns could only be waited for.
A run that is cancelled ends when its process is dead, not before: a job is never given back while it still runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from treadle.core.model import Record
from treadle.errors import UNREADABLE, BadArgument, BadResult, BadTask, ProcessDied, RemoteFailure, TooLarge
from treadle.execution.context import Context, NotRunning, current
from treadle.execution.runner import AnyTask
from treadle.policy.retry import Abort, Defer
from treadle.serialization.call_codec import TaggedCodec
from treadle.worker.executors.child import HEAD, Ask, Begun, Done, Hello, Message, Noted, Raised, frame, read_message
from treadle.workflow.continuation import Next, decode_next

log = logging.getLogger("treadle")

JOBS_EACH = 1_000  # then a fresh process: what a function leaks does not grow for ever
BUFFER = 1 << 20  # bytes read ahead: a result of 16 MiB in 16 steps instead of 256
PATIENCE = 1.0  # s a child may take to die by itself after it closed its end


class ProcessPool:
    """Children of one worker: started when needed, used again, replaced after `jobs_each` jobs."""

    def __init__(self, jobs_each: int = JOBS_EACH) -> None:
        self._jobs_each = jobs_each
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._closed = False

    async def run(self, task: AnyTask, record: Record) -> str | Next:
        """The encoded result. Cancelled, it kills the process, and is over when that is dead.

        Raises RemoteFailure for what the function raised, ProcessDied if it took its process down; Defer, Abort,
        BadArgument, BadResult and TooLarge as they are.
        """
        ask = _ask(task, record)
        while True:
            child = await self._take()
            fresh = child.jobs == 0
            try:
                answer, text = await child.call(ask, record.job.payload)
            except _Gone as gone:
                if gone.astray:
                    log.warning("the process %s of %s was killed: %s", child.pid, task.name, gone.astray)
                code = await self._remove(child, at_once=bool(gone.astray))
                if gone.begun or fresh or self._closed:
                    raise ProcessDied(task.name, code, _signal_name(code)) from None
                continue  # it had died while it was idle: not this job's doing
            except BaseException:
                await self._remove(child, at_once=True)
                raise
            if child.jobs < self._jobs_each and not self._closed:
                self._idle.append(child)
            else:
                await self._remove(child, at_once=True)
            if isinstance(answer, Raised):
                raise _error(answer)
            return decode_next(text) if answer.goes_on else text

    async def close(self) -> None:
        """Kill and reap all of them."""
        self._closed = True
        self._idle.clear()
        children, self._children = self._children, set()
        await asyncio.gather(*(child.die(at_once=True) for child in children))

    @property
    def pids(self) -> list[int]:
        """The processes there are."""
        return sorted(child.pid for child in self._children)

    async def _take(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            await self._remove(child)
        child = await _Child.start()
        self._children.add(child)
        if self._closed:
            await self._remove(child, at_once=True)
            raise RuntimeError("the process pool is closed")
        return child

    async def _remove(self, child: _Child, at_once: bool = False) -> int:
        try:
            return await child.die(at_once)
        finally:
            self._children.discard(child)


class _Gone(Exception):
    """The child closed its end, after it had `begun` the job or before; or its answer is wrong, as `astray` says."""

    def __init__(self, begun: bool, astray: str = "") -> None:
        self.begun, self.astray = begun, astray


class _Child:
    """One process and our end of its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.pid, self.jobs = process.pid, 0
        self._ended = asyncio.ensure_future(process.wait())
        # Not only its end of the socket tells: something it forked may hold that open.
        self._ended.add_done_callback(lambda _: writer.close())

    @classmethod
    async def start(cls) -> _Child:
        ours, theirs = socket.socketpair()
        process = None
        try:
            try:
                process = await _spawn(theirs)
            finally:
                theirs.close()
            reader, writer = await asyncio.open_connection(sock=ours, limit=BUFFER)
        except BaseException:
            ours.close()
            if process is not None:
                _kill(process)
                await _wait(asyncio.ensure_future(process.wait()))
            raise
        writer.write(frame(_hello()))
        return cls(process, reader, writer)

    @property
    def alive(self) -> bool:
        return not self._ended.done() and not self._reader.at_eof()

    async def call(self, ask: Ask, payload: str) -> tuple[Done | Raised, str]:
        """Have one job run. Raises _Gone."""
        context = _context(ask.record)
        self.jobs += 1
        begun = False
        try:
            self._writer.write(frame(replace(ask, number=self.jobs), payload))
            await self._writer.drain()
            while True:
                message, text = await self._read()
                if not isinstance(message, Begun | Noted | Done | Raised) or message.number != self.jobs:
                    raise _Gone(begun, f"it answered another question than the one asked: {message!r:.200}")
                if isinstance(message, Begun):
                    begun = True
                elif isinstance(message, Noted):
                    context.keep_note(message.note)
                else:
                    if message.note is not None:
                        context.note = message.note
                    return message, text
        except (ConnectionError, asyncio.IncompleteReadError):
            raise _Gone(begun) from None
        except UNREADABLE as error:
            raise _Gone(begun, f"its answer cannot be read: {error}") from None

    async def _read(self) -> tuple[Message, str]:
        length, more = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        message = read_message(await self._reader.readexactly(length))
        return message, (await self._reader.readexactly(more)).decode() if more else ""

    async def die(self, at_once: bool = False) -> int:
        """See to it that it is dead and reaped; its exit code. A cancellation has to wait for that."""
        cancelled = False if at_once else await _wait(self._ended, PATIENCE)
        if not self._ended.done():
            _kill(self._process)
            cancelled = await _wait(self._ended) or cancelled
        self._writer.close()
        if cancelled:
            raise asyncio.CancelledError
        return self._ended.result()


async def _spawn(theirs: socket.socket) -> asyncio.subprocess.Process:
    """A fresh interpreter in a session of its own: Ctrl-C is for the worker, which decides what becomes of its jobs."""
    command = [sys.executable, "-P", "-m", "treadle.worker.executors.child"]
    env = _environment()
    if sys.platform == "win32":
        import subprocess

        group = subprocess.CREATE_NEW_PROCESS_GROUP
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=env, creationflags=group
        )
        assert process.stdin is not None
        process.stdin.write(theirs.share(process.pid))
        process.stdin.write_eof()
        await process.stdin.drain()
        return process
    return await asyncio.create_subprocess_exec(*command, stdin=theirs.fileno(), env=env, start_new_session=True)


def _environment() -> dict[str, str]:
    """Ours, and a way to find treadle until the child has our sys.path."""
    root = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _kill(process: asyncio.subprocess.Process) -> None:
    """The process and whatever it started."""
    if process.returncode is not None:
        return
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it is dead, and about to be reaped


async def _wait(future: asyncio.Future[int], timeout: float | None = None) -> bool:
    """Wait for it in spite of cancellations; whether there was one."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future], timeout=timeout)
        except asyncio.CancelledError:
            cancelled = True
        else:
            if timeout is not None:
                break
    return cancelled


def _hello() -> Hello:
    main: ModuleType | None = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    return Hello(
        path=list(sys.path),
        pythonpath=os.environ.get("PYTHONPATH"),
        main=None if file is None else str(Path(file).resolve()),
        package=None if spec is None else spec.parent,
    )


def _ask(task: AnyTask, record: Record) -> Ask:
    function = task.function
    module = getattr(function, "__module__", None)
    if not isinstance(module, str):
        raise BadTask(f"{task.name}: {function!r} says not which module it is from")
    own_codec = task.signature._codec is not None and not isinstance(task.signature._codec, TaggedCodec)
    light = replace(record, job=replace(record.job, payload=""))
    return Ask(module, function.__qualname__, task.name, own_codec, _context(record).worker, light)


def _context(record: Record) -> Context:
    """The job's own context, which the runner has set."""
    try:
        return current()
    except NotRunning:
        return Context(record, "", lambda: None)


def _error(raised: Raised) -> Exception:
    """What was raised in the child, as far as it means something here, with the traceback from there."""
    failure = RemoteFailure(raised.type, raised.module, raised.message, raised.text)
    known: Exception | None = None
    match raised.kind, raised.fields:
        case "defer", [seconds, until, limit]:
            known = Defer(seconds, until=None if until is None else datetime.fromtimestamp(until, UTC), limit=limit)
        case "abort", [message, False]:
            return Abort(message)  # that says all, as it does in a thread
        case "abort", [message, True]:
            known = Abort(message)
        case "argument", [task, parameter, problem, permanent]:
            known = BadArgument(task, parameter, problem)
            known.permanent = permanent
        case "result", [task, problem]:
            known = BadResult(task, problem)
        case "large", [what, size, limit]:
            known = TooLarge(what, size, limit)
    if known is None:
        return failure
    known.__cause__ = failure
    return known


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return None
