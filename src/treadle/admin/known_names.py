"""Warns people of mistyped names: finds names that nothing else uses, and the known name that is most similar.

Only calls inside `heard` are checked: those of the command line and over HTTP. A program may name a queue or a limit
before anything else does. A check delays its call by 2 s at most, and ignores errors of the storage.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

from msgspec import UNSET, Struct, UnsetType

from treadle.core import defaults
from treadle.core.clock import monotonic
from treadle.core.errors import TreadleError
from treadle.core.limit_model import LimitUse
from treadle.core.model import NewJob, State
from treadle.core.query_model import Count, Order, Query, Stats
from treadle.core.queue_rules import ALL, OF, QueueRules
from treadle.core.ranges import OWN
from treadle.core.similar_names import closest, near
from treadle.storage.contract import Storage
from treadle.tasks.core import TaskCore

COUNTING: Final = 2.0  # s that a check may take
FRESH: Final = 10.0  # s for which the known names are cached for enqueues over HTTP
STALE: Final = 1.0  # s for which they are cached for lists that find nothing, and for rules
NEW: Final = 1_000  # names of one call that are checked
WARNED: Final = 20  # names of one call that are compared
REMEMBERED: Final = 10_000  # names that are not checked again
LABELLED: Final = 200  # newest jobs whose labels are compared

Visible = Callable[[str], bool]
"""Whether a name may be shown to the caller."""
Name = tuple[str, str]
"""("task", "queue" or "limit", name)"""
_NUMBER: Final = re.compile(r"\d+")
T = TypeVar("T")
P = ParamSpec("P")


def has_rule(limit: str, rules: Iterable[str]) -> bool:
    """Whether a rule or a pause is stored for the name of a limit, or for the part before its colon."""
    return limit in rules or limit.partition(":")[0] in rules


def without_rule(tasks: Mapping[str, TaskCore], rules: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Task, limit and hint for each limit that a task names in code and that has no rule."""
    for name, task in sorted(tasks.items()):
        for limit in limits_of(task):
            if not has_rule(limit, rules):
                yield name, limit, near(limit, rules)


# --- warning


class Heard(Struct):
    """Warnings for the person who makes a call.

    visible  whether a warning may name this queue
    tell     called with each warning about a name
    """

    visible: Visible
    tell: Callable[[str], object]
    words: list[str]

    @property
    def text(self) -> str | UnsetType:
        return "; ".join(self.words) or UNSET


_heard: ContextVar[Heard | None] = ContextVar("treadle_heard", default=None)


@contextmanager
def heard(visible: Visible = lambda name: True, tell: Callable[[str], object] | None = None) -> Iterator[Heard]:
    """A person has typed the names in the calls inside the block: check them. `tell`: instead of keeping the warnings
    in `words`."""
    words: list[str] = []
    collected = Heard(visible, tell or words.append, words)
    mark = _heard.set(collected)
    try:
        yield collected
    finally:
        _heard.reset(mark)


def listener() -> Heard | None:
    """The collector of this call's warnings; None: a program makes the call."""
    return _heard.get()


def for_people(check: Callable[Concatenate[Names, P], Awaitable[str | None]]) -> Callable[..., Awaitable[None]]:
    """The check, which is made only if a person has typed the name, and passes the warning on that it returns."""

    @wraps(check)
    async def checked(self: Names, *args: P.args, **kwargs: P.kwargs) -> None:
        if (collected := _heard.get()) is not None and (warning := await _soon(check(self, *args, **kwargs))):
            collected.tell(warning)

    return checked


# --- the names in use


class Known(Struct, frozen=True):
    """The names in use in code and in the storage.

    tasks   each with the groups of queues that it was found in: the queue of a job, or all queues of a worker, which
            does not report the queue of each task
    """

    tasks: dict[str, set[frozenset[str]]]
    queues: set[str]
    limits: set[str]
    declared: int  # number of tasks in code
    at: float

    def has(self, kind: str, name: str) -> bool:
        if kind == "limit":
            return has_rule(name, self.limits)
        return name in (self.tasks if kind == "task" else self.queues)

    def shown(self, kind: str, visible: Visible) -> Iterable[str]:
        if kind == "task":
            return [
                task
                for task, known in self.tasks.items()
                if any(queues and all(map(visible, queues)) for queues in known)
            ]
        return filter(visible, self.queues if kind == "queue" else self.limits)

    def add(self, job: NewJob) -> None:
        """Add the names of a job that is about to be stored."""
        self.tasks.setdefault(job.task, set()).add(frozenset((job.queue,)))
        self.queues.add(job.queue)

    def unused(self, kind: str, name: str) -> str:
        """The warning for a name that is not in use."""
        return _unused(kind, name, near(name, self.shown(kind, _visible())))


