"""Programs that write each effect as a line of a ledger, and whose process is killed by SIGKILL behind one line.

A program is the text of a module. `HEAD` is put before it: it defines `app`, `effect`, `options` and `ends`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.fixtures import a_url

HEAD = '''
import asyncio, os, signal, sys
from treadle import Abort, App, JobNotDone, Retry, Worker, current

url, ledger, kill_at, *options = sys.argv[1:]
app = App(url)


def effect(text):
    """One line on disk. The process dies behind the one with this number."""
    with open(ledger, "a") as out:
        out.write(text + "\\n")
        out.flush()
        os.fsync(out.fileno())
    with open(ledger) as lines:
        if 0 < int(kill_at) <= len(lines.readlines()):  # two threads may have written a line each
            os.kill(os.getpid(), signal.SIGKILL)


async def ends(job):
    """Run a worker until the job has ended, and print its result, or the class of its error."""
    async with Worker(app, lease=1, poll=0.05):
        try:
            print(await (await app.enqueue(job)).result(timeout=60))
        except JobNotDone as error:
            print(type(error).__name__)
'''

kills = pytest.mark.skipif(sys.platform == "win32", reason="kills its worker by SIGKILL")


class Run(NamedTuple):
    """How a process of the program ended, what it printed, and all lines of the ledger."""

    code: int
    printed: str
    effects: list[str]


async def run(folder: Path, url: str, program: str, *options: str, kill_at: int = 0) -> Run:
    """Run the program once."""
    module, ledger = folder / "program.py", folder / "ledger"
    module.write_text(HEAD + program)
    ledger.touch()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *(str(module), url, str(ledger), str(kill_at), *options),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    out, _ = await child.communicate()
    return Run(child.returncode or 0, out.decode().strip(), ledger.read_text().splitlines())


async def killed_and_run_again(
    folder: Path, storage: str, program: str, line: int, options: tuple[str, ...] = (), then: tuple[str, ...] = ()
) -> Run:
    """Run the program, kill it behind this line of its ledger, and run it again to its end, with the options `then` if
    the world has changed meanwhile."""
    with a_url(storage, folder) as url:
        async with asyncio.timeout(100):
            assert (await run(folder, url, program, *options, kill_at=line)).code == -signal.SIGKILL
            ended = await run(folder, url, program, *(then or options))
    assert ended.code == 0
    return ended
