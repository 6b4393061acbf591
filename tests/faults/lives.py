"""Runs programs of `tests/faults/programs`, each in a process that is killed and in one that runs it to its end.

The driver imports Treadle once and forks each process: that takes 0.05 s of CPU in place of 0.7 s.

The part of a program above its line `# ---` is what a user writes. As a task in a thread it runs without its `async`
and `await`. Below that line stands how it is started, and what is right:

scenario   starts the program and returns its result. After a kill it is called again
LINES      the ledger of a run without a kill
RESULT     the result, if it is not None
IN_FLIGHT  how many effects may be in progress at a time; these may be repeated. If it is 1, the order is fixed
right      in place of these: `right(effects, result, line)` raises AssertionError if a run is wrong. 0: none was killed
KINDS      "async" and "thread", or one of them; STORAGES likewise
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from treadle import App, JobNotDone, Worker

PROGRAMS = Path(__file__).with_name("programs")
AT_ONCE = 5  # more lives at a time are short of CPU: a worker that stalls for a lease repeats effects too


class Life(NamedTuple):
    """One program on one storage. `kill_at` is the number of a line of its ledger; 0: it is not killed."""

    program: str
    kind: str
    url: str
    folder: str
    kill_at: int


def source(program: str, kind: str) -> str:
    """The text of the program, as a task of this kind."""
    text = (PROGRAMS / f"{program}.py").read_text()
    if kind == "async":
        return text
    user, line, rest = text.partition("\n# ---")
    user = re.sub(r"\b(async|await) ", "", user)
    return re.sub(r"(\n +here\b.* = current\(\))", r"\1.sync", user) + line + rest


def load(program: str, kind: str = "async") -> ModuleType:
    """A new module of this program. Its app has the storage that TREADLE_URL names."""
    module = ModuleType(f"{program}_program")
    module.__file__ = str(PROGRAMS / f"{program}.py")
    sys.modules[module.__name__] = module  # where annotations are resolved
    exec(compile(source(program, kind), module.__file__, "exec"), module.__dict__)
    return module


async def run(module: Any) -> Any:
    """Run a worker, and the program's scenario with it."""
    async with Worker(module.app, lease=3, poll=0.05):
        try:
            return await module.scenario()
        except JobNotDone as error:
            return type(error).__name__


def process(life: Life, number: int) -> int:
    """Fork a process that runs the program, and wait for its end. Returns its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        kill_at = life.kill_at if number == 1 else 0
        os.environ.update(TREADLE_URL=life.url, LEDGER=f"{life.folder}/ledger", KILL_AT=str(kill_at), LIFE=str(number))
        ended = asyncio.run(run(load(life.program, life.kind)))
        Path(life.folder, "result").write_text(json.dumps(ended))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def live(life: Life) -> int:
    """Run the program to its end. Returns 0, or 1 if something went another way."""
    code = process(life, 1)
    if life.kill_at:
        if code != -signal.SIGKILL:
            print(f"{life}: expected to be killed, ended with {code}", file=sys.stderr)
            return 1
        code = process(life, 2)
    return int(code != 0)


def main() -> int:
    """Run the lives of standard input, some at a time."""
    lives = [Life(*fields) for fields in json.load(sys.stdin)]
    os.environ["TREADLE_URL"] = lives[0].url
    App(lives[0].url)  # imports the storage
    for program in {life.program for life in lives}:
        load(program)  # imports what it imports, as some frameworks take a second of CPU
    running, failed = 0, False
    for life in lives:
        if running == AT_ONCE:
            failed |= os.wait()[1] != 0
            running -= 1
        running += 1
        if not os.fork():
            os._exit(live(life))
    while running:
        failed |= os.wait()[1] != 0
        running -= 1
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
