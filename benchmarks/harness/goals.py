"""The goals of the benchmark: each with the measured figure, the figure it is compared with, and whether it is reached.
Each goal states its computation in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.harness.keep import Results
from benchmarks.harness.systems import SYSTEMS, System

DRAIN: Final = "drain, jobs/s"
KEPT: Final = "drain with results, jobs/s"
BULK: Final = "enqueue in bulk, jobs/s"
TOGETHER: Final = "enqueue from 100 coroutines, jobs/s"
ONE: Final = "enqueue one at a time, jobs/s"
PICK: Final = "pick-up p99, ms"
CPU: Final = "CPU of the worker, s per 10,000 jobs"
SIXTEEN: Final = "drain at concurrency 16, jobs/s"
HOLD: Final = "longest hold of the loop, ms"
DEEP: Final = "drain of 100,000, jobs/s"
PROBE: Final = "claim 256 and settle the last 256, rows kept"


@dataclass(frozen=True)
class Verdict:
    """One row of the table. `figure` None: not measured; `against` None: an absolute goal."""

    what: str
    goal: str
    figure: float | None
    against: float | None
    needed: float  # the goal: a ratio, or the figure itself
    lower: bool = False  # whether lower is better
    whom: str = ""

    @property
    def ratio(self) -> float | None:
        if self.figure is None or (self.whom and not self.against):
            return None
        return self.figure / self.against if self.against else self.figure

    @property
    def reached(self) -> bool | None:
        ratio = self.ratio
        if ratio is None:
            return None
        return ratio <= self.needed if self.lower else ratio >= self.needed


@dataclass(frozen=True)
class Goal:
    """Treadle's figure on a storage, compared with another; `against` returns that figure and its owner."""

    what: str
    storage: str
    figure: str
    needed: float
    against: Callable[[Results], tuple[float | None, str]] | None = None
    says: str = ""
    lower: bool = False

    def judge(self, results: Results) -> Verdict:
        mine = results.median(f"treadle@{self.storage}", self.figure)
        other, whom = self.against(results) if self.against else (None, "")
        return Verdict(f"{self.what}, {self.storage}", self.says, mine, other, self.needed, self.lower, whom)


Against = Callable[[Results], tuple[float | None, str]]


def of(system: str, figure: str) -> Against:
    return lambda results: (results.median(system, figure), system)


def best(storages: Sequence[str], figure: str, lower: bool = False, only: Iterable[str] = ()) -> Against:
    """The best peer on these storages."""

    def look(results: Results) -> tuple[float | None, str]:
        peers = [it for it in SYSTEMS if not it.ours and it.storage in storages and (not only or it.peer in only)]
        found = [(value, it.name) for it in peers if (value := results.median(it.name, figure)) is not None]
        if not found:
            return None, f"a peer on {' or '.join(storages)}"
        return min(found) if lower else max(found)

    return look


def probe(storage: str, what: str) -> Against:
    return lambda results: (results.machine.get("probes", {}).get(storage, {}).get(what), "the raw loop")


def own(storage: str, figure: str) -> Against:
    return of(f"treadle@{storage}", figure)


def _goals() -> list[Goal]:
    pg, redis, aof = "postgres", "redis", "redis-aof"
    normal, full = "sqlite-normal", "sqlite-full"
    made = [
        Goal("drain", pg, DRAIN, 1.5, of("pgqueuer@postgres", DRAIN), ">= 1.5 x pgqueuer"),
        Goal("drain of 100,000", pg, DEEP, 3.0, of("pgqueuer@postgres", DEEP), ">= 3 x pgqueuer"),
        Goal("drain", pg, DRAIN, 8.0, of("oban@postgres", DRAIN), ">= 8 x oban"),
        Goal("drain, kept", pg, KEPT, 0.6, probe(pg, PROBE), ">= 60 % of a raw batched claim and settle"),
        Goal("drain", redis, DRAIN, 10.0, best([redis], DRAIN), ">= 10 x the best peer"),
        Goal("drain, kept", aof, KEPT, 8.0, best([aof], KEPT), ">= 8 x the best peer"),
        Goal("drain", normal, DRAIN, 4.0, of("huey@sqlite-off", DRAIN), ">= 4 x huey without fsync"),
        Goal("drain", full, DRAIN, 2.0, of("huey@sqlite-off", DRAIN), ">= 2 x huey without fsync"),
    ]
    made += [
        Goal("drain at concurrency 16", storage, SIXTEEN, 0.5, own(storage, DRAIN), ">= 50 % of 256")
        for storage in (pg, redis, normal)
    ]
    made += [
        Goal("drain at concurrency 16", full, SIXTEEN, 1.0, of("huey@sqlite-off", SIXTEEN), ">= huey without fsync"),
        Goal("bulk enqueue", pg, BULK, 1.4, of("pgqueuer@postgres", BULK), ">= 1.4 x pgqueuer"),
        Goal("bulk enqueue", redis, BULK, 7.0, best([redis], BULK), ">= 7 x the best peer"),
        Goal("bulk enqueue", normal, BULK, 120_000, says=">= 120,000/s"),
        Goal("bulk enqueue", full, BULK, 120_000, says=">= 120,000/s"),
        Goal("enqueue from 100 coroutines", redis, TOGETHER, 60_000, says=">= 60,000/s"),
        Goal("enqueue from 100 coroutines", normal, TOGETHER, 60_000, says=">= 60,000/s"),
        Goal("enqueue from 100 coroutines", pg, TOGETHER, 20_000, says=">= 20,000/s"),
        Goal("enqueue one at a time", redis, ONE, 1.0, of("saq@redis", ONE), ">= saq"),
        Goal("enqueue one at a time", pg, ONE, 1.0, of("pgqueuer@postgres", ONE), ">= pgqueuer"),
        Goal("enqueue one at a time", normal, ONE, 12_000, says=">= 12,000/s"),
        Goal("pick-up p99, ms", redis, PICK, 1.0, best([redis], PICK, lower=True), "<= the best peer", lower=True),
        Goal("pick-up p99, ms", pg, PICK, 1.0, best([pg], PICK, lower=True), "<= the best peer", lower=True),
        Goal("pick-up p99, ms", normal, PICK, 3.0, says="<= 3 ms", lower=True),
        Goal("pick-up p99, ms", full, PICK, 3.0, says="<= 3 ms", lower=True),
    ]
    for storage in (pg, redis, normal, full):
        made.append(Goal("worker CPU, s per 10,000", storage, f"drain: {CPU}", 0.15, says="<= 0.15 s", lower=True))
    for storage in (pg, redis, normal, full):
        name = f"drain with results: {CPU}"
        made.append(Goal("worker CPU, kept, s per 10,000", storage, name, 0.25, says="<= 0.25 s", lower=True))
    for feature in ("limits", "lanes", "results"):
        for storage in (pg, redis, normal):
            figure = f"drain with {feature}, jobs/s"
            made.append(Goal(f"with {feature}", storage, figure, 0.6, own(storage, DRAIN), ">= 60 % of plain"))
    for storage in (pg, redis, normal):
        million = "drain of 1,000,000, jobs/s"
        made.append(Goal("backlog of 1,000,000", storage, million, 0.85, own(storage, DRAIN), ">= 85 % of 20,000"))
    made.append(Goal("churn", pg, "churn: the end against the start", 0.85, says="no more than 15 % down"))
    for storage in (pg, redis, normal, full):
        made.append(Goal("longest hold of the loop, ms", storage, HOLD, 5.0, says="<= 5 ms", lower=True))
    return made


