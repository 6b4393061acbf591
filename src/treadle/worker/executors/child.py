"""The other side of `kind="process"`: a child that runs one function at a time and may be killed at any moment.

Without it a CPU-bound function would hold the worker's loop, and one that never returns could not be stopped.
`python -m treadle.worker.executors.child` speaks frames over the socket it finds as its standard input. What the
function prints goes where the worker's own output goes. Nothing is unpickled: functions are found by name.
"""

from __future__ import annotations

import contextvars
import faulthandler
import importlib
import os
import signal
import socket
import struct
import sys
import threading
import types
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO, Literal

import msgspec
from msgspec import Struct

from treadle.concurrency import forks
from treadle.core import clock, defaults
from treadle.core.job import Continuation
from treadle.core.model import Record
from treadle.errors import BadArgument, BadResult, BadTask, TooLarge
from treadle.execution.context import Context, enter
from treadle.policy import judge
from treadle.policy.retry import Abort, Defer
from treadle.serialization.call_codec import CallCodec
from treadle.tasks.task import Task
from treadle.worker.executors.django import close_old_connections
from treadle.workflow.continuation import encode_next, next_of

HEAD = struct.Struct(">II")  # bytes of the message (JSON), bytes of the text that goes with it (UTF-8)
NOTES_EVERY = 0.05  # s between two notes sent; the last one comes with the answer
MAINS = ("__main__", "__mp_main__")

Kind = Literal["other", "defer", "abort", "argument", "result", "large"]


class Hello(Struct, tag="hello", tag_field="is"):
    """First: the surroundings of the parent that a fresh interpreter has not."""

    path: list[str]
    pythonpath: str | None
    main: str | None  # the file of its script
    package: str | None  # and the package of that, started with -m


class Ask(Struct, tag="ask", tag_field="is"):
    """Run this; the payload is the text that goes with it, and `record` has none."""

    module: str
    qualname: str
    name: str
    codec: bool  # the task has a codec of its own
    worker: str
    record: Record
    number: int = 0  # of the question, at this child; every answer to it says the same


class Begun(Struct, tag="begun", tag_field="is"):
    """From here on the process may die of what the user wrote."""

    number: int


class Noted(Struct, tag="noted", tag_field="is"):
    number: int
    note: str


class Done(Struct, tag="done", tag_field="is"):
    """The result is the text that goes with it; or (`goes_on`) what the run goes on as."""

    number: int
    note: str | None
    goes_on: bool = False


class Raised(Struct, tag="raised", tag_field="is"):
    """`fields` are what makes an exception of `kind` again; all others are told by their texts."""

    number: int
    kind: Kind
    fields: list[Any]
    type: str
    module: str
    message: str
    text: str
    note: str | None


Message = Hello | Ask | Begun | Noted | Done | Raised
read_message = msgspec.json.Decoder(Message).decode


def frame(message: Message, text: str = "") -> bytes:
    """A message and its text as they go over the wire."""
    head, body = msgspec.json.encode(message), text.encode()
    return HEAD.pack(len(head), len(body)) + head + body


class Child:
    """One process: a thread that listens, and the main thread that runs what was asked."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel, self._process = channel, forks.tag
        self._sending = threading.Lock()
        self._inbox: SimpleQueue[tuple[Message, str]] = SimpleQueue()
        self._places = Places(None, None)

    def serve(self) -> None:
        """Until the parent goes away or kills us."""
        threading.Thread(target=self._listen, name="treadle-parent", daemon=True).start()
        while True:
            message, payload = self._inbox.get()
            if isinstance(message, Hello):
                self._settle_in(message)
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
        """A parent that closed its end is dead or done with us: end at once, also in the middle of a function."""
        try:
            stream = self._channel.makefile("rb")
            while (found := _read(stream)) is not None:
                self._inbox.put(found)
        finally:
            vanish()

    def _settle_in(self, hello: Hello) -> None:
        sys.path[:] = hello.path
        if hello.pythonpath is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = hello.pythonpath
        self._places = Places(hello.main, hello.package)

    def _send(self, message: Message, text: str = "") -> None:
        if forks.tag is not self._process:
            return  # what the function forked shares the socket, but only this process was asked
        with self._sending:
            self._channel.sendall(frame(message, text))

    def _run(self, ask: Ask, payload: str) -> tuple[Done | Raised, str]:
        number, pace = ask.number, Pace()

        def noted() -> None:
            if pace.due():
                self._send(Noted(number, context.note or ""))

        context = Context(ask.record, ask.worker, noted)
        enter(context)
        try:
            signature, function = self._places.find(ask)
            args, kwargs = signature.decode_call(payload)
            result = forks.contained(function, *args, **kwargs)
            if isinstance(result, Continuation):
                following = next_of(result, signature.encode_result, defaults.MAX_RESULT)
                return Done(number, context.note, goes_on=True), encode_next(following).decode()
            text = signature.encode_result(result)
            if len(text) * 4 > defaults.MAX_RESULT and (size := len(text.encode())) > defaults.MAX_RESULT:
                raise TooLarge(f"the result of {ask.name}", size, defaults.MAX_RESULT)
        except BaseException as error:  # also SystemExit: a function that calls sys.exit has failed, not we
            return raised(error, context.note, number), ""
        return Done(number, context.note), text


class Pace:
    """A function may report a thousand times a second; the parent need not hear all of it."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self) -> bool:
        now = clock.monotonic()
        if now < self._next:
            return False
        self._next = now + NOTES_EVERY
        return True


