"""An event loop that simulates many processes in one, with virtual time and a seeded order.

Callbacks of one actor run in their order, as on a loop of its own; chance decides which actor runs next. Time advances
to the next timer only when no actor has anything to run. The loop never sleeps and uses no other thread.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import random
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from itertools import count
from typing import Any, TypeVarTuple

from treadle.testing.history import Entry, History

Ts = TypeVarTuple("Ts")

SPIN = 1_000_000  # callbacks without an advance of time, after which the run counts as stuck
CLOSINGS = 10  # attempts to close a coroutine that ignores GeneratorExit


class Stuck(RuntimeError):
    """The program cannot end: nothing is scheduled, time does not advance, or its patience is over."""


class Actor:
    """One process of the fleet. Tasks that it starts belong to it, through their context.

    steps  callbacks it has run; faults are placed by this number
    """

    def __init__(self, name: str, loop: SimulatedLoop, entries: list[Entry]) -> None:
        self.name, self.loop, self.alive = name, loop, True
        self.ready: deque[asyncio.Handle] = deque()
        self.steps = 0
        self.asleep_until = 0.0  # stalled until this time
        self.on_crash: Callable[[], None] | None = None  # see `crash`; None: it is no worker
        self.watch: Callable[[Actor], None] | None = None  # called after each step
        self.history = History(name, loop.time)
        self.history.entries = entries
        self.kept: set[asyncio.Task[Any]] = set()

    def __repr__(self) -> str:
        return f"<{self.name}>"


ACTOR: ContextVar[Actor | None] = ContextVar("treadle_actor", default=None)


class SimulatedLoop(BaseEventLoop):
    """Runs a coroutine to its end together with actors, in an order that `rng` decides."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng, self.now = rng, 0.0
        self._turns = 0  # callbacks since the last advance of time
        self._awake = 0.0  # when the last stalled actor resumes
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()  # numbers the timers: two of the same time fire in the order in which they were set
        self.actors: list[Actor] = []
        self.busy: list[Actor] = []  # those with callbacks to run
        self.entries: list[Entry] = []
        self.root = self.actor("program")
        self.errors: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.errors.append(context))

    def actor(self, name: str) -> Actor:
        """Add a process."""
        actor = Actor(name, self, self.entries)
        self.actors.append(actor)
        return actor

    def start(self, actor: Actor, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as a task of the actor, in a new context."""
        context = Context()
        context.run(ACTOR.set, actor)
        task = asyncio.Task(work, loop=self, context=context)
        actor.kept.add(task)
        task.add_done_callback(actor.kept.discard, context=context)
        return task

    def kill(self, actor: Actor) -> None:
        """End the actor for good. Its tasks are kept: garbage collection would run their `finally` blocks."""
        if actor.alive:
            actor.history.add("crashed")
            self.remove(actor)
            self.root.kept |= asyncio.all_tasks(self)

    def remove(self, actor: Actor) -> None:
        """Remove the actor from the simulation."""
        actor.alive = False
        actor.ready.clear()
        self.actors.remove(actor)
        if actor in self.busy:
            self.busy.remove(actor)

    def stall(self, actor: Actor, seconds: float) -> None:
        """Stall the actor for this many seconds; then it continues where it stopped."""
        if actor.alive:
            actor.history.add("stalled", at=self.now + seconds, seconds=seconds)
            actor.asleep_until = self.now + seconds
            self._awake = max(self._awake, actor.asleep_until)

    # --- the interface of an event loop

    def time(self) -> float:
        """Virtual seconds since the beginning."""
        return self.now

    # The versions of the base class also serve debug mode and other threads, which takes a tenth of a seed's time.

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._give(handle, ACTOR.get() if context is None else context.get(ACTOR))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now + delay, callback, *args, context=context)

    def _give(self, handle: asyncio.Handle, actor: Actor | None) -> None:
        """Queue the callback for the actor that has scheduled it."""
        actor = actor or self.root
        if actor.alive:
            if not actor.ready:
                self.busy.append(actor)
            actor.ready.append(handle)

    def _run_once(self) -> None:
        while not self._stopping:  # type: ignore[attr-defined]
            ready = self.busy
            if self._awake > self.now:
                ready = [actor for actor in ready if actor.asleep_until <= self.now]
            if ready:
                self._step(ready[0] if len(ready) == 1 else ready[int(self.rng.random() * len(ready))])
            else:
                self._move_on()

    def _step(self, actor: Actor) -> None:
        """Run the next callback of this actor."""
        handle = actor.ready.popleft()
        if not actor.ready:
            self.busy.remove(actor)
        self._turns += 1
        if self._turns > SPIN:
            raise Stuck(f"{actor.name} keeps running without letting time pass")
        if not handle.cancelled():
            actor.steps += 1
            handle._run()
            if actor.watch is not None:
                actor.watch(actor)

    def _move_on(self) -> None:
        """Advance time to the next timer or the end of the next stall."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        moments = [actor.asleep_until for actor in self.busy]
        if timers:
            moments.append(timers[0][0])
        if not moments:
            raise Stuck("every actor is idle, but the scenario has not ended")
        self.now, self._turns = max(self.now, min(moments)), 0
        while timers and timers[0][0] <= self.now:
            handle = heapq.heappop(timers)[2]
            self._give(handle, handle._context.get(ACTOR))  # type: ignore[attr-defined]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: a cancelled timer is skipped when it is due."""

    def _process_events(self, event_list: Any) -> None: ...

    def _write_to_self(self) -> None: ...

    def end(self) -> None:
        """Close all remaining tasks; only their `finally` blocks run."""

        async def closing() -> None:
            closed = {asyncio.current_task()}
            while tasks := asyncio.all_tasks() - closed:  # a `finally` block may start another task
                closed |= tasks
                for task in tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _close(task.get_coro())

        before = len(self.entries)  # entries that `finally` blocks add from here on belong to no process
        self.busy.clear()
        for actor in self.actors:
            actor.ready.clear()
            actor.watch, actor.asleep_until = None, 0.0
        self.run_until_complete(self.start(self.root, closing()))
        self.close()
        del self.entries[before:]
        self.root.kept.clear()
        self.errors.clear()


def _close(work: Any) -> None:
    """Close a coroutine. One that has not begun may have been given another one to await, which is closed too."""
    if hasattr(work, "cr_frame") and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        for argument in inspect.getcoroutinelocals(work).values():
            if inspect.iscoroutine(argument):
                _close(argument)
    for _ in range(CLOSINGS):
        try:
            work.close()
        except BaseException:
            continue
        return
