"""The cost of Treadle's own engine, without peers: every measure on every embedded storage, interleaved (A B A B), each
in its own process. Gives the figures for a change on the hot path within a minute.

    python3 dev.py bench engine [--storages ...] [--jobs N] [--rounds R] [--measures ...] [--write docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import treadle
from benchmarks import measures
from benchmarks.measures import Figures, Setting

STORAGES = {
    "memory": "memory://",
    "sqlite normal": "sqlite:///{dir}/bench.db?synchronous=normal",
    "sqlite full": "sqlite:///{dir}/bench.db",
}

MEASURES = {
    "bulk": measures.bulk_enqueue,
    "coroutines": measures.concurrent_enqueue,
    "single": measures.single_enqueue,
    "drain": measures.drain,
    "drain16": measures.drain,
    "nap": measures.drain,
    "roundtrip": measures.round_trip,
    "pickup": measures.pick_up_same,
    "pickup-other": measures.pick_up_other,
    "hold": measures.loop_hold,
    "memory": measures.flat_memory,
}


def measure_once(name: str, url: str, jobs: int) -> Figures:
    """Run one measure on an empty storage, in this process."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(url.replace("{dir}", folder), jobs, 16 if name == "drain16" else 256)
        if name == "nap":
            return asyncio.run(measures.drain(setting, "nap", "drain of 5 ms jobs"))
        return asyncio.run(MEASURES[name](setting))


def in_child(name: str, url: str, jobs: int) -> Figures:
    """Run it in its own process, so that no measure inherits memory from another."""
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", "engine", "--child", name, url, str(jobs)],
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.stderr.write(ran.stderr)
        raise SystemExit(f"{name} on {url} failed")
    figures: Figures = json.loads(ran.stdout.splitlines()[-1])
    return figures


def table(results: dict[str, dict[str, list[float]]]) -> str:
    """Median and range (lowest-highest) per figure and storage."""
    rows = list(dict.fromkeys(row for figures in results.values() for row in figures))
    lines = [f"| | {' | '.join(results)} |", f"|---|{'---|' * len(results)}"]
    for row in rows:
        cells = []
        for figures in results.values():
            found = figures.get(row)
            if not found:
                cells.append("-")
                continue
            digits = 0 if statistics.median(found) >= 100 else 2
            spread = f" ({min(found):,.{digits}f}-{max(found):,.{digits}f})" if len(found) > 1 else ""
            cells.append(f"{statistics.median(found):,.{digits}f}{spread}")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def machine() -> str:
    return (
        f"{datetime.now(UTC):%d %B %Y}, Treadle {treadle.__version__}, CPython {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores ({platform.machine()}, {platform.system()})"
    )


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench engine", description=__doc__)
    parser.add_argument("--storages", nargs="+", default=list(STORAGES), choices=list(STORAGES))
    parser.add_argument(
        "--measures", nargs="+", default=[name for name in MEASURES if name != "memory"], choices=list(MEASURES)
    )
    parser.add_argument("--jobs", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", type=Path, help="a Markdown file whose part between the marks is replaced")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    if args.child:
        name, url, jobs = args.child
        print(json.dumps(measure_once(name, url, int(jobs))))
        return
    results: dict[str, dict[str, list[float]]] = {storage: {} for storage in args.storages}
    for turn in range(args.rounds):
        for name in args.measures:
            for storage in args.storages:
                print(f"round {turn + 1}/{args.rounds}: {name} on {storage}", file=sys.stderr, flush=True)
                for row, figure in in_child(name, STORAGES[storage], args.jobs).items():
                    results[storage].setdefault(row, []).append(figure)
    text = f"{machine()}; {args.jobs:,} jobs, {args.rounds} rounds: median (lowest-highest).\n\n{table(results)}\n"
    print(text)
    if args.write:
        page = args.write.read_text()
        start, end = "<!-- measured -->\n", "<!-- /measured -->"
        head, rest = page.split(start, 1)
        args.write.write_text(f"{head}{start}\n{text}\n{end}{rest.split(end, 1)[1]}")