class Places:
    """Where functions are found: by module and name, and the parent's script by its file."""

    def __init__(self, main: str | None, package: str | None) -> None:
        self._main, self._package = main, package
        self._known: dict[tuple[str, str, str], tuple[CallCodec, Any]] = {}

    def find(self, ask: Ask) -> tuple[CallCodec, Any]:
        """The function asked for and how its arguments are read. Raises BadTask, or what importing it raises."""
        key = ask.module, ask.qualname, ask.name
        if key not in self._known:
            self._known[key] = self._look(ask)
        return self._known[key]

    def _look(self, ask: Ask) -> tuple[CallCodec, Any]:
        module = self._script() if ask.module in MAINS else importlib.import_module(ask.module)
        found: Any = module
        for part in ask.qualname.split("."):
            found = getattr(found, part, None)
        for each in (*_wrapped(found), *vars(module).values()):
            # Not isinstance, which reads `__class__`: a lazy object such as Django's settings may raise there.
            if issubclass(type(each), Task) and each.name == ask.name:
                return each.signature, each.function
        if not callable(found):
            raise BadTask(f"{ask.name}: there is no {ask.qualname} at the top of {ask.module} to run in a process")
        if ask.codec:
            raise BadTask(
                f"{ask.name}: {ask.module}.{ask.qualname} is not that task, so its codec is not known in the process; "
                "make it a task in the module that defines it"
            )
        return CallCodec(ask.name, found), found

    def _script(self) -> types.ModuleType:
        """The parent's script under another name, so that what it does as `__main__` does not happen again."""
        if "__mp_main__" in sys.modules:
            return sys.modules["__mp_main__"]
        if self._main is None:
            raise BadTask('kind="process" needs a function from a file; one typed at a prompt cannot be found again')
        module = types.ModuleType("__mp_main__")
        module.__file__, module.__package__ = self._main, self._package
        if self._package:
            importlib.import_module(self._package)
        sys.modules["__mp_main__"] = sys.modules["__main__"] = module
        try:
            code = compile(Path(self._main).read_bytes(), self._main, "exec", dont_inherit=True)
            exec(code, module.__dict__)
        except BaseException:
            del sys.modules["__mp_main__"]  # the next job shows the error again, not half a module
            raise
        return module


def _wrapped(found: Any) -> list[Any]:
    """What a decorated name stands for, from the outside in."""
    layers: list[Any] = []
    while found is not None and found not in layers and len(layers) < 100:
        layers.append(found)
        found = getattr(found, "__wrapped__", None)
    return layers


def raised(error: BaseException, note: str | None, number: int) -> Raised:
    """An exception as data."""
    kind: Kind = "other"
    fields: list[Any] = []
    if isinstance(error, Defer):
        kind, fields = "defer", [error.seconds, None if error.until is None else error.until.timestamp(), error.limit]
    elif isinstance(error, Abort):
        kind, fields = "abort", [judge.message_of(error), error.__cause__ is not None]
    elif isinstance(error, BadArgument):
        kind, fields = "argument", [error.task, error.parameter, error.problem, error.permanent]
    elif isinstance(error, BadResult):
        kind, fields = "result", [error.task, error.problem]
    elif isinstance(error, TooLarge):
        kind, fields = "large", [error.what, error.size, error.limit]
    message = judge.message_of(error).encode("utf-8", "replace").decode()[: defaults.MAX_ERROR]
    where, text = type(error).__module__, judge.text_of(error)
    return Raised(number, kind, fields, type(error).__qualname__, where, message, text, note)


def _read(stream: BinaryIO) -> tuple[Message, str] | None:
    """One frame; None at the end."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    length, more = HEAD.unpack(head)
    message, text = stream.read(length), stream.read(more)
    return (read_message(message), text.decode()) if len(message) == length and len(text) == more else None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed or replaced by the user's function
            stream.flush()


def vanish() -> None:
    """End now, with whatever the function has started."""
    if sys.platform != "win32" and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _channel() -> socket.socket:
    """The socket we were given as standard input; nobody else in this process or below it has it then."""
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    channel = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return channel


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _usual() -> None:
    """SIGTERM ends what the function forks: `Pool.terminate` sends it, and waits. One sent before this line counts."""
    with suppress(ValueError):  # forked by an interpreter within this one
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _unblock()


def main() -> None:
    channel = _channel()
    forks.renew()  # the worker makes jobs for the same run, in its middleware: our ids must differ
    # A service manager may signal the whole family. Only the worker decides when we end; handlers, not SIG_IGN,
    # because those are not inherited by what the function starts.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_usual)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # what was printed before a kill is seen
    with suppress(Exception):
        faulthandler.enable()
    Child(channel).serve()


if __name__ == "__main__":
    # The module as everybody imports it, not this copy: the user's script takes the name __main__ over.
    importlib.import_module("treadle.worker.executors.child").main()
