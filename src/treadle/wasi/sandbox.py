"""One run of a module: a child process, its bounds, and what came of it.

Without the process of its own a module that takes all memory, or a fault of the engine, would take the runner with it.
The module sees its input, its output and its error stream; no files, no environment, no network, no arguments.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from treadle.errors import UNREADABLE, StorageError

KILL_AFTER: Final = 2.0  # s beyond the wall bound after which a child that does not stop by itself is killed


class Bounds(Struct, frozen=True, kw_only=True):
    """What one run may use.

    wall      s from start to end, compiling included
    memory    bytes of the module's own memory
    output    bytes of stdout, and of stderr
    module    bytes of the module
    input     bytes of its input
    compiler  bytes of memory for compiling it, and for the engine beyond the module's own; Linux only
    """

    wall: float = 60.0
    memory: int = 256 * 2**20
    output: int = 128 * 2**20
    module: int = 64 * 2**20
    input: int = 256 * 2**20
    compiler: int = 512 * 2**20


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a run ended.

    exit_code  what the module said; 0 also when it just returned; None: it did not get to say
    trap       why the engine stopped it: unreachable, out of bounds, the bounds above, no module at all
    timed_out  its time was up
    """

    exit_code: int | None = None
    trap: str | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.trap is None and not self.timed_out


class Order(Struct, frozen=True):
    """What the child is told, on its stdin."""

    module: str
    stdin: str
    stdout: str
    stderr: str
    bounds: Bounds


async def run_module(module: Path, stdin: Path, folder: Path, bounds: Bounds) -> Report:
    """Run it; its output is in `folder`/stdout and `folder`/stderr afterwards, whatever became of it.

    Cancelled, the child is killed first. Raises StorageError if no process can be had.
    """
    stdout, stderr = folder / "stdout", folder / "stderr"
    for each in (stdout, stderr):
        each.write_bytes(b"")
    order = Order(str(module), str(stdin), str(stdout), str(stderr), bounds)
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "treadle.wasi.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
    except OSError as error:
        raise StorageError(f"no process for a module: {error}") from error
    try:
        async with asyncio.timeout(bounds.wall + KILL_AFTER):
            said, _ = await child.communicate(msgspec.json.encode(order))
    except TimeoutError:
        return Report(timed_out=True)
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return _judged(child.returncode or 0, said, (stdout, stderr), bounds)


def _judged(code: int, said: bytes, outputs: tuple[Path, ...], bounds: Bounds) -> Report:
    try:
        report = msgspec.json.decode(said, type=Report)
    except UNREADABLE:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        report = Report(trap=f"its process died ({name}): often out of memory")
    if any(each.stat().st_size >= bounds.output for each in outputs):
        return Report(trap=f"wrote more than {bounds.output:,} bytes", exit_code=report.exit_code)
    return report
