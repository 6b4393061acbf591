"""The child process of `kind="process"`: it runs one function at a time, and the worker may kill it at any time.

`python -m treadle.worker.executors.child` exchanges frames over the socket that it gets as standard input. Output of
the function goes to the worker's own output. Nothing is unpickled: functions are found by name.
"""

from __future__ import annotations

import contextvars
import faulthandler
import functools
import importlib
import logging
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.concurrency import forks
from treadle.core import clock, defaults
from treadle.core.errors import BadArgument, BadResult, TooLarge
from treadle.core.job import Continuation
from treadle.core.model import Record
from treadle.core.standard_modules import keep_from
from treadle.execution.context import Context
from treadle.execution.job_run import JobRun, enter
from treadle.execution.middleware import close_process, inside_calls
from treadle.policy import judge
from treadle.policy.error_text import message_of, text_of
from treadle.policy.retry import Abort, Defer, RetryAfter
from treadle.policy.run_log import LogLine, RunLog
from treadle.worker.executors.child_functions import Places
from treadle.worker.executors.child_resources import ChildResources
from treadle.worker.executors.django import close_old_connections
from treadle.worker.log_capture import LogCapture
from treadle.workflow import encode_followups, followups_of

HEAD = struct.Struct(">II")  # bytes of the message (JSON), bytes of the text that follows it (UTF-8)
NOTES_EVERY = 0.05  # s between two notes sent; the last one goes with the answer
LINES_AFTER = 0.2  # s after a log line until it is sent with those behind it; the last ones go with the answer

Kind = Literal["other", "defer", "retry", "abort", "argument", "result", "large"]


class Hello(Struct, tag="hello", tag_field="is"):
    """The first message: the settings of the parent that a new interpreter lacks."""

    path: list[str]
    pythonpath: str | None
    main: str | None  # the file of the parent's script
    package: str | None  # the package of that script, if it was started with -m


class Ask(Struct, tag="ask", tag_field="is"):
    """A request to run a job. The payload is the text of the frame; `record` has none."""

    module: str
    qualname: str
    name: str
    codec: bool  # whether the task has its own codec
    worker: str
    record: Record
    capture: int | None = None  # the level of the log lines to keep; None: none
    child_headers: dict[str, str] | None = None
    alone: bool = False  # it also answers Waits, because nothing else runs during the job
    number: int = 0  # number of the request at this child; its answers repeat it


class Begun(Struct, tag="begun", tag_field="is"):
    """The user's code runs from now on: if the process dies, the job may be the cause."""

    number: int


class Noted(Struct, tag="noted", tag_field="is"):
    number: int
    note: str


class Logged(Struct, tag="logged", tag_field="is"):
    number: int
    log: tuple[LogLine, ...]


class Spent(Struct, tag="spent", tag_field="is"):
    """The real costs that the function has reported so far, by limit. Sent at once, as the process may be killed."""

    number: int
    costs: dict[str, int]


class Waits(Struct, tag="waits", tag_field="is"):
    """The function waits for another job."""

    number: int


class Done(Struct, tag="done", tag_field="is"):
    """The function has returned. The text of the frame is its result; with `has_followups`, its continuation."""

    number: int
    note: str | None
    has_followups: bool = False
    log: tuple[LogLine, ...] = ()


class Raised(Struct, tag="raised", tag_field="is"):
    """The function has raised. `fields` rebuild an exception of `kind`; of any other, only the texts are sent."""

    number: int
    kind: Kind
    fields: list[Any]
    type: str
    module: str
    message: str
    text: str
    note: str | None
    log: tuple[LogLine, ...] = ()
    fails_as: str | None = None


class Leave(Struct, tag="leave", tag_field="is"):
    """Close the resources of the app, and exit."""


Message = Hello | Ask | Begun | Noted | Logged | Spent | Waits | Done | Raised | Leave
read_message = msgspec.json.Decoder(Message).decode


