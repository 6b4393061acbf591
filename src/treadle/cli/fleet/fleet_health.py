"""The health of a fleet of worker processes, as one verdict."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.cli.fleet.child_process import ChildProcess
from treadle.cli.fleet.worker_process import WorkerProcess
from treadle.cli.output import plural
from treadle.health import Verdict


def verdict_of(children: Iterable[ChildProcess], live: Iterable[WorkerProcess]) -> Verdict:
    """Alive: every event loop answers. Ready: every process claims, and the storage answers each of them."""
    kept = list(children)
    # Not the trial process: a suspect may well be stuck there, which is no reason to restart all.
    stuck = [words for each in live if not each.orders.trial and (words := each.stuck) is not None]
    unready = [words for each in kept if (words := _unready(each)) is not None]
    status = f"{plural(len(kept), 'worker process')} {'claims' if len(kept) == 1 else 'claim'} jobs"
    return Verdict(_first(stuck), _first(unready), status)


def _unready(child: ChildProcess) -> str | None:
    process = child.current
    if process is None:
        return f"worker {child.number} is being restarted"
    if process.vitals is None:
        return None if process.claims.is_set() else f"{process.label}: it starts and imports the app"
    problem = process.vitals.health.problem
    if problem == "starting" and process.claims.is_set():  # since then it has sent its Hello
        return None
    return None if problem is None else f"{process.label}: {problem}"


def _first(found: list[str]) -> str | None:
    if not found:
        return None
    return found[0] if len(found) == 1 else f"{found[0]}; {len(found) - 1} more"
