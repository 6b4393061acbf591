"""Delivers a delayed job to a new process: the payload on stdin; exit code 0 is success, any other one a failure.

The process leads a process group. The whole group is killed before the job is settled, so no two runs overlap.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from treadle.contrib.delayed.delivery_item import DeliveryFailed, DeliveryItem, delivery_item
from treadle.core.errors import BadOption

KEPT: Final = 65_536  # last bytes of stdout that become the job's result
SHOWN: Final = 4_000  # last bytes of stderr in the error of a failure
GRACE: Final = 2.0  # s from SIGTERM to SIGKILL
# Variables that contain addresses and credentials of Treadle and its drivers.
CREDENTIALS: Final = re.compile(
    r"(TREADLE|REDIS|AWS|NATS|SERVAL)_.*|PG[A-Z]+|DATABASE_URL", re.DOTALL | re.IGNORECASE
)  # a program of any language reads its variables in any case
LINGER: Final = 1.0  # s for the pipes to close after the process has ended

SHELL: Final = "/bin/sh"
# Becomes the program when the worker writes an empty line. The worker does so once the guard runs; if it dies before,
# `read` fails and the program never starts. A shell passes on no variable whose name it could not use, such as `a.b`:
# with one of those, the program starts at once.
GATE: Final = 'read -r _ && exec "$@"'
NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
# Runs with each process. When the pipe from the worker closes, because it died, the guard kills the process group.
GUARD: Final = 'read -r _; kill -s KILL -- "-$1"'


class Command:
    """Runs one program for each job.

    The environment of the program contains TREADLE_JOB_ID, TREADLE_DUE_TIME and TREADLE_ATTEMPT, and no credentials of
    Treadle except the variables in `environment`. Other processes of its group are killed when it ends.
    """

    def __init__(self, words: Sequence[str], timeout: float = 30.0, environment: Sequence[str] = ()) -> None:
        if not words or shutil.which(words[0]) is None:
            raise BadOption("command", f"expected a command on the PATH, found {words[0] if words else ''!r}")
        self._words, self._timeout, self._environment = tuple(words), timeout, frozenset(environment)

    async def __call__(self, payload: Any) -> str:
        """Run the program -> the last part of its stdout. Raises DeliveryFailed."""
        item = delivery_item(payload)
        environment = self._environment_for(item)
        guarded = sys.platform != "win32" and os.access(SHELL, os.X_OK)
        gated = guarded and all(map(NAME.fullmatch, environment))
        gate = (SHELL, "-c", GATE, "gate") if gated else ()
        process = await self._start((*gate, *self._words), environment, PIPE)
        guard: Process | None = None
        try:
            if guarded:
                guard = await self._start((SHELL, "-c", GUARD, "guard", str(process.pid)), {}, DEVNULL)
            async with asyncio.timeout(self._timeout):
                output, errors = await _talk(process, b"\n" * gated + item.body)
        except TimeoutError:
            raise DeliveryFailed(f"{self._words[0]} was killed after {self._timeout:g} s") from None
        finally:
            await _end(process, guard)
        if process.returncode:
            raise DeliveryFailed(f"{self._words[0]} {_ended(process.returncode)}" + (errors and f": {errors}"))
        return output

    def _environment_for(self, item: DeliveryItem) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if name in self._environment or not CREDENTIALS.fullmatch(name)
        }
        return inherited | {"TREADLE_JOB_ID": item.name, "TREADLE_DUE_TIME": item.due, "TREADLE_ATTEMPT": item.attempt}

    async def _start(self, words: Sequence[str], environment: dict[str, str], output: int) -> Process:
        try:
            return await asyncio.create_subprocess_exec(
                *words, stdin=PIPE, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        except OSError as error:
            raise DeliveryFailed(f"{self._words[0]} could not be started: {error}") from None


async def _talk(process: Process, body: bytes) -> tuple[str, str]:
    """Write the input of a process, read its output, and wait until it ends."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    readers = [asyncio.create_task(_last(process.stdout, KEPT)), asyncio.create_task(_last(process.stderr, SHOWN))]
    try:
        with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):  # uvloop raises RuntimeError
            process.stdin.write(body)
            await process.stdin.drain()
            process.stdin.close()
        await process.wait()
        # Its child processes may hold the pipes open: kill them, the output is complete.
        _signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        await asyncio.wait(readers, timeout=LINGER)
        output, errors = (reader.result() if reader.done() else "" for reader in readers)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
    return output, errors


async def _last(stream: asyncio.StreamReader, most: int) -> str:
    kept = b""
    while piece := await stream.read(65_536):
        kept = (kept + piece)[-most:]
    return kept.decode("utf-8", "replace").strip()


async def _end(process: Process, guard: Process | None) -> None:
    """End the process: SIGTERM, then SIGKILL after 2 s. If this is cancelled, kill at once."""
    try:
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await process.wait()
    finally:
        if process.returncode is None:
            _signal(process, signal.SIGKILL if sys.platform != "win32" else signal.SIGTERM)
        if guard is not None and guard.returncode is None:
            guard.kill()
    await process.wait()
    if guard is not None:
        await guard.wait()


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if sys.platform == "win32":
            process.terminate()
        else:
            os.killpg(process.pid, number)


def _ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"