def frame(message: Message, text: str = "") -> bytes:
    """Encode a message and its text."""
    head, body = msgspec.json.encode(message), text.encode()
    return HEAD.pack(len(head), len(body)) + head + body


class Child:
    """One process: a thread reads messages, and the main thread runs the functions."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._process = channel, forks.tag
        self._sending = threading.Lock()
        self._inbox: SimpleQueue[tuple[Message, str]] = SimpleQueue()
        self._functions = Places(None, None)
        self._resources = ChildResources()

    def serve(self) -> None:
        """Run jobs until the parent closes its end or kills this process."""
        threading.Thread(target=self._listen, name="treadle-parent", daemon=True).start()
        while True:
            message, payload = self._inbox.get()
            if isinstance(message, Leave):
                self._resources.close()
                close_process(self._functions.layers("close_process"))
                _flush()
                os._exit(0)  # end now, even if threads of functions still run
            if isinstance(message, Hello):
                self._set_up(message)
            elif isinstance(message, Ask):
                self._send(Begun(message.number))
                close_old_connections()
                answer, text = contextvars.copy_context().run(self._run, message, payload)
                if forks.tag is not self._process:
                    forks.end()
                close_old_connections()
                _flush()
                self._send(answer, text)

    def _listen(self) -> None:
        """Read messages. When the parent closes its end, end this process at once, even while a function runs."""
        try:
            stream = self._channel.makefile("rb")
            while (message := _read(stream)) is not None:
                self._inbox.put(message)
        finally:
            vanish()

    def _set_up(self, hello: Hello) -> None:
        for folder in set(hello.path).difference(sys.path):
            keep_from(folder)
        sys.path[:] = hello.path
        if hello.pythonpath is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = hello.pythonpath
        self._functions = Places(hello.main, hello.package)

    def _send(self, message: Message, text: str = "") -> None:
        if forks.tag is not self._process:
            return  # a process that the function forked shares the socket, but must not answer
        with self._sending:
            self._channel.sendall(frame(message, text))

    def _run(self, ask: Ask, payload: str) -> tuple[Done | Raised, str]:
        number, pace = ask.number, Pace()

        def send_note() -> None:
            if pace.due():
                self._send(Noted(number, run.note or ""))

        run = JobRun(ask.record, ask.worker, send_note, child_headers=ask.child_headers, kind="process")
        run.on_spent = lambda costs: self._send(Spent(number, costs))
        if ask.alone:
            run.on_wait = lambda: self._send(Waits(number))
        enter(run)
        if ask.capture is None:
            return self._called(ask, payload, run)
        root, capture = logging.getLogger(), LogCapture(ask.capture)
        if not root.handlers and root.level > ask.capture:
            root.setLevel(ask.capture)  # nothing in this process has set up logging
        lines = SentLines(capture.begin(run), lambda lines: self._send(Logged(number, lines)))
        capture.attach()
        try:
            answer, text = self._called(ask, payload, run)
        finally:
            capture.detach()
        return replace(answer, log=lines.rest()), text

    def _called(self, ask: Ask, payload: str, run: JobRun) -> tuple[Done | Raised, str]:
        number = ask.number
        try:
            signature, function, core, layers = self._functions.find(ask)
            args, kwargs = signature.decode_call(payload)
            run.site = self._resources.site(core)
            if layers:
                function = inside_calls(layers, (Context(run),), function, is_async=False)
            result = forks.contained(function, *args, **kwargs)
            if isinstance(result, Continuation):
                following = followups_of(result, signature.encode_result, defaults.MAX_RESULT)
                return Done(number, run.note, has_followups=True), encode_followups(following).decode()
            text = signature.encode_result(result)
            if len(text) * 4 > defaults.MAX_RESULT and (size := len(text.encode())) > defaults.MAX_RESULT:
                raise TooLarge.of_result(f"the result of {ask.name}", size, defaults.MAX_RESULT)
        except BaseException as error:  # also SystemExit: sys.exit() fails the job, not this process
            return raised(error, run.note, number), ""
        return Done(number, run.note), text


class SentLines:
    """Sends the log lines of a run while it runs, from a thread of its own."""

    def __init__(self, run_log: RunLog, send: Callable[[tuple[LogLine, ...]], None]) -> None:
        self._log, self._send = run_log, send
        self._sending, self._is_over = threading.Lock(), False
        run_log.reader = self

    def begun(self) -> None:
        """Send the lines soon."""
        timer = threading.Timer(LINES_AFTER, self._flush)
        timer.daemon = True
        timer.start()

    def _flush(self) -> None:
        with self._sending:
            lines = () if self._is_over else tuple(self._log.take())
            if lines:
                self._send(lines)

    def rest(self) -> tuple[LogLine, ...]:
        """The lines that are left. Nothing is sent afterwards."""
        with self._sending:
            self._is_over = True
            return tuple(self._log.take())


class Pace:
    """Limits the notes that are sent, because a function may write a thousand of them a second."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self) -> bool:
        now = clock.monotonic()
        if now < self._next:
            return False
        self._next = now + NOTES_EVERY
        return True


