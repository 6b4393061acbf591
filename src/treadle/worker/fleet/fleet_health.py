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
    kept, silent = list(children), [each for each in live if each.stuck is not None and not each.orders.trial]
    patience = 0.0 if restart is None else restart + KILLING
    stuck = [str(each.stuck) for each in silent if each.unanswered >= patience]
    unready = [str(each.stuck) for each in silent]
    unready += [words for each in kept if (words := _unready(each)) is not None]
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
