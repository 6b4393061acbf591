"""`python3 dev.py bench fleet`: each feature on each storage, with several workers, compared with plain jobs.

    python3 dev.py bench fleet --quick                 sqlite, postgres and valkey, some of the cells
    python3 dev.py bench fleet                         all cells of these three: several hours
    python3 dev.py bench fleet --only tenants strict --url postgres --workers 1 4 --concurrency 100
    python3 dev.py bench fleet --only looks --rows 1000000
    python3 dev.py bench fleet --resume                measures only what is missing or failed
    python3 dev.py bench fleet --report                only judges and prints the kept figures

The figures are kept under .bench-cache as JSON. The exit code is 1 if a cell has a mark (under a third of plain, slower
with more workers, stuck or failed) without a reason in benchmarks/fleet/known.toml. A cell with a new mark is measured
again, and the mark counts only if every round has it. Ctrl-C loses only the cell that is being measured.
"""

from __future__ import annotations

import argparse
import platform
import signal
import statistics
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import treadle
from benchmarks.fleet import table
from benchmarks.fleet.calls import GROUPS, SCALED
from benchmarks.fleet.drain import KINDS, Effort, Shape, drained
from benchmarks.fleet.features import FEATURES
from benchmarks.fleet.judge import (
    Cell,
    Figure,
    Figures,
    Known,
    Misnamed,
    Verdict,
    fewest,
    judged,
    load,
    named,
    outlived,
)
from benchmarks.fleet.places import STORAGES, USUAL, empty
from benchmarks.harness import procs
from benchmarks.harness.environments import CACHE
from benchmarks.harness.keep import Results
from benchmarks.harness.marked_page import Section, Unmarked
from benchmarks.harness.places import Places
from benchmarks.harness.run import commit, machine
from treadle import Unsupported

FULL: Final = Effort(noops=8_000, naps=20, cut=20.0, acts=10_000, rows=1_000_000, seconds=3.0)
QUICK: Final = Effort(noops=4_000, naps=10, cut=10.0, acts=10_000, rows=100_000, seconds=1.5)
TINY: Final = Effort(noops=60, naps=1, cut=60.0, acts=40, rows=1_000, seconds=0.1)
EFFORTS: Final = {"full": FULL, "quick": QUICK, "tiny": TINY}
WORKERS: Final = {"full": [1, 2, 4], "quick": [1, 4], "tiny": [1]}
CONCURRENCY: Final = {"full": [20, 100], "quick": [20], "tiny": [20]}
FRESH: Final = 60.0  # seconds for which a figure of plain jobs is a valid baseline; then it is measured again
SECTION: Final = Section("<!-- fleet: written by `dev.py bench fleet` -->", "<!-- /fleet -->")
BUSY: Final = 0.3  # cores used by other programs, above which a machine counts as busy
ROWS: Final = {name: rows for name, (_, rows) in GROUPS.items()}  # rows of each group of calls
KNOWN: Final = Path(__file__).with_name("known.toml")
KEPT: Final = ("row", "kind", "workers", "concurrency")


class Step(NamedTuple):
    """A unit of measurement: one cell of a feature, or all rows of a group of calls."""

    storage: str
    name: str
    kind: str
    workers: int
    concurrency: int

    def rows(self) -> tuple[str, ...]:
        return ROWS.get(self.name, (self.name,))

    def cells(self) -> list[Cell]:
        return [Cell(self.storage, row, self.kind, self.workers, self.concurrency) for row in self.rows()]

    def key(self) -> str:
        return f"{self.name}/{self.kind}/{self.workers}/{self.concurrency}"


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev.py bench fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--url", nargs="+", default=list(USUAL), metavar="NAME", help=f"storages, of {', '.join(STORAGES)}")
    add("--only", nargs="+", default=[], metavar="NAME", help=f"of {', '.join([*FEATURES, *GROUPS])}")
    add("--kinds", nargs="+", default=[*KINDS, "calls"], metavar="NAME", help=f"of {', '.join(KINDS)}, calls")
    add("--workers", nargs="+", type=_count, metavar="N", help="worker processes. [default: 1 2 4; quick: 1 4]")
    add("--concurrency", nargs="+", type=_count, metavar="N", help="of a worker. [default: 20 100; quick: 20]")
    add("--jobs", type=_count, help="jobs that do nothing, for a cell. [default: 8000; quick: 4000]")
    add("--rows", type=_count, help="jobs stored while lists are polled. [default: 1000000; quick: 100000]")
    add("--rounds", type=_count, default=3, help="how often a cell with a new mark is measured. [default: 3]")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", default="full", help="a part of it")
    size.add_argument(
        "--tiny", dest="size", action="store_const", const="tiny", help="a rehearsal; figures mean nothing"
    )
    add("--resume", action="store_true", help="leave out what was measured")
    add("--report", action="store_true", help="measure nothing")
    add("--cpu", action="store_true", help="also print the CPU of servers and workers for a job")
    add("--known", type=Path, default=KNOWN, help="file of the known marks")
    add("--file", type=Path, help="where figures are kept. [default: .bench-cache/fleet-SIZE-PYTHON.json]")
    add("--write", type=Path, help="Markdown file whose part between the marks `fleet` is replaced")
    args = parser.parse_args(words)
    try:
        for option, names in (("url", STORAGES), ("only", [*FEATURES, *GROUPS]), ("kinds", [*KINDS, "calls"])):
            for name in getattr(args, option):
                named(f"--{option}", name, names)
    except Misnamed as error:
        parser.error(str(error))
    args.workers = args.workers or WORKERS[args.size]
    args.concurrency = args.concurrency or CONCURRENCY[args.size]
    return args


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"found {word!r}, expected a number of 1 or more")
    return int(word)


