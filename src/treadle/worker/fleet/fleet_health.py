"""The health of a fleet of worker processes, as one verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from treadle.core.words import plural
from treadle.worker.fleet.child_process import ChildProcess
from treadle.worker.fleet.worker_process import WorkerProcess
from treadle.worker.probes import Verdict

KILLING: Final = 30.0  # s that the end of a stuck process may take until somebody else should restart the whole fleet


def verdict_of(children: Iterable[ChildProcess], live: Iterable[WorkerProcess], restart: float | None) -> Verdict:
    """Alive: every event loop answers, or the supervisor is going to restart it. Ready: every process claims, and the
    storage answers each of them. The trial process is neither: a suspect may well be stuck there.

    restart  seconds without an answer after which the supervisor restarts a process; None: never
    """
    kept = list(children)
    silent = [process for process in live if process.stuck is not None and not process.orders.trial]
    patience = 0.0 if restart is None else restart + KILLING
    stuck = [str(process.stuck) for process in silent if process.unanswered >= patience]
    unready = [str(process.stuck) for process in silent]
    unready += [why for child in kept if (why := _unready(child)) is not None]
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


def _first(problems: list[str]) -> str | None:
    if not problems:
        return None
    return problems[0] if len(problems) == 1 else f"{problems[0]}; {len(problems) - 1} more"
