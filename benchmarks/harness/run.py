"""`python3 dev.py bench`: measures Treadle and its peers side by side, and writes docs/benchmarks.md.

    python3 dev.py bench --quick                       all systems, the core measures, about a quarter of an hour
    python3 dev.py bench --goals                       the measures for the table of goals, in fifty minutes
    python3 dev.py bench --goals --python 3.13         the same on another Python, for all systems
    python3 dev.py bench                               all systems, all measures: hours, on a quiet machine
    python3 dev.py bench --peers treadle pgqueuer --storages postgres --measures core backlog-100000
    python3 dev.py bench --resume                      measures only what is missing or failed
    python3 dev.py bench --report                      only writes the page again, from the kept figures

Systems take turns in each round. Results are kept in .bench-cache; Ctrl-C loses only the cell that is running.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import environments, page, probes, procs
from benchmarks.harness.cells import CELLS, FULL, GOALS, QUICK, TINY, Cell, Size, Work
from benchmarks.harness.environments import CACHE, OURS, ROOT, Interpreter, Unavailable
from benchmarks.harness.goals import wanted
from benchmarks.harness.keep import Results
from benchmarks.harness.places import Places
from benchmarks.harness.session import CellFailed, about
from benchmarks.harness.systems import STORAGES, NoSuch, System, chosen

SIZES: Final = {"quick": QUICK, "goals": GOALS, "full": FULL, "tiny": TINY}
ROUNDS: Final = {"quick": 2, "goals": 3, "full": 3, "tiny": 1}
ONCE: Final = ("churn", "backlog-1000000")  # one round in a run for the goals: they take long, and vary little
Step = tuple[int, Cell, System]  # round, measure, system


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="dev.py bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", default=[], metavar="NAME", help="or NAME@STORAGE; default: all")
    parser.add_argument("--storages", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(STORAGES)}")
    names = [*CELLS, "probes"]
    parser.add_argument(
        "--measures", nargs="+", default=[], choices=names, metavar="NAME", help=f"of {', '.join(names)}"
    )
    parser.add_argument(
        "--python",
        default="",
        metavar="PATH",
        help="Python for all Python systems, or its version, such as 3.13; default: the running one",
    )
    parser.add_argument("--rounds", type=int, help="how often each cell is measured; default: 3, quick 2")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="size", action="store_const", const="quick", default="full", help="core measures")
    size.add_argument(
        "--goals",
        dest="size",
        action="store_const",
        const="goals",
        help="the cells that the goals need, of Treadle and of the peers compared with it",
    )
    size.add_argument(
        "--tiny", dest="size", action="store_const", const="tiny", help="a rehearsal; its figures mean nothing"
    )
    parser.add_argument("--resume", action="store_true", help="leave out what was measured before")
    parser.add_argument("--fresh", action="store_true", help="forget what was measured before")
    parser.add_argument("--report", action="store_true", help="measure nothing, only write the page")
    parser.add_argument("--churn", type=float, metavar="MINUTES", help="default: 5, for the goals 15")
    parser.add_argument("--page", type=Path, help="default: docs/benchmarks.md; with --tiny: next to its results")
    args = parser.parse_args(words)
    if args.rounds is not None and args.rounds < 1:
        parser.error(f"--rounds: found {args.rounds}, expected 1 or more")
    return args


def plan(systems: Sequence[System], measures: Sequence[str], rounds: int, size: str) -> list[Step]:
    """Round by round, measure by measure, with the systems in turn: changes on the machine affect all of them."""
    named = [CELLS[name] for name in measures if name in CELLS]
    steps = []
    for turn in range(1, rounds + 1):
        for cell in named or CELLS.values():
            for system in systems:
                if not named and not _asked(cell, system, size):
                    continue
                if size == "goals" and turn > 1 and cell.name in ONCE:
                    continue
                if not cell.fits(system, SIZES[size]):
                    continue
                if cell.name == "hold" and not system.ours:
                    continue
                if cell.name == "churn" and not named and (turn > 1 or not system.ours):
                    continue  # it takes long, and goals need only Treadle's; if named, it has as many rounds as others
                steps.append((turn, cell, system))
    return steps


def _asked(cell: Cell, system: System, size: str) -> bool:
    """Whether a run of this size measures it by default."""
    if size == "goals":
        return wanted(cell.name, system)
    return size == "full" or _quick(cell, system)


def _quick(cell: Cell, system: System) -> bool:
    if cell.name == "concurrency-16" and system.name == "huey@sqlite-off":
        return True  # a goal compares the two
    goal = system.ours and system.storage in ("postgres", "redis", "sqlite-normal")
    return system.quick and (
        cell.quick == "all" or (cell.quick == "ours" and system.ours) or (cell.quick == "goals" and goal)
    )


class Progress:
    """The current cell, and an estimate of the remaining time from each cell's latest duration."""

    def __init__(self, steps: Sequence[Step], results: Results) -> None:
        self.steps, self.results, self.begun = steps, results, time.monotonic()

    def guess(self, at: int) -> float:
        known = ((self.results.took(system.name, cell.name), cell.guess) for _, cell, system in self.steps[at:])
        return sum(guess if took is None else took for took, guess in known)

    def say(self, at: int) -> None:
        turn, cell, system = self.steps[at]
        rest = self.guess(at)
        left = f"{rest / 60:.0f} min" if rest > 90 else f"{rest:.0f} s"
        print(
            f"[{at + 1}/{len(self.steps)}, about {left} left] round {turn}: {cell.name} of {system.name}",
            end=" ",
            file=sys.stderr,
            flush=True,
        )


def commit() -> str:
    """The measured commit of Treadle, with "+" if the checkout has changes."""
    said = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return said.stdout.strip() or "unknown"


