"""Notes the end of a worker process in the jobs that it has left, so that they come back at once, with the reason.

The supervisor knows how and when a process has ended, but has no storage: a process of the fleet stores it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from treadle.core.clock import wall
from treadle.core.words import plural
from treadle.worker.fleet.child_process import Shared, ended
from treadle.worker.fleet.worker_process import WorkerProcess
from treadle.worker.jobs_of_others import Death, Lease, Place, named

AGAIN: Final = 0.2  # s until the next try, while no process can do it


class Deaths:
    """All calls belong to the event loop of the fleet.

    tried  the leases of suspects that a trial process runs: they are under the name of the worker that claimed them
    """

    def __init__(self, shared: Shared, tried: Callable[[], Sequence[Lease]]) -> None:
        self._shared, self._tried = shared, tried
        self._noting: set[asyncio.Task[None]] = set()

    def note(self, process: WorkerProcess, code: int, jobs: Sequence[Lease] = ()) -> None:
        """Note the end of a process as soon as another one can. jobs: leases that it had besides those of its name."""
        if process.hello is None or not process.hello.helps:  # it has claimed nothing, or is of an older version
            return
        how = ended(code) + process.killed_for
        death = Death(worker=process.hello.worker, how=how, at=wall(), asked=process.asked, jobs=list(jobs))
        noting = asyncio.create_task(self._note(process.label, death))
        self._noting.add(noting)
        noting.add_done_callback(self._noting.discard)

    async def _note(self, label: str, death: Death) -> None:
        while True:
            helper = self._shared.helper()
            death = replace(death, but=[id for id, _ in self._tried()])
            jobs = None if helper is None else await helper.note(death)
            if jobs is not None:
                break
            await asyncio.sleep(AGAIN)
        if jobs:
            self._shared.say(_words(label, death, jobs))

    async def close(self) -> None:
        """Give up the ends that are not noted: those jobs are queued again when their leases expire."""
        for noting in self._noting:
            noting.cancel()
        await asyncio.gather(*self._noting, return_exceptions=True)


def _words(label: str, death: Death, jobs: Sequence[Place]) -> str:
    ran = f"{plural(len(jobs), 'job')}: {named(jobs)}"
    if death.asked:
        return f"{label} has stopped, and left {ran}; queued again, uncounted"
    return f"{label} {death.how} while it ran {ran}; each is a suspect, and will be tried alone"