def raised(error: BaseException, note: str | None, number: int) -> Raised:
    """Encode an exception."""
    kind: Kind = "other"
    fields: list[Any] = []
    caused = error.__cause__ is not None
    if isinstance(error, Defer):
        until = None if error.until is None else error.until.timestamp()
        kind, fields = "defer", [error.seconds, until, error.limit, caused]
    elif isinstance(error, RetryAfter):
        kind, fields = "retry", [error.seconds, caused]
    elif isinstance(error, Abort):
        kind, fields = "abort", [message_of(error), caused]
    elif isinstance(error, BadArgument):
        kind, fields = "argument", [error.task, error.parameter, error.problem]
    elif isinstance(error, BadResult):
        kind, fields = "result", [error.task, error.problem]
    elif isinstance(error, TooLarge):
        kind, fields = "large", [error.what, error.size, error.limit]
    message = message_of(error).encode("utf-8", "replace").decode()[: defaults.MAX_ERROR]
    module, text = type(error).__module__, text_of(error)
    return Raised(
        number, kind, fields, type(error).__qualname__, module, message, text, note, fails_as=judge.fails_as(error)
    )


def _read(stream: BinaryIO) -> tuple[Message, str] | None:
    """Read one frame; None: the stream has ended."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, text_length = HEAD.unpack(head)
    message, text = stream.read(length), stream.read(text_length)
    return (read_message(message), text.decode()) if len(message) == length and len(text) == text_length else None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed or replaced by the user's function
            stream.flush()


def vanish() -> None:
    """Kill this process and everything that the function has started."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _channel() -> socket.socket:
    """Take the socket that is standard input, and replace that by an empty file: programs that the function starts do
    not inherit the socket."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    channel = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return channel


def _restore_sigterm() -> None:
    """Let SIGTERM end a process that the function has forked: `Pool.terminate` sends it, and waits. One that was sent
    earlier takes effect now."""
    with suppress(ValueError):  # forked in a subinterpreter
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def main() -> None:
    channel = _channel()
    forks.renew()  # middleware in the worker makes jobs for the same run: ids made here must differ
    # A service manager may signal all processes, but only the worker decides when this one ends. Handlers, not SIG_IGN,
    # because programs that the function starts would inherit SIG_IGN.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if hasattr(os, "register_at_fork"):
        block = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGTERM})
        unblock = functools.partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=_restore_sigterm)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # keeps output before a kill
    with suppress(Exception):
        faulthandler.enable()
    Child(channel).serve()


if __name__ == "__main__":
    # Run the module under its own name, not this copy: the user's script takes over the name __main__.
    importlib.import_module("treadle.worker.executors.child").main()
