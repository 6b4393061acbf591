"""Runs a module in a child process with bounds.

The child process protects the runner from modules that exhaust memory, and from faults of the engine. The module has
access to stdin, stdout and stderr, and to no files, environment, network or arguments.
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

from treadle.core.errors import UNREADABLE, StorageError

KILL_AFTER: Final = 2.0  # s beyond the wall bound after which a child is killed


class Bounds(Struct, frozen=True, kw_only=True):
    """The bounds of one run.

    wall      seconds from start to end, including compilation
    memory    bytes of the module's own memory
    output    bytes of stdout, and of stderr
    module    bytes of the module
    input     bytes of its input
    compiler  bytes of memory for compiling the module, and for the engine besides the module's memory; Linux only
    """

    wall: float = 60.0
    memory: int = 256 * 2**20
    output: int = 128 * 2**20
    module: int = 64 * 2**20
    input: int = 256 * 2**20
    compiler: int = 512 * 2**20


class ModuleReport(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a run.

    exit_code  the exit code of the module, 0 if it just returned; None: it did not exit
    trap       why the engine stopped it: unreachable code, out of bounds, exceeded bounds, an invalid module
    timed_out  whether it exceeded its time
    """

    exit_code: int | None = None
    trap: str | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        return self.exit_code == 0 and self.trap is None and not self.timed_out


class Order(Struct, frozen=True):
    """The input of the child process, on its stdin."""

    module: str
    stdin: str
    stdout: str
    stderr: str
    bounds: Bounds


async def run_module(module: Path, stdin: Path, folder: Path, bounds: Bounds) -> ModuleReport:
    """Run a module. Its output is in `folder`/stdout and `folder`/stderr afterwards, even if the run fails.

    If this is cancelled, the child is killed. Raises StorageError if no process can be started.
    """
    stdout, stderr = folder / "stdout", folder / "stderr"
    for file in (stdout, stderr):
        file.write_bytes(b"")
    order = Order(str(module), str(stdin), str(stdout), str(stderr), bounds)
    try:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "treadle.contrib.wasi.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            cwd=folder,
            start_new_session=True,
            env={"PATH": os.defpath},
        )
    except OSError as error:
        raise StorageError(f"could not start a process for a module: {error}") from error
    try:
        async with asyncio.timeout(bounds.wall + KILL_AFTER):
            output, _ = await child.communicate(msgspec.json.encode(order))
    except TimeoutError:
        return ModuleReport(timed_out=True)
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    return _judged(child.returncode or 0, output, (stdout, stderr), bounds)


def _judged(code: int, output: bytes, outputs: tuple[Path, ...], bounds: Bounds) -> ModuleReport:
    try:
        report = msgspec.json.decode(output, type=ModuleReport)
    except UNREADABLE:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        report = ModuleReport(trap=f"its process died ({name}), often because it ran out of memory")
    if any(file.stat().st_size >= bounds.output for file in outputs):
        return ModuleReport(trap=f"it wrote more than {bounds.output:,} bytes", exit_code=report.exit_code)
    return report
