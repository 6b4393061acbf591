"""The cost of `import treadle` over that of a bare interpreter, with bytecode and without.

    python3 dev.py bench import [--rounds 9] [--python /path/to/python ...]

Each figure is the least CPU time of several fresh processes, in ms, minus that of a process that imports nothing.
Without bytecode, Python compiles every module that it loads: `-B` on a copy of the package without `__pycache__`. The
goal is 100 ms for `import treadle` in both ways; `from treadle import App` also loads asyncio and msgspec, whose
cost is a line of its own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = {
    "import treadle": "import treadle",
    "from treadle import App": "from treadle import App",
    "from treadle import App, Worker": "from treadle import App, Worker",
    "import asyncio, msgspec": "import asyncio, msgspec",
    "treadle --version": "from treadle.cli.root import run; run(['--version'])",
}
SOURCE = Path(__file__).resolve().parents[1] / "src/treadle"


def cost(python: str, options: list[str], code: str, rounds: int) -> float:
    """The least CPU ms of a process that runs this code."""
    least = float("inf")
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([python, *options, "-c", code], check=True, stdout=subprocess.DEVNULL, env=environment)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        least = min(least, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return least * 1e3


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench import")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--python", nargs="*", default=[sys.executable], help="interpreters with our dependencies")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "treadle"
        shutil.copytree(SOURCE, bare, ignore=shutil.ignore_patterns("__pycache__"))
        for python in given.python:
            print(f"{python}: ms of CPU over a bare interpreter, least of {given.rounds}")
            print(f"  {'':<34}{'bytecode':>10}{'without':>10}")
            nothing = cost(python, [], "pass", given.rounds)
            for name, code in ROWS.items():
                with_ = cost(python, [], code, given.rounds + 1) - nothing  # the first round may write the bytecode
                first = f"import sys; sys.path.insert(0, {folder!r}); "
                without = cost(python, ["-B"], first + code, given.rounds) - nothing
                print(f"  {name:<34}{with_:>10.1f}{without:>10.1f}")
