"""Runs tasks of kind "process" in child processes of the worker, which can be killed.

A cancelled run ends only when its process is dead, so a job is never released while it still runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from msgspec.structs import replace

from treadle.concurrency.spawn import started
from treadle.core.errors import (
    RESULT,
    UNREADABLE,
    BadArgument,
    BadResult,
    BadTask,
    ProcessDied,
    RemoteFailure,
    TooLarge,
    TreadleError,
)
from treadle.core.model import Record
from treadle.execution.job_run import JobRun, running_here
from treadle.execution.middleware import overrides
from treadle.policy.retry import Abort, Defer, RetryAfter
from treadle.resources import LEAVING
from treadle.tasks.core import TaskCore
from treadle.worker.executors.child import (
    HEAD,
    Ask,
    Begun,
    Done,
    Hello,
    Leave,
    Logged,
    Message,
    Noted,
    Raised,
    Spent,
    Waits,
    frame,
    read_message,
)
from treadle.workflow import Followups, decode_followups

log = logging.getLogger("treadle")

JOBS_EACH = 1_000  # jobs until a process is replaced, which bounds memory that functions leak
BUFFER = 1 << 20  # bytes read ahead: a result of 16 MiB in 16 steps instead of 256
PATIENCE = 1.0  # s for a child that closed its end to exit by itself


class ProcessPool:
    """The child processes of one worker: started when needed, reused, and replaced after `jobs_each` jobs."""

    def __init__(self, jobs_each: int = JOBS_EACH) -> None:
        self._jobs_each = jobs_each
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._leaving: set[asyncio.Task[None]] = set()  # replaced children that close their resources
        self._closed = False

    async def run(self, task: TaskCore, record: Record) -> str | Followups:
        """Run a job and return its encoded result. If cancelled, kill the process and wait until it is dead.

        Raises ProcessDied if the process died during the job, and the exception of the function: Defer, Abort,
        BadArgument, BadResult and TooLarge unchanged, any other as a RemoteFailure.
        """
        ask, has_resources = _ask(task, record), _has_resources(task, record)
        while True:
            child = await self._take()
            is_new = child.jobs == 0
            try:
                answer, text = await child.call(ask, record.job.payload)
            except _CallFailed as error:
                if error.problem:
                    log.warning("the process %s of %s was killed: %s", child.pid, task.name, error.problem)
                code = await self._remove(child, at_once=bool(error.problem))
                if error.begun or is_new or self._closed:
                    raise ProcessDied(task.name, code, _signal_name(code)) from None
                continue  # it died while it was idle: this job is not the cause
            except BaseException:
                await self._remove(child, at_once=True)
                raise
            child.has_resources = child.has_resources or has_resources
            if child.jobs < self._jobs_each and not self._closed:
                self._idle.append(child)
            elif child.has_resources and not self._closed:
                self._leave_later(child)
            else:
                await self._remove(child, at_once=True)
            if isinstance(answer, Raised):
                raise _error(answer)
            return decode_followups(text) if answer.has_followups else text

    async def close(self, hurry: asyncio.Event | None = None) -> None:
        """Kill and reap all processes. Idle processes that have resources close them first, for at most `LEAVING` s, or
        until `hurry` is set."""
        self._closed = True
        leaving = {started(child.leave()) for child in self._idle if child.has_resources} | self._leaving
        self._idle.clear()
        if leaving:
            hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
            done = asyncio.ensure_future(asyncio.wait(leaving))
            await asyncio.wait([done, hurried], return_when=asyncio.FIRST_COMPLETED)
            hurried.cancel()
            done.cancel()
        children, self._children = self._children, set()
        await asyncio.gather(*(child.die(at_once=True) for child in children))
        if leaving:
            await asyncio.wait(leaving)

    def _leave_later(self, child: _Child) -> None:
        """Let a child that is replaced close its resources, while its last job ends."""

        async def leave() -> None:
            await child.leave()
            await self._remove(child, at_once=True)

        task = started(leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    @property
    def pids(self) -> list[int]:
        """The ids of the current processes."""
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


class _CallFailed(Exception):
    """The child closed its end, or sent a wrong answer (`problem`). `begun`: the job had begun."""

    def __init__(self, begun: bool, problem: str = "") -> None:
        self.begun, self.problem = begun, problem


class _Child:
    """One process and the worker's end of its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.pid, self.jobs = process.pid, 0
        self.has_resources = False  # a lifespan or dependencies, to be closed before it is killed
        self._ended = asyncio.ensure_future(process.wait())
        # Watch the process too, not only the socket: a process that it forked may keep that open.
        self._ended.add_done_callback(lambda _: writer.close())

    @classmethod
    async def start(cls) -> _Child:
        parent_end, child_end = socket.socketpair()
        process = None
        try:
            try:
                process = await _spawn(child_end)
            finally:
                child_end.close()
            reader, writer = await asyncio.open_connection(sock=parent_end, limit=BUFFER)
        except BaseException:
            parent_end.close()
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
        """Run one job. Raises _Gone."""
        run = _run_of(ask.record)
        self.jobs += 1
        begun = False
        try:
            self._writer.write(frame(replace(ask, number=self.jobs), payload))
            await self._writer.drain()
            while True:
                message, text = await self._read()
                if isinstance(message, Hello | Ask | Leave) or message.number != self.jobs:
                    raise _CallFailed(begun, f"expected the response to the latest call, found {message!r:.200}")
                if isinstance(message, Logged | Done | Raised) and run.log is not None:
                    run.log.extend(message.log)
                if isinstance(message, Done | Raised):
                    if message.note is not None:
                        run.note = message.note
                    return message, text
                if isinstance(message, Begun):
                    begun = True
                else:
                    _report(run, message)
        except (ConnectionError, asyncio.IncompleteReadError):
            raise _CallFailed(begun) from None
        except UNREADABLE as error:
            raise _CallFailed(begun, f"its response cannot be read: {error}") from None

    async def _read(self) -> tuple[Message, str]:
        length, text_length = HEAD.unpack(await self._reader.readexactly(HEAD.size))
        message = read_message(await self._reader.readexactly(length))
        return message, (await self._reader.readexactly(text_length)).decode() if text_length else ""

    async def leave(self) -> None:
        """Let the process close the resources of its app and exit, in at most `LEAVING` s and a margin."""
        with suppress(OSError):
            self._writer.write(frame(Leave()))
        await asyncio.wait([self._ended], timeout=LEAVING + PATIENCE)

    async def die(self, at_once: bool = False) -> int:
        """Wait until the process is dead and reaped, and return its exit code. Kill it at once or after `PATIENCE` s. A
        cancellation takes effect afterwards."""
        cancelled = False if at_once else await _wait(self._ended, PATIENCE)
        if not self._ended.done():
            _kill(self._process)
            cancelled = await _wait(self._ended) or cancelled
        self._writer.close()
        if cancelled:
            raise asyncio.CancelledError
        return self._ended.result()


