"""Waits for notifications of the storage: a queue has new jobs, a running job was settled from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from treadle.core import defaults
from treadle.storage.contract import Storage
from treadle.worker.state import WorkerState


class Listener:
    """A lost notification delays a job until the next poll, and loses none."""

    def __init__(self, state: WorkerState, storage: Storage, queues: Iterable[str]) -> None:
        self._state, self._storage = state, storage
        self._own_topic = f"worker:{state.name}"
        names = tuple(dict.fromkeys(queues))
        system = (defaults.SYSTEM_QUEUE,) if names and not storage.capabilities.queues else ()
        self._topics = [self._own_topic, *(f"queue:{name}" for name in (*names, *system))]
        self._timeout = defaults.WATCH

    async def run(self, answered: Callable[[str], None]) -> None:
        state = self._state
        while True:
            timeout, self._timeout = self._timeout, 0.0  # after a failure, only check that it answers
            topics = await self._storage.watch(self._topics, timeout)
            self._timeout = defaults.WATCH
            answered("listen")
            if self._own_topic in topics:
                state.heartbeat_now.set()
            if any(topic.startswith("queue:") for topic in topics):
                state.demand.notify()
