"""An event loop for many processes in one: virtual time, and a seed that picks who goes next.

What one actor has scheduled runs in its order, as on a loop of its own; which actor goes next is chance. Time stands
still while anybody can go, and then moves to the next timer. Nothing is waited for, and no other thread takes part.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any

from treadle.testing.history import Entry, History

SPIN = 1_000_000  # callbacks of one moment, after which time stands still for good
CLOSINGS = 10  # times that a coroutine may go on after it was told to end


class Stuck(RuntimeError):
    """Nobody has anything to do, and the program has not ended."""


class Actor:
    """One process of the fleet. All that it starts inherits it, by the context.

    steps  callbacks it has run: a fault is said to come after so many
    """

    def __init__(self, name: str, loop: SimulatedLoop, entries: list[Entry]) -> None:
        self.name, self.loop, self.alive = name, loop, True
        self.ready: deque[asyncio.Handle] = deque()
        self.steps = 0
        self.asleep_until = 0.0  # it stands still until then
        self.watch: Callable[[Actor], None] | None = None  # called after each step
        self.history = History(name, loop.time)
        self.history.entries = entries
        self.kept: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<{self.name}>"


ACTOR: ContextVar[Actor | None] = ContextVar("treadle_actor", default=None)


class SimulatedLoop(BaseEventLoop):
    """Give it a seed, make actors, and run a coroutine until it is complete."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance, self.now = chance, 0.0
        self._turns = 0  # of this moment
        self.actors: list[Actor] = []
        self.entries: list[Entry] = []
        self.root = self.actor("program")
        self.errors: list[dict[str, Any]] = []
        vars(self)["_ready"] = _Inbox(self.root)
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def actor(self, name: str) -> Actor:
        """A new process."""
        made = Actor(name, self, self.entries)
        self.actors.append(made)
        return made

    def start(self, actor: Actor, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Have the actor do this, in a context of its own."""
        context = Context()
        context.run(ACTOR.set, actor)
        task = asyncio.Task(work, loop=self, context=context)
        actor.kept.add(task)
        task.add_done_callback(actor.kept.discard, context=context)
        return task

    def kill(self, actor: Actor) -> None:
        """It never does anything again. Its tasks are kept, so that no line of them runs because they are collected."""
        if actor.alive:
            actor.history.add("crashed")
            actor.alive = False
            actor.ready.clear()
            self.actors.remove(actor)
            self.root.kept |= asyncio.all_tasks(self)

    def stall(self, actor: Actor, seconds: float) -> None:
        """It stands still for so long, and then goes on as if nothing had been."""
        if actor.alive:
            actor.history.add("stalled", at=self.now + seconds, seconds=seconds)
            actor.asleep_until = self.now + seconds

    # --- what a loop is asked for

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now

    def _run_once(self) -> None:
        ready = [actor for actor in self.actors if actor.ready and actor.asleep_until <= self.now]
        if not ready:
            self._move_on()
            return
        actor = ready[0] if len(ready) == 1 else ready[int(self.chance.random() * len(ready))]
        handle = actor.ready.popleft()
        self._turns += 1
        if self._turns > SPIN:
            raise Stuck(f"{actor.name} goes on and on without letting time pass")
        if not handle.cancelled():
            actor.steps += 1
            handle._run()
            if actor.watch is not None:
                actor.watch(actor)

    def _move_on(self) -> None:
        """To the next moment at which something is to be done."""
        timers: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        while timers and timers[0].cancelled():
            heapq.heappop(timers)._scheduled = False  # type: ignore[attr-defined]
        moments = [actor.asleep_until for actor in self.actors if actor.ready]
        if timers:
            moments.append(timers[0].when())
        if not moments:
            raise Stuck("nobody has anything to do, and the scenario has not ended")
        self.now, self._turns = max(self.now, min(moments)), 0
        while timers and timers[0].when() <= self.now:
            handle = heapq.heappop(timers)
            handle._scheduled = False  # type: ignore[attr-defined]
            self._ready.append(handle)  # type: ignore[attr-defined]

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def end(self) -> None:
        """Close everything that is still under way, without running more of it than its `finally` blocks."""

        async def closing() -> None:
            closed = {asyncio.current_task()}
            while left := asyncio.all_tasks() - closed:  # a `finally` may start another one
                closed |= left
                for task in left:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())

        told = len(self.entries)  # what is written from here on was done by nobody
        for actor in self.actors:
            actor.ready.clear()
            actor.watch, actor.asleep_until = None, 0.0
        self.run_until_complete(self.start(self.root, closing()))
        self.close()
        del self.entries[told:]
        self.root.kept.clear()
        self.errors.clear()


class _Inbox:
    """Where the base class puts what is to be run: to its actor."""

    def __init__(self, root: Actor) -> None:
        self._root = root

    def append(self, handle: asyncio.Handle) -> None:
        actor = handle._context.get(ACTOR) or self._root  # type: ignore[attr-defined]
        if actor.alive:
            actor.ready.append(handle)

    def clear(self) -> None:
        self._root.ready.clear()


def _close(work: Any) -> None:
    for _ in range(CLOSINGS):
        try:
            work.close()
        except BaseException:
            continue
        return