def machine(size: str, python: str) -> dict[str, Any]:
    from benchmarks.harness import places

    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return {
        "cores": os.cpu_count(),
        "model": model,
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": python,
        "size": size,
        "disk": places.filesystem(),
    }


@dataclass
class Floor:
    """The servers and loops without a library, measured in every round: they vary as much as everything else."""

    results: Results
    places: Places
    storages: Sequence[str]
    size: str
    base: Interpreter

    def measure(self, turn: int) -> None:
        print(f"round {turn}: the floor, raw servers and loops", file=sys.stderr, flush=True)
        rounds = self.results.machine.setdefault("floor", {})
        found = probes.measured(self.places, self.storages, self.size, environments.python("", self.base))
        rounds[str(turn)] = rounds.get(str(turn), {}) | found  # keeps earlier figures of other storages
        self.results.machine["probes"] = probes.medians(list(rounds.values()))
        self.results.save()


class Runner:
    """Measures the steps one after the other. A failed cell is recorded, and the run continues."""

    def __init__(self, results: Results, size: Size, places: Places, base: Interpreter) -> None:
        self.results, self.size, self.places, self.base = results, size, places, base
        self._pythons: dict[str, str] = {}
        self._known: dict[str, dict[str, Any] | str] = {}  # system -> its description, or why it cannot run

    def about(self, system: System) -> dict[str, Any]:
        """The description of a system. Raises CellFailed; a second call raises it at once."""
        if system.name not in self._known:
            try:
                if system.environment not in self._pythons:
                    self._pythons[system.environment] = environments.python(system.environment, self.base)
                found = about(system, self._pythons[system.environment], self.places.of(system.storage).url)
                self._known[system.name] = found
                self.results.about[system.name] = found
            except (CellFailed, Unavailable, subprocess.TimeoutExpired) as error:
                self._known[system.name] = str(error)
        known = self._known[system.name]
        if isinstance(known, str):
            raise CellFailed(known)
        return known

    def measure(self, cell: Cell, system: System) -> dict[str, Any]:
        begun = time.monotonic()
        kept: dict[str, Any] = {"at": f"{datetime.now(UTC):%Y-%m-%d %H:%M}", "commit": commit() if system.ours else ""}
        try:
            said = self.about(system)
            if cell.needs and cell.needs not in said["can"]:
                return kept | {"absent": True, "took": 0.0}
            place = self.places.of(system.storage)
            work = Work(system, place, self._pythons[system.environment], said, self.size)
            with procs.Others() as others:
                figures = cell.measure(work)
            kept |= {"figures": figures} if figures else {"absent": True}
            kept["others"] = round(others.cores, 2)
        except CellFailed as error:
            kept["error"] = " ".join(str(error).split())
        except Exception as error:  # one cell must not end a run of hours
            kept["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return kept | {"took": round(time.monotonic() - begun, 1)}

    def run(self, steps: Sequence[Step], floor: Floor | None) -> None:
        progress = Progress(steps, self.results)
        begun = 0
        for at, (turn, cell, system) in enumerate(steps):
            if floor and turn != begun:
                floor.measure(turn)
            begun = turn
            progress.say(at)
            kept = self.measure(cell, system)
            self.results.put(system.name, cell.name, turn, kept)
            print(_outcome(kept), file=sys.stderr, flush=True)


def _outcome(kept: dict[str, Any]) -> str:
    if "error" in kept:
        return f"FAILED: {kept['error'][:200]}"
    if "absent" in kept:
        return "-"
    name, value = next(
        ((n, v) for n, v in kept["figures"].items() if "drain" in n), next(iter(kept["figures"].items()))
    )
    return f"{name} {value:,.4g} ({kept['took']:.0f} s)"


def measured(args: argparse.Namespace, results: Results, base: Interpreter) -> None:
    systems = [
        it for it in chosen(args.peers, args.storages) if args.size in ("full", "goals") or it.quick or args.peers
    ]
    rounds = args.rounds or ROUNDS[args.size]
    steps = plan(systems, args.measures, rounds, args.size)
    only_floor = args.measures == ["probes"]
    if only_floor:
        steps = []
    if args.resume:
        steps = [step for step in steps if not results.has(step[2].name, step[1].name, step[0])]
    results.machine |= machine(args.size, base.version)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: the servers end too
    with Places() as places:
        floor = None
        if "probes" in args.measures or not (args.peers or args.measures):
            floor = Floor(results, places, args.storages or STORAGES, args.size, base)
            for turn in range(1, rounds + 1) if only_floor else ():
                floor.measure(turn)
        size = SIZES[args.size] if args.churn is None else replace(SIZES[args.size], churn=60 * args.churn)
        Runner(results, size, places, base).run(steps, floor)
        results.machine["places"] = {**results.machine.get("places", {}), **places.says()}
        results.save()


def main(words: Sequence[str]) -> int:
    args = parse(words)
    try:
        base = environments.named(args.python) if args.python else OURS
        path = CACHE / f"{args.size}-{base.minor}.json"
        if args.fresh:
            path.unlink(missing_ok=True)
        results = Results(path)
        if not args.report:
            measured(args, results, base)
    except (NoSuch, Unavailable) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; what was measured is kept, `--resume` goes on", file=sys.stderr)
        return 130
    target = args.page or (ROOT / "docs/benchmarks.md" if args.size != "tiny" else CACHE / "tiny/benchmarks.md")
    others = [
        it for found in sorted(CACHE.glob(f"{args.size}-*.json")) if found != path and (it := Results(found)).machine
    ]
    print(page.write(results, target, others))
    print(f"-> {target}", file=sys.stderr)
    return 0
