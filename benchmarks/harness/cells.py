"""The cells of the benchmark: a cell is one measure for one system in one round.

A cell returns {figure: number}. A figure that a system does not support is left out, and shows as "-" in the tables.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.harness.places import Place
from benchmarks.harness.session import ROOT, CellFailed, Drained, Session, opened
from benchmarks.harness.systems import System

Figures = dict[str, float]
RATE: Final = 50.0  # jobs/s in the pick-up measure


@dataclass(frozen=True)
class Size:
    """How much to measure in a quick run, a run for the goals, or a full run.

    seconds   of draining, by the known pace of the system
    sending   seconds for each way of enqueueing
    latency   jobs of the pick-up measure
    results   round trips
    most      most jobs of an ordinary drain
    least     fewest jobs of an ordinary drain
    limit     seconds for one cell
    fan       jobs of the fan-in
    deepest   most jobs of a backlog
    patience  seconds that a backlog may take, by the pace; slower systems are left out
    churn     seconds of enqueueing and draining; the rates of the second and the last tenth are compared. Ended jobs
              are kept for at least a minute, so only the 900 s of `GOALS` have pruning in the second tenth
    """

    seconds: float
    sending: float
    latency: int
    results: int
    most: int
    least: int
    limit: float
    fan: int
    deepest: int
    patience: float
    churn: float


QUICK: Final = Size(1.2, 0.5, 200, 100, 20_000, 300, 90.0, 1_000, 1_000_000, 10.0, 60.0)
GOALS: Final = Size(2.0, 1.0, 400, 100, 20_000, 500, 600.0, 1_000, 1_000_000, 240.0, 900.0)
FULL: Final = Size(5.0, 2.0, 400, 300, 20_000, 1_000, 600.0, 1_000, 1_000_000, 240.0, 300.0)
TINY: Final = Size(0.05, 0.1, 10, 5, 200, 60, 60.0, 20, 400, 1e9, 2.0)  # to test the harness, not to measure


@dataclass(frozen=True)
class Work:
    """The parameters of a cell to measure."""

    system: System
    place: Place
    python: str
    about: dict[str, Any]
    size: Size

    def jobs(self, share: float = 1.0) -> int:
        wanted = int(self.system.pace * self.size.seconds * share)
        return max(self.size.least, min(self.size.most, wanted))

    def session(self, expected: int, **ask: Any) -> Session:
        return Session(self.system, self.place, self.python, self.about, self.size.limit, expected, **ask)


def fill(session: Session, jobs: int) -> None:
    """Enqueue that many jobs in the fastest way available."""
    has = session.order("has")["has"]
    while session.sent < jobs:
        session.order("many" if "many" in has else "together", n=jobs - session.sent)
    if not session.worker_pids:
        session.filled()


def percentile(times: list[float], share: float) -> float:
    """The smallest value that at least this share of all values do not exceed."""
    ordered = sorted(times)
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * share // 1) - 1))]


def core(work: Work) -> Figures:
    """Enqueue in every way, drain, memory, bytes."""
    jobs, size = work.jobs(), work.size
    figures: Figures = {}
    with opened(work.session(3 * jobs)) as session:
        has = session.order("has")["has"]
        session.order("one", n=5)  # creates connections and loads scripts
        held, wrote = work.place.stored(), work.place.written(session.pids)
        for way, name in (
            ("one", "enqueue one at a time, jobs/s"),
            ("together", "enqueue from 100 coroutines, jobs/s"),
        ):
            sent = session.order(way, seconds=size.sending, n=jobs)
            figures[name] = _rate(sent)
        if "many" in has:
            rest = max(jobs - session.sent, jobs // 2, min(1_000, 5 * jobs))
            sent = session.order("many", seconds=4 * size.sending, n=rest)
            figures["enqueue in bulk, jobs/s"] = _rate(sent)
        session.filled()
        stored = session.sent - 5
        figures["stored, bytes a job"] = (work.place.stored() - held) / stored
        session.start_workers()
        drained = session.finish(session.sent)
        figures |= _drained(drained, "drain")
        figures["drained, jobs"] = drained.jobs
        figures["worker memory, MB"] = _memory(session)
        now = work.place.written(session.pids)
        if now is not None and wrote is not None:
            figures["written, bytes a job"] = (now - wrote) / stored
    return figures


def pick_up(work: Work) -> Figures:
    """The time from enqueue to start on an idle worker that has run jobs before."""
    size = work.size
    with opened(work.session(2 * size.latency)) as session:
        fill(session, size.latency)
        session.start_workers()
        session.finish(session.sent)
        session.quiet()
        session.order("steady", n=size.latency, every=1 / RATE)
        late = [(ran - sent) * 1e3 for ran, sent in session.finish(size.latency).marks if sent]
    return {"pick-up p50, ms": statistics.median(late), "pick-up p99, ms": percentile(late, 0.99)}


def _rate(sent: dict[str, Any]) -> float:
    return float(sent["n"]) / max(1e-6, sent["end"] - sent["begin"])


def _memory(session: Session) -> float:
    from benchmarks.harness import procs

    return procs.memory(session.worker_pids) / max(1, len(session.worker_pids))


def _drained(drained: Drained, name: str) -> Figures:
    figures = {f"{name}, jobs/s": drained.rate}
    if drained.worker_cpu is not None:
        figures[f"{name}: CPU of the worker, s per 10,000 jobs"] = drained.worker_cpu * 1e4
    if drained.server_cpu:
        figures[f"{name}: CPU of the server, s per 10,000 jobs"] = drained.server_cpu * 1e4
    return figures


def drain(
    name: str, share: float = 1.0, most: int | None = None, times: int = 1, **ask: Any
) -> Callable[[Work], Figures]:
    """A drain with other options, of more or fewer jobs than usual."""

    def measure(work: Work) -> Figures:
        jobs = times * work.jobs(share) if most is None else min(most, work.jobs(share))
        with opened(work.session(jobs, **ask)) as session:
            fill(session, jobs)
            session.start_workers()
            drained = session.finish(session.sent)
            return _drained(drained, name) | (_full(drained, name) if "processes" in ask else {})

    return measure


def _full(drained: Drained, name: str) -> Figures:
    """How many cores the workers and the server used, which shows the bottleneck."""
    if drained.worker_cpu is None:
        return {}
    figures = {f"{name}: cores the workers used": drained.worker_cpu * drained.rate}
    if drained.server_cpu:
        figures[f"{name}: cores the server used"] = drained.server_cpu * drained.rate
    return figures


def results(work: Work) -> Figures:
    """A drain with results stored, then the time from enqueue to result of single jobs."""
    jobs = work.jobs()
    with opened(work.session(jobs + work.size.results, feature="results")) as session:
        fill(session, jobs)
        session.start_workers()
        figures = _drained(session.finish(session.sent), "drain with results")
        if "result" in session.order("has")["has"]:
            session.quiet(0.3)
            took = session.order("result", n=work.size.results, seconds=3.0)["took"]
            figures["enqueue to result p50, ms"] = statistics.median(took) * 1e3
            figures["enqueue to result p99, ms"] = percentile(took, 0.99) * 1e3
    return figures


def both(work: Work) -> Figures:
    """Enqueue and drain concurrently: from the first enqueue to the last settle."""
    jobs = work.jobs()
    with opened(work.session(jobs + 1)) as session:
        session.start_workers()
        session.order("one", n=1)
        session.finish(1)
        session.quiet(0.3)
        begun, session.sent = time.monotonic(), 0
        fill(session, jobs)
        settled = session.finish(session.sent).settled
        return {"enqueue and drain together, jobs/s": session.sent / (settled - begun)}


def fan_in(work: Work) -> Figures:
    """Jobs and one that waits for all of them: from the call to the last settle, with an idle worker."""
    with opened(work.session(work.size.fan + 1, feature="fanin")) as session:
        session.start_workers()
        session.order("one", n=1)
        session.finish(1)
        session.quiet(0.3)
        if "fan" not in session.order("has")["has"]:
            return {}
        begun = time.monotonic()
        session.order("fan", n=work.size.fan)
        settled = session.finish(work.size.fan + 1).settled
        return {f"fan-in of {work.size.fan:,}, s": settled - begun}


def backlog(jobs: int) -> Callable[[Work], Figures]:
    def measure(work: Work) -> Figures:
        deep = min(jobs, work.size.deepest)
        with opened(work.session(deep)) as session:
            fill(session, deep)
            session.start_workers()
            drained = session.finish(session.sent)
            tenth = drained.marks[-max(2, deep // 10) :]
            return {
                f"drain of {jobs:,}, jobs/s": drained.rate,
                f"drain of {jobs:,}: the last tenth, jobs/s": len(tenth) / max(1e-6, tenth[-1][0] - tenth[0][0]),
            }

    return measure


def churn(work: Work) -> Figures:
    """Enqueue and drain for a long time, with at most 20,000 jobs queued: the rate at the end and at the start."""
    seconds, most = work.size.churn, 20_000
    expected = int(seconds * 5 * work.system.pace)  # room for marks; only the used part is stored
    with opened(work.session(expected)) as session:
        session.end += seconds
        session.start_workers()
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            session.left("churn")
            if session.sent - session.marks.look() < most:
                fill(session, session.sent + 2_000)
            else:
                time.sleep(0.005)
        ended = time.monotonic()
        tenth = seconds / 10
        early = session.marks.count(begun + tenth, begun + 2 * tenth)  # excludes the start of the worker
        late = session.marks.count(ended - tenth, ended)
    return {
        "churn: the second tenth, jobs/s": early / tenth,
        "churn: the last tenth, jobs/s": late / tenth,
        "churn: the end against the start": late / max(1, early),
    }


def hold(work: Work) -> Figures:
    """Only for Treadle: the longest time that the event loop was held while jobs drained."""
    if not work.system.ours:
        return {}
    work.place.reset()
    url = work.place.url
    if url.startswith("sqlite"):
        url += f"?synchronous={work.system.storage.removeprefix('sqlite-')}"
    ran = subprocess.run(
        [work.python, "-m", "benchmarks", "engine", "--child", "hold", url, str(work.jobs())],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=work.size.limit,
        check=False,
    )
    if ran.returncode:
        raise CellFailed(ran.stderr.strip()[-300:])
    found: Figures = json.loads(ran.stdout.splitlines()[-1])
    return found


@dataclass(frozen=True)
class Cell:
    """A measure, as `--measures` names it.

    needs  the feature that the system must have, otherwise the figure is "-"
    jobs   of a backlog; systems that would take too long are left out
    quick  in a quick run: "all", "ours", "goals" (Treadle where a goal needs it) or ""
    guess  seconds it takes, for the first estimate of the remaining time
    """

    name: str
    measure: Callable[[Work], Figures]
    quick: str = ""
    guess: float = 5.0
    needs: str = ""
    jobs: int = 0

    def fits(self, system: System, size: Size) -> bool:
        """Whether it would end in a reasonable time."""
        return min(self.jobs, size.deepest) / system.pace <= size.patience


def _cells() -> dict[str, Cell]:
    made = [
        Cell("core", core, "all", 6.0),
        Cell("pick-up", pick_up, "all", 8.0),
        Cell("results", results, "all", 5.0, "results"),
        Cell("concurrency-16", drain("drain at concurrency 16", concurrency=16), "ours", 4.0, "concurrency"),
        Cell("limits", drain("drain with limits", feature="limits"), "goals", 4.0, "limits"),
        Cell("lanes", drain("drain with lanes", feature="lanes"), "goals", 4.0, "lanes"),
        Cell("fan-in", fan_in, "goals", 5.0, "fanin"),
        Cell("hold", hold, "ours", 3.0),
        Cell("both", both, "", 5.0),
        Cell("concurrency-64", drain("drain at concurrency 64", concurrency=64), "", 4.0, "concurrency"),
        Cell("concurrency-256", drain("drain at concurrency 256", concurrency=256), "", 4.0, "concurrency"),
        Cell("nap", drain("drain of jobs that wait 5 ms", 0.5, kind="nap"), "", 6.0),
        Cell("spin", drain("drain of jobs that use 1 ms of CPU", most=2_000, kind="spin"), "", 6.0),
        Cell("1KB", drain("drain of jobs with 1 KB", ballast=1_000), "", 5.0),
        Cell("100KB", drain("drain of jobs with 100 KB", 0.2, 2_000, ballast=100_000), "", 8.0),
        Cell("processes-1", drain("drain with 1 process", times=4, processes=1), "", 5.0),
        Cell("processes-2", drain("drain with 2 processes", times=4, processes=2), "", 5.0, "processes"),
        Cell("processes-4", drain("drain with 4 processes", times=4, processes=4), "", 5.0, "processes"),
    ]
    made.append(Cell("churn", churn, "", 300.0))
    for jobs, how in ((100_000, "all"), (1_000_000, "")):
        made.append(Cell(f"backlog-{jobs}", backlog(jobs), how, 10.0 if jobs == 100_000 else 120.0, jobs=jobs))
    return {cell.name: cell for cell in made}


CELLS: Final = _cells()