class Names:
    """Checks names of queues, limits and tasks against those in code and in the storage."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], tasks: Mapping[str, TaskCore]) -> None:
        self._storage, self._tasks = storage, tasks
        self._met: set[Name] = set()  # names that were checked
        self._known: Known | None = None

    # --- enqueuing

    async def warn_of_new(self, jobs: Sequence[NewJob]) -> None:
        """Warn of names in jobs that a person is about to enqueue: those that nothing uses, similar to a name in use.

        Each name is checked once. The names in use are read once in 10 s, and again before a warning. Raises
        StorageError.
        """
        if (collected := _heard.get()) is None:
            return
        new = (name for job in jobs for name in _of(job) if name not in self._met)
        strange = set(itertools.islice(new, NEW))
        if not strange:
            return
        await self._storage()  # opened before the check begins: opening may take longer than a check may
        begun = monotonic()
        known = await _soon(self._all_known(FRESH))
        if len(self._met) > REMEMBERED:
            self._met.clear()
        self._met |= strange
        if known is None:
            return
        unknown = (name for name in sorted(strange) if not known.has(*name))
        for kind, name in list(itertools.islice(unknown, WARNED)):
            warning = self._mistyped(known, kind, name)
            if warning is not None and not await _soon(self._appeared(kind, name, begun)):
                collected.tell(warning)
            await asyncio.sleep(0)
        for job in jobs:
            (self._known or known).add(job)

    def _mistyped(self, known: Known, kind: str, name: str) -> str | None:
        if known.has(kind, name):
            return None
        like = closest(name, known.shown(kind, _visible()))
        if like is None or _NUMBER.sub("0", name) == _NUMBER.sub("0", like):  # tenant-2 is not a mistyped tenant-1
            return None
        return _unused(kind, name, f"; did you mean {like!r}?")

    # --- listing

    @for_people
    async def nothing_found(self, queue: str | None, task: str | None, label: str | None) -> str | None:
        """Warn of the queue, task or label of a filter that matched no job, if nothing uses it."""
        for kind, name in (("queue", queue), ("task", task)):
            if name is None or (kind, name) in self._met:
                continue
            known = await self._all_known(STALE)
            if not known.has(kind, name) and not await self._occurs(kind, name):
                return known.unused(kind, name)
            self._met.add((kind, name))
        return None if label is None else await self._no_label(queue, task, label)

    async def _no_label(self, queue: str | None, task: str | None, label: str) -> str | None:
        storage = await self._storage()
        if (await storage.find(Query(label=label, queue=queue, limit=1))).records:
            return None
        newest = await storage.find(Query(queue=queue, task=task, limit=LABELLED))
        like = near(label, {other for row in newest.records for other in row.job.labels})
        return f"no job has the label {label!r}{like}" if like else None  # a label that no job has yet may be correct

    async def _appeared(self, kind: str, name: str, since: float) -> bool:
        """Whether something uses a name that the cached names do not have: a worker may have started meanwhile."""
        return await self._occurs(kind, name) or (await self._all_known(monotonic() - since)).has(kind, name)

    async def _occurs(self, kind: str, name: str) -> bool:
        return await occurs(await self._storage(), kind, name)

    # --- pausing

    @for_people
    async def unused_queue(self, name: str) -> str | None:
        """Warn of a queue that nothing uses."""
        known = used(self._tasks, Stats(limits=await self._rules()))
        if name in known.queues:
            return None
        storage = await self._storage()
        if (await storage.find(Query(queue=name, order="queue", limit=1))).records:
            return None
        known = used(self._tasks, await read_names(storage))
        return None if name in known.queues or await self._occurs("queue", name) else known.unused("queue", name)

    @for_people
    async def unused_limit(self, name: str) -> str | None:
        """Warn of a limit that nothing uses."""
        if name == ALL:
            return None  # it holds for each queue without a limit of its own
        known = used(self._tasks, Stats(limits=await self._rules()))
        return None if known.has("limit", name) else known.unused("limit", name)

    @for_people
    async def not_paused(self, what: str, name: str) -> str | None:
        """Warn of a queue or limit that is resumed and not paused."""
        prefix, uses = OF if what == "queue" else "", await self._rules()
        shut = {use.key.removeprefix(prefix) for use in uses if use.rule.slots == 0 and use.key.startswith(prefix)}
        pause = QueueRules(uses).pause_of(name) if what == "queue" else None
        if pause is not None and pause.key == ALL:
            return f"the queue {name!r} stays paused: the limit {ALL!r} is, which holds for queues without their own"
        return None if name in shut else f"the {what} {name!r} is not paused{near(name, filter(_visible(), shut))}"

    @for_people
    async def no_rule(self, name: str) -> str | None:
        """Warn of a limit whose rule is to be removed although it has none."""
        known = {use.key for use in await self._rules()}
        return None if name in known else f"there is no limit {name!r}{near(name, filter(_visible(), known))}"

    @for_people
    async def new_rule(self, name: str) -> str | None:
        """Warn of the first rule of a limit whose name is similar to one in use."""
        rules = await self._rules()
        if any(use.key == name for use in rules):
            return None
        kind, _, queue = name.partition(":")
        if kind != "queue":
            known = used(self._tasks, Stats(limits=rules))
            holds = any(limit.partition(":")[0] == name for limit in known.limits)  # a rule applies to all partitions
            return None if holds else self._mistyped(known, "limit", name)
        known = await self._all_known(STALE)
        return None if await self._occurs("queue", queue) else self._mistyped(known, "queue", queue)

    async def _all_known(self, age: float) -> Known:
        """The names in use, at most `age` seconds old, and those of all tasks that are declared now."""
        known = self._known
        if known is None or monotonic() - known.at > age or known.declared != len(self._tasks):
            known = self._known = used(self._tasks, await read_names(await self._storage()))
        return known

    async def _rules(self) -> tuple[LimitUse, ...]:
        return await (await self._storage()).limits(use=False)


def used(tasks: Mapping[str, TaskCore], stats: Stats) -> Known:
    """The names that code and the storage use. A paused limit counts as used."""
    keys = {use.key for use in stats.limits if not use.key.startswith(OWN)}
    queues = {key.removeprefix("queue:") for key in keys if key.startswith("queue:")}
    queues_of = {name: {frozenset((task.queue,))} for name, task in tasks.items()}
    for count in stats.counts:
        if count.queue == defaults.SYSTEM_QUEUE:
            continue
        if count.task:
            queues_of.setdefault(count.task, set()).add(frozenset((count.queue,)))
        queues.add(count.queue)
    for worker in stats.workers:
        queues.update(worker.queues)
        for name in worker.tasks:
            queues_of.setdefault(name, set()).add(frozenset(worker.queues))
    queues |= {task.queue for task in tasks.values()}
    limits = keys | {limit for task in tasks.values() for limit in limits_of(task)}
    return Known(queues_of, queues, limits, len(tasks), monotonic())


def limits_of(task: TaskCore) -> Iterable[str]:
    """The limits that a task names in code."""
    limits: Iterable[str] = task.declared.constants.get("limits", ())
    return limits


def _unused(kind: str, name: str, like: str) -> str:
    return f"nothing uses the {kind} {name!r} yet{like}"


def _of(job: NewJob) -> Iterator[Name]:
    yield "task", job.task
    yield "queue", job.queue
    for limit, _ in job.limits:
        if not limit.startswith("task:"):  # the limit that `concurrency=` creates
            yield "limit", limit


async def _soon(look: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(COUNTING):
            return await look
    except (TreadleError, TimeoutError):  # also if a token has no right to read
        return None


def _visible() -> Visible:
    collected = _heard.get()
    return (lambda name: True) if collected is None else collected.visible


NEWEST: Final = 1_000  # newest jobs whose tasks and queues are read
SEARCHED: Final = 10_000  # newest jobs among which one name is searched
LOOKS: Final[tuple[tuple[Order, int], ...]] = (("queue", 1), ("newest", SEARCHED))


async def read_names(storage: Storage) -> Stats:
    """The queues with unfinished or failed jobs, the queues and tasks of the newest jobs, the workers and the limits.

    Each count stands for a name; its numbers mean nothing. A name that only older jobs have is missing: see `occurs`.
    """
    seen = await storage.glance(NEWEST)
    rows = [
        row
        for queue in storage.capabilities.queues or (None,)  # a bound token must name one
        for row in (await storage.find(Query(queue=queue, limit=NEWEST, scan=NEWEST))).records
    ]
    names = {(row.job.queue, row.job.task) for row in rows} | {(queue.name, "") for queue in seen.queues}
    counts = tuple(Count(queue=queue, task=task, state=State.READY, jobs=1) for queue, task in sorted(names))
    return Stats(counts=counts, workers=seen.workers, limits=seen.limits)


async def occurs(storage: Storage, kind: str, name: str) -> bool:
    """Whether a queued job, or one of the newest jobs, has this queue or task."""
    if kind == "task" and not storage.capabilities.queues:
        return bool((await storage.find(Query(task=name, limit=1, scan=SEARCHED))).records)
    if kind != "queue":
        return False
    for order, scan in LOOKS:
        if (await storage.find(Query(queue=name, limit=1, order=order, scan=scan))).records:
            return True
    return False
