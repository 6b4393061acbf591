"""The cost of enqueuing a Django task in `atomic`, against django-tasks-db on the same PostgreSQL.

    python3 dev.py bench django [--rounds 3] [--calls 500]

Each round runs both backends, one after the other, each in a process and an environment of its own: Django with the
pins of that environment. "transaction" is a transaction with one INSERT of the caller and one task, "without" the same
without the task, "of 100" one of 100 tasks in one transaction. Figures are medians in microseconds, the best round of
each. The goal: the task costs at most twice as much.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.harness import environments
from tests.servers.postgres import Postgres

PEER = "django-tasks-db"
GOAL = 2.0


def measure(side: str, url: str, calls: int) -> dict[str, float]:
    python = environments.python("" if side == "treadle" else PEER)
    program = str(Path(__file__).with_name("django_side.py"))
    environment = {**os.environ, "PYTHONPATH": ""}
    ran = subprocess.run(
        [python, program, side, url, str(calls)], capture_output=True, text=True, check=False, env=environment
    )
    if ran.returncode:
        sys.exit(f"{side}: {ran.stderr.strip()[-1500:]}")
    found: dict[str, float] = json.loads(ran.stdout.strip().rsplit("\n", 1)[-1])
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="dev.py bench django", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=500)
    args = parser.parse_args(words)
    best: dict[str, dict[str, float]] = {}
    with Postgres() as server:
        for number in range(args.rounds):
            for side in ("treadle", PEER):
                found = measure(side, server.url, args.calls)
                print(f"{number + 1} {side:<16}", {name: round(value) for name, value in found.items()}, flush=True)
                known = best.setdefault(side, found)
                best[side] = {name: min(known[name], value) for name, value in found.items()}
    ratios = {}
    for name in ("transaction", "of 100"):
        costs = [
            best[side][name] - (best[side]["without"] if name == "transaction" else 0) for side in ("treadle", PEER)
        ]
        ratios[name] = costs[0] / costs[1]
        print(f"{name:<12} treadle {costs[0]:6.0f} us, {PEER} {costs[1]:6.0f} us for the task: x {ratios[name]:.2f}")
    return 0 if max(ratios.values()) <= GOAL else 1