async def _spawn(child_end: socket.socket) -> asyncio.subprocess.Process:
    """Start an interpreter in a session of its own, so that Ctrl-C reaches only the worker, which stops its jobs."""
    command = [sys.executable, "-P", "-m", "treadle.worker.executors.child"]
    env = _environment()
    if sys.platform == "win32":
        import subprocess

        group = subprocess.CREATE_NEW_PROCESS_GROUP
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=env, creationflags=group
        )
        assert process.stdin is not None
        process.stdin.write(child_end.share(process.pid))
        process.stdin.write_eof()
        await process.stdin.drain()
        return process
    return await asyncio.create_subprocess_exec(*command, stdin=child_end.fileno(), env=env, start_new_session=True)


def _environment() -> dict[str, str]:
    """The worker's environment, with a path to treadle that works until the child has the worker's sys.path."""
    root = str(Path(__file__).resolve().parents[3])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process and everything in its process group."""
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
    """Wait for the future in spite of cancellations. Returns whether there was one."""
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


def _ask(task: TaskCore, record: Record) -> Ask:
    function = task.function
    module = getattr(function, "__module__", None)
    if not isinstance(module, str):
        raise BadTask(f"{task.name}: {function!r} does not name its module, so a process cannot import it")
    own_codec = task.signature._codec is not None
    without_payload = replace(record, job=replace(record.job, payload=""))
    run = _run_of(record)
    capture = None if run.log is None else run.log.level
    return Ask(
        module,
        function.__qualname__,
        task.name,
        own_codec,
        run.worker,
        without_payload,
        capture,
        run.child_headers,
        run.on_wait is not None,
    )


def _run_of(record: Record) -> JobRun:
    """The run of the job, which the runner has entered."""
    return running_here() or JobRun(record, "", lambda: None)


def _report(run: JobRun, message: Message) -> None:
    """Pass on what the function has reported."""
    if isinstance(message, Noted):
        run.keep_note(message.note)
    elif isinstance(message, Spent):
        run.spent = message.costs
    elif isinstance(message, Waits) and run.on_wait is not None:
        run.on_wait()


def _has_resources(task: TaskCore, record: Record) -> bool:
    """Whether the process of this job has resources to close, or middleware that flushes at its end. Raises BadTask for
    resources that a test overrides, because the process has only the module."""
    life = None if (site := _run_of(record).site) is None else site.life
    has = task.injector is not None or (life is not None and life.lifespan is not None)
    if has and life is not None and life.overrides:
        raise BadTask(f"{task.name}: overrides do not reach its process; in a test, call the function itself")
    return has or bool(overrides(task.factory.sender.layers, "close_process"))


def _error(raised: Raised) -> Exception:
    """The exception of the child: a known type is rebuilt, with a RemoteFailure as its cause; any other becomes a
    RemoteFailure, which has the child's traceback."""
    failure = RemoteFailure(raised.type, raised.module, raised.message, raised.text)
    failure.fails_as = raised.fails_as
    exception: Exception | None = None
    match raised.kind, raised.fields:
        case "defer", [seconds, until, limit, _]:
            exception = Defer(seconds, until=None if until is None else datetime.fromtimestamp(until, UTC), limit=limit)
        case "retry", [seconds, _]:
            exception = RetryAfter(seconds)
        case "abort", [message, _]:
            exception = Abort(message)
        case "argument", [task, parameter, problem]:
            exception = BadArgument(task, parameter, problem)
        case "result", [task, problem]:
            exception = BadResult(task, problem)
        case "large", [what, size, limit]:
            exception = (TooLarge.of_result if raised.fails_as == RESULT else TooLarge)(what, size, limit)
    if exception is None:
        return failure
    if isinstance(exception, Defer | RetryAfter | Abort) and not raised.fields[-1]:
        return exception  # sent without a traceback, as from a thread
    if isinstance(exception, TreadleError):
        exception.fails_as = raised.fails_as
    exception.__cause__ = failure
    return exception


def _signal_name(code: int) -> str | None:
    try:
        return signal.Signals(-code).name if code < 0 else None
    except ValueError:
        return None