def plan(args: argparse.Namespace) -> list[Step]:
    """Storage by storage. The features of one fleet are consecutive, so that they share a baseline of plain jobs."""
    steps = []
    features = [name for name in FEATURES if not args.only or name in args.only]
    if features and "plain" not in features:
        features = ["plain", *features]
    for storage in args.url:
        for kind in (kind for kind in args.kinds if kind in KINDS):
            for concurrency in sorted(args.concurrency):
                for workers in sorted(args.workers):
                    steps += [Step(storage, name, kind, workers, concurrency) for name in features]
        groups = [name for name in GROUPS if not args.only or name in args.only] if "calls" in args.kinds else []
        for name in groups:
            numbers = sorted(args.workers) if name in SCALED else [1]
            steps += [Step(storage, name, "calls", workers, 0) for workers in numbers]
    return steps


class Runner:
    """Measures steps one after the other. A step that fails is kept with its error, and the run continues."""

    def __init__(self, results: Results, effort: Effort, places: Places) -> None:
        self.results, self.effort, self.places = results, effort, places
        self._plain: dict[Step, tuple[float, Figure]] = {}  # with the time of measurement

    def run(self, steps: Sequence[Step], turn: int) -> None:
        begun = time.monotonic()
        for at, step in enumerate(steps):
            left = (time.monotonic() - begun) / at * (len(steps) - at) / 60 if at else 0.0
            rest = f", about {left:.0f} min left" if at > 5 else ""
            print(f"[{at + 1}/{len(steps)}{rest}] {step.storage}: {step.key()}", end=" ", file=sys.stderr, flush=True)
            kept = self._kept(step)
            self.results.put(step.storage, step.key(), turn, kept)
            print(f"{_told(kept)} ({kept['took']:.1f} s)", file=sys.stderr, flush=True)

    def _kept(self, step: Step) -> dict[str, Any]:
        begun = time.monotonic()
        kept: dict[str, Any] = {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "commit": commit()}
        try:
            with procs.Others() as others:
                figures = self._measured(step)
            kept["rows"] = {row: asdict(figure) for row, figure in figures.items()}
            kept["others"] = round(others.cores, 2)
        except Unsupported as error:  # the storage lacks this feature
            kept |= {"absent": str(error), "rows": {}}
        except Exception as error:  # one cell must not end a run of hours
            kept["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return kept | {"took": round(time.monotonic() - begun, 1)}

    def _measured(self, step: Step) -> Mapping[str, Figure]:
        if step.kind == "calls":
            return GROUPS[step.name][0](lambda: self._empty(step.storage), step.workers, self.effort)
        if step.name == "plain":
            return {"plain": self._plain_of(step, again=True)}
        against = self._plain_of(step._replace(name=FEATURES[step.name].against))
        return {step.name: replace(self._drained(step), plain=against.rate)}

    def _plain_of(self, step: Step, again: bool = False) -> Figure:
        """The baseline, measured within the last minute: the faster of two drains. The first drain on a server that was
        idle can be down to half as fast, which would hide slow features.
        """
        at, figure = self._plain.get(step, (0.0, Figure()))
        if again or not figure.rate or time.monotonic() - at > FRESH:
            figure = max((self._drained(step) for _ in range(2)), key=lambda each: each.rate)
            self._plain[step] = time.monotonic(), figure
        return figure

    def _drained(self, step: Step) -> Figure:
        shape = Shape(step.kind, step.workers, step.concurrency)
        with self._empty(step.storage) as url:
            found = drained(url, FEATURES[step.name], shape, self.effort)
        return Figure(found.rate, None, found.left, round(found.quiet, 1), found.server, found.workers)

    def _empty(self, storage: str) -> AbstractContextManager[str]:
        return empty(self.places, storage)


def _told(kept: Mapping[str, Any]) -> str:
    if "error" in kept:
        return f"FAILED: {kept['error'][:200]}"
    if "absent" in kept:
        return "-"
    found = {row: Figure(**figure) for row, figure in kept["rows"].items()}
    return ", ".join((f"{row} " if len(found) > 1 else "") + table.figure([each]) for row, each in found.items())


def figures_of(results: Results, steps: Sequence[Step]) -> dict[Cell, list[Figure]]:
    """The rounds of every measured cell of these steps."""
    found: dict[Cell, list[Figure]] = {}
    kept: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in results.cells.values():
        kept.setdefault((cell["system"], cell["cell"]), []).append(cell)
    for step in steps:
        for turn in kept.get((step.storage, step.key()), []):
            if "absent" in turn:
                continue
            for cell in step.cells():
                figure = Figure(error=turn["error"]) if "error" in turn else Figure(**turn["rows"][cell.row])
                found.setdefault(cell, []).append(figure)
    return found


def again(steps: Sequence[Step], new: Sequence[Verdict], figures: Figures) -> list[Step]:
    """The steps of cells with a new mark, and of the cells with fewer workers that they were slower than."""
    marked = {each.cell for each in new} | {fewest(each.cell, figures) for each in new if each.mark == "more"}
    return [step for step in steps if marked.intersection(step.cells())]


def measured(args: argparse.Namespace, results: Results, known: Sequence[Known]) -> None:
    steps, effort = plan(args), EFFORTS[args.size]
    effort = replace(effort, noops=args.jobs or effort.noops, rows=args.rows or effort.rows)
    results.machine |= machine(args.size, platform.python_version()) | {
        "treadle": treadle.__version__,
        "date": f"{datetime.now(UTC):%d %B %Y}",
        "effort": asdict(effort),
    }
    if not args.resume:
        for step in steps:  # drop the earlier rounds of everything that is measured again
            for turn in range(1, 100):
                results.cells.pop(results.key(step.storage, step.key(), turn), None)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the servers end too
    with Places() as places:
        runner, todo = Runner(results, effort, places), list(steps)
        for turn in range(1, args.rounds + 1):
            try:
                runner.run([step for step in todo if not results.has(step.storage, step.key(), turn)], turn)
            finally:
                results.machine["places"] = {**results.machine.get("places", {}), **places.says()}
                results.save()
            figures = figures_of(results, steps)
            todo = again(steps, [each for each in judged(figures, known) if each.known is None], figures)


def report(args: argparse.Namespace, results: Results, known: Sequence[Known]) -> int:
    """Print the tables -> the exit code."""
    figures = figures_of(results, plan(args))
    if not figures:
        print(f"{results.path} has none of these cells; run it without --report", file=sys.stderr)
        return 2
    verdicts = judged(figures, known)
    text = f"{_about(results)}\n\n{table.page(figures, verdicts)}"
    print(text)
    if args.cpu:
        print(f"\n{table.costs(figures)}")
    for each in outlived(verdicts, figures, known):
        print(f"\nnot marked any more, remove it from {args.known.name} if it stays so: {each.mark}: {each.reason}")
    if args.write:
        SECTION.write(args.write, text)
    new = sum(each.known is None for each in verdicts)
    print(f"\n{len(figures)} cells, {len(verdicts) - new} known marks, {new} new -> {results.path}", file=sys.stderr)
    return 1 if new else 0


def _about(results: Results) -> str:
    machine = results.machine
    where = "; ".join(f"{name}: {says}" for name, says in machine.get("places", {}).items())
    others = [cell["others"] for cell in results.cells.values() if "others" in cell]
    busy = statistics.median(others) if others else 0.0
    warning = " So the ratios say little." if busy > BUSY else ""
    return textwrap.fill(
        f"{machine.get('date')}, Treadle {machine.get('treadle')}, CPython {machine.get('python')}, "
        f"{machine.get('cores')} cores ({machine.get('model') or machine.get('architecture')}), size "
        f"`{machine.get('size')}`. {where}. Other programs kept {busy:.1f} cores busy (median).{warning}",
        table.WIDTH,
    )


def main(words: Sequence[str]) -> int:
    args = parse(words)
    names = {"storages": list(STORAGES), "kinds": [*KINDS, "calls"]}
    names["rows"] = [*FEATURES, *(row for rows in ROWS.values() for row in rows)]
    minor = ".".join(platform.python_version_tuple()[:2])
    try:
        known = load(args.known, names)
        if args.write:
            SECTION.check(args.write)  # fail before measuring
        results = Results(args.file or CACHE / f"fleet-{args.size}-{minor}.json")
        if not args.report:
            measured(args, results, known)
    except (Misnamed, Unmarked) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; what was measured is kept, `--resume` goes on", file=sys.stderr)
        return 130
    return report(args, results, known)