GOALS: Final = _goals()


def judged(results: Results) -> list[Verdict]:
    return [goal.judge(results) for goal in GOALS]


def count(verdicts: Sequence[Verdict]) -> str:
    known = [it for it in verdicts if it.reached is not None]
    return (
        f"{sum(bool(it.reached) for it in known)} of {len(known)} reached, {len(verdicts) - len(known)} not measured."
    )


def number(value: float | None) -> str:
    """As shown in tables: three digits are enough to compare."""
    if value is None:
        return "-"
    if abs(value) >= 1_000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def table(verdicts: Sequence[Verdict]) -> str:
    lines = ["| | goal | Treadle | against | ratio | |", "|---|---|---|---|---|---|"]
    for it in verdicts:
        whom = f"{number(it.against)} ({it.whom})" if it.whom else "-"
        ratio = "-" if it.ratio is None or not it.whom else f"{it.ratio:.2f}"
        word = {True: "reached", False: "**not reached**", None: "not measured"}[it.reached]
        lines.append(f"| {it.what} | {it.goal} | {number(it.figure)} | {whom} | {ratio} | {word} |")
    return "\n".join(lines)


def side_by_side(judged: dict[str, list[Verdict]]) -> str:
    """All goals, on each measured Python: the ratio, or the figure if there is no comparison."""
    lines = [f"| | goal | {' | '.join(f'Python {it}' for it in judged)} |", f"|---|---|{'---|' * len(judged)}"]
    for row in zip(*judged.values(), strict=True):
        cells = []
        for it in row:
            word = {True: "reached", False: "**not reached**", None: "not measured"}[it.reached]
            of = f"{it.ratio:.2f} x, " if it.whom and it.ratio is not None else ""
            cells.append(f"{of}{word}" if it.reached is None or of else f"{number(it.figure)}, {word}")
        lines.append(f"| {row[0].what} | {row[0].goal} | {' | '.join(cells)} |")
    lines.append(f"| all | | {' | '.join(count(verdicts) for verdicts in judged.values())} |")
    return "\n".join(lines)


PLAIN: Final = ("postgres", "redis", "sqlite-normal")
WANTED: Final[
    dict[str, tuple[Sequence[str], Sequence[str]]]
] = {  # cell -> storages for Treadle; peers, or all on a storage
    "core": ((*PLAIN, "sqlite-full"), ("pgqueuer@postgres", "oban@postgres", "redis", "huey@sqlite-off")),
    "pick-up": ((*PLAIN, "sqlite-full"), ("postgres", "redis")),
    "results": ((*PLAIN, "sqlite-full", "redis-aof"), ("redis-aof",)),
    "concurrency-16": ((*PLAIN, "sqlite-full"), ("huey@sqlite-off",)),
    "limits": (PLAIN, ()),
    "lanes": (PLAIN, ()),
    "hold": ((*PLAIN, "sqlite-full"), ()),
    "backlog-100000": (("postgres",), ("pgqueuer@postgres",)),
    "backlog-1000000": (PLAIN, ()),
    "churn": (("postgres",), ()),
}


def wanted(cell: str, system: System) -> bool:
    """Whether a goal needs this cell of this system."""
    ours, peers = WANTED.get(cell, ((), ()))
    return system.storage in ours if system.ours else system.name in peers or system.storage in peers
