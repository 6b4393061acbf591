"""Reports to the supervisor of `--reload` which source files a process has loaded.

The supervisor passes one pipe to all its processes. A message is a line with the mark of a file and its path: a write
of up to 4096 bytes is atomic, so that lines of several processes do not mix. The process that has
loaded the file reads the mark, so a save that comes before the supervisor has read the message is noticed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import site
import sys
import sysconfig
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from treadle.cli import app_loader
from treadle.cli.reload.watcher import Mark, marks

VARIABLE: Final = "TREADLE_RELOAD_FD"
PAUSE: Final = 0.5  # s between two reads of sys.modules, for imports inside functions
LONGEST: Final = 4_096  # bytes of a message


class Reporter:
    """Sends the path of each source file outside of the interpreter and its packages, once, while it is entered.

    At the end of the block it also sends the files that an exception came from, which are not in sys.modules.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._sent: set[str] = set()
        self._seen = 0  # modules at the last read
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._repeat, name="reload-report", daemon=True)
        self._folders = _installed()
        self._parent = os.getppid()

    def __enter__(self) -> Reporter:
        os.set_inheritable(self._descriptor, False)
        app_loader.when_loaded.append(self._send_loaded)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        app_loader.when_loaded.remove(self._send_loaded)
        self._send_loaded()
        if error is not None:
            self._send(_files_of(error))
        os.close(self._descriptor)

    def _repeat(self) -> None:
        while True:
            if len(sys.modules) != self._seen:
                self._seen = len(sys.modules)
                self._send_loaded()
            if self._ended.wait(PAUSE):
                return
            if os.getppid() != self._parent:  # the supervisor was killed: stop like its other processes
                os.kill(os.getpid(), signal.SIGTERM)
                return

    def _send_loaded(self) -> None:
        self._send(_loaded())

    def _send(self, paths: Iterator[str]) -> None:
        for path in paths:
            if path in self._sent or path.startswith(self._folders):
                continue
            self._sent.add(path)
            for line in map(_message, marks([path]).items()):
                if len(line) <= LONGEST and b"\n" not in line[:-1]:
                    with contextlib.suppress(OSError):  # the supervisor has ended
                        os.write(self._descriptor, line)


def _message(item: tuple[str, Mark]) -> bytes:
    path, mark = item
    return b"%d %d %d %s\n" % (*mark, os.fsencode(path))


def read(line: bytes) -> tuple[str, Mark]:
    """The path and the mark of a message, without its line break."""
    inode, size, modified, path = line.split(b" ", 3)
    return os.fsdecode(path), (int(inode), int(size), int(modified))


def inherited() -> int | None:
    """The pipe to the supervisor. None at the second call, and in a process that `--reload` did not start."""
    text = os.environ.pop(VARIABLE, "")
    return int(text) if text.isdecimal() else None


@contextlib.contextmanager
def reported() -> Iterator[None]:
    """Send the loaded files of this block, if `--reload` started this process."""
    descriptor = inherited()
    with contextlib.nullcontext() if descriptor is None else Reporter(descriptor):
        yield


def _installed() -> tuple[str, ...]:
    """The folders of the standard library and of installed packages, which do not change during development."""
    folders = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {site.getusersitepackages(), *site.getsitepackages()}
    return tuple(folder + os.sep for folder in folders | set(map(os.path.realpath, folders)))


def _loaded() -> Iterator[str]:
    for module in tuple(sys.modules.values()):
        path = vars(module).get("__file__") if type(module) is type(sys) else None
        if isinstance(path, str) and path.endswith(".py"):
            yield os.path.abspath(path)


def _files_of(error: BaseException) -> Iterator[str]:
    """The files of the traceback, and of a syntax error, also of the exceptions that led to this one."""
    seen = set[int]()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        if isinstance(cause, SyntaxError) and cause.filename:
            yield os.path.abspath(cause.filename)
        tb = cause.__traceback__
        while tb is not None:
            if not tb.tb_frame.f_code.co_filename.startswith("<"):
                yield os.path.abspath(tb.tb_frame.f_code.co_filename)
            tb = tb.tb_next
        cause = cause.__cause__ or cause.__context__
