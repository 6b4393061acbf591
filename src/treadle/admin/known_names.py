"""Names that nothing else uses, and the known one that is nearest: a mistyped name must not succeed in silence.

A look never keeps an act from being done: it takes two seconds at most, and an outage in it is the act's to report.
"""

from __future__ import annotations

import asyncio
import difflib
import heapq
import itertools
import re
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec import UNSET, Struct, UnsetType

from treadle.core import defaults
from treadle.core.clock import monotonic
from treadle.core.model import LimitUse, NewJob, Query, Stats
from treadle.core.ranges import OWN
from treadle.errors import TreadleError, UnknownName
from treadle.storage.contract import Storage

COUNTING: Final = 2.0  # s that a look may take; a warning is not worth more
FRESH: Final = 10.0  # s for which the known names are kept for calls that send
STALE: Final = 1.0  # s for which they are kept for lists that find nothing
SHORT, LONG = 3, 80  # characters of a name that is compared with others: "qa" is like "a", and no mistake for it
COMPARED: Final = 200  # names that one is compared with
NEW: Final = 1_000  # names of one call that are looked up; more of them are no mistake of typing
WARNED: Final = 20  # names of one call that are compared with others
REMEMBERED: Final = 10_000  # names that need no second look
LABELLED: Final = 200  # jobs, the newest ones, among whose labels the nearest is looked for
HERE: Final = str(Path(__file__).parents[1])

Visible = Callable[[str], bool]
"""Whether a name may be shown to the caller."""
Name = tuple[str, str]
"""("task", "queue" or "limit", name)"""
T = TypeVar("T")


def near(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?", or nothing."""
    close = closest(name, known)
    return "" if close is None else f"; did you mean {close!r}?"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like this one; None if none is like it. To compare two names of 200 characters takes
    40 us, so long ones are left out, and of very many those that begin otherwise."""
    if not SHORT <= len(name) <= LONG:
        return None
    alike = {
        each for each in known if SHORT <= len(each) <= LONG and 2 * min(len(each), len(name)) >= 0.6 * len(each + name)
    }
    if len(alike) > COMPARED:
        alike = {each for each in alike if each[:1] == name[:1]}
    found = difflib.get_close_matches(name, heapq.nsmallest(COMPARED, alike - {name}), 1)
    return found[0] if found else None


def has_rule(limit: str, rules: Iterable[str]) -> bool:
    """Whether a rule or a pause is stored for a limit's name, or for what stands before its colon."""
    return limit in rules or limit.partition(":")[0] in rules


def without_rule(tasks: Mapping[str, Any], rules: frozenset[str]) -> Iterator[tuple[str, str, str]]:
    """Task, limit and the nearest rule, for each limit that a task names in code and that limits nothing."""
    for name, task in sorted(tasks.items()):
        for limit in limits_of(task):
            if not has_rule(limit, rules):
                yield name, limit, near(limit, rules)


# --- telling


class Heard(Struct):
    """Warnings of calls that are made for somebody who reads them in the answer. `visible`: the queues that may be
    named there."""

    visible: Visible
    words: list[str]

    @property
    def text(self) -> str | UnsetType:
        return "; ".join(self.words) or UNSET


_heard: ContextVar[Heard | None] = ContextVar("treadle_heard", default=None)


@contextmanager
def heard(visible: Visible | None = None) -> Iterator[Heard]:
    """Collect the warnings of calls made meanwhile, instead of giving them to Python's `warnings`."""
    found = Heard(visible or _all, [])
    mark = _heard.set(found)
    try:
        yield found
    finally:
        _heard.reset(mark)


def warn(words: str | None, kind: type[UserWarning] = UnknownName) -> None:
    """Warn the caller of the library."""
    if words is None:
        return
    if (collected := _heard.get()) is not None:
        collected.words.append(words)
        return
    frame, depth = sys._getframe(1), 3
    while frame.f_back is not None and frame.f_back.f_code.co_filename.startswith(HERE):
        frame, depth = frame.f_back, depth + 1
    warnings.warn(words, kind, stacklevel=depth)


# --- knowing


class Known(Struct, frozen=True):
    """The names in use. tasks: each with the groups of queues that it is known from: that of a job, or those of a
    worker, which does not say of which of them its tasks are."""

    tasks: dict[str, set[frozenset[str]]]
    queues: set[str]
    limits: set[str]
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
        """A job that is about to be stored."""
        self.tasks.setdefault(job.task, set()).add(frozenset((job.queue,)))
        self.queues.add(job.queue)

    def unused(self, kind: str, name: str) -> str:
        """The warning for a name that is not among them."""
        return _unused(kind, name, near(name, self.shown(kind, _seen())))


class Names:
    """What is known of queues, limits and tasks: what code names, and what is stored."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], tasks: Mapping[str, Any]) -> None:
        self._storage, self._tasks = storage, tasks
        self._met: set[Name] = set()  # looked at before
        self._known: Known | None = None
        self.fresh: set[Name] = set()  # given to `app.stub` or as an option, and in no call yet

    # --- sending

    def given(self, task: str | None, options: Mapping[str, Any]) -> None:
        """Names by which jobs may be sent soon. What tasks name where they are declared needs no look."""
        for name in _given(task, options):
            if name not in self._met:
                self.fresh.add(name)
        if len(self.fresh) > REMEMBERED:
            self.fresh.clear()

    async def sending(self, jobs: Sequence[NewJob]) -> None:
        """Warn of names of these jobs that nothing uses and that are close to one that is used. Each name is looked at
        once, and the known ones are read once in ten seconds at most. Raises StorageError."""
        new = (name for job in jobs for name in _of(job) if name not in self._met)
        strange = set(itertools.islice(new, NEW))
        self.fresh -= strange
        if not strange:
            return
        await self._storage()  # to open it may take longer than a look
        known = await _soon(self._all_known(FRESH))
        if len(self._met) > REMEMBERED:
            self._met.clear()
        self._met |= strange
        if known is None:
            return
        unknown = (each for each in sorted(strange) if not known.has(*each))
        for kind, name in list(itertools.islice(unknown, WARNED)):
            warn(self._mistyped(known, kind, name))
            await asyncio.sleep(0)
        for job in jobs:
            known.add(job)

    async def returned(self, jobs: Sequence[NewJob]) -> Sequence[str]:
        """The warnings of `sending` for jobs that a run returned, whose caller reads a log. Raises nothing."""
        with heard() as said, suppress(TreadleError):
            await self.sending(jobs)
        return said.words

    def _mistyped(self, known: Known, kind: str, name: str) -> str | None:
        if known.has(kind, name):
            return None
        like = closest(name, known.shown(kind, _seen()))
        if like is None or _digits(name) == _digits(like):  # tenant-2 is no mistyped tenant-1
            return None
        return _unused(kind, name, f"; did you mean {like!r}?")

    # --- looking

    async def nothing_found(self, queue: str | None, task: str | None, label: str | None) -> None:
        """Warn of the queue, the task or the label of a filter that no job fits, if nothing uses it."""
        warn(await _soon(self._nothing_found(queue, task, label)))

    async def _nothing_found(self, queue: str | None, task: str | None, label: str | None) -> str | None:
        for kind, name in (("queue", queue), ("task", task)):
            if name is None or (kind, name) in self._met:
                continue
            known = await self._all_known(STALE)
            if not known.has(kind, name) and not (kind == "queue" and await self._has_jobs(name)):
                return known.unused(kind, name)
            self._met.add((kind, name))
        return None if label is None else await self._no_label(queue, task, label)

    async def _no_label(self, queue: str | None, task: str | None, label: str) -> str | None:
        storage = await self._storage()
        if (await storage.find(Query(label=label, queue=queue, limit=1))).records:
            return None
        newest = await storage.find(Query(queue=queue, task=task, limit=LABELLED))
        like = near(label, {each for row in newest.records for each in row.job.labels})
        return f"no job has the label {label!r}{like}" if like else None  # a value that no job has yet is no mistake

    async def _has_jobs(self, queue: str) -> bool:
        return bool((await (await self._storage()).find(Query(queue=queue, limit=1))).records)

    # --- pausing

    async def unused_queue(self, name: str) -> str | None:
        """The warning for a queue that nothing uses; None if something does, or if that cannot be known soon."""
        return await _soon(self._unused_queue(name))

    async def unused_limit(self, name: str) -> str | None:
        """The same for a limit."""
        return await _soon(self._unused_limit(name))

    async def not_paused(self, what: str, name: str) -> str | None:
        """The warning for a queue or limit that is to be resumed, and is not paused."""
        return await _soon(self._not_paused(what, name))

    async def no_rule(self, name: str) -> str | None:
        """The warning for a limit whose rule is to be removed, and that has none."""
        return await _soon(self._no_rule(name))

    async def new_rule(self, name: str) -> str | None:
        """The warning for a limit that is to get a rule, has none, and is like one that is used."""
        return await _soon(self._new_rule(name))

    async def _unused_queue(self, name: str) -> str | None:
        known = used(self._tasks, Stats(limits=await self._rules()))
        if name in known.queues:
            return None
        storage = await self._storage()
        if (await storage.find(Query(queue=name, order="line", limit=1))).records:
            return None
        known = used(self._tasks, await storage.stats())
        return None if name in known.queues else known.unused("queue", name)

    async def _unused_limit(self, name: str) -> str | None:
        known = used(self._tasks, Stats(limits=await self._rules()))
        return None if known.has("limit", name) else known.unused("limit", name)

    async def _not_paused(self, what: str, name: str) -> str | None:
        prefix = "queue:" if what == "queue" else ""
        shut = {
            use.key.removeprefix(prefix)
            for use in await self._rules()
            if use.rule.slots == 0 and use.key.startswith(prefix)
        }
        return None if name in shut else f"the {what} {name!r} is not paused{near(name, filter(_seen(), shut))}"

    async def _no_rule(self, name: str) -> str | None:
        known = {use.key for use in await self._rules()}
        return None if name in known else f"there is no limit {name!r}{near(name, filter(_seen(), known))}"

    async def _all_known(self, age: float) -> Known:
        """The names in use, as they were at most `age` seconds ago."""
        if self._known is None or monotonic() - self._known.at > age:
            self._known = used(self._tasks, await (await self._storage()).stats())
        return self._known

    async def _new_rule(self, name: str) -> str | None:
        rules = await self._rules()
        if any(use.key == name for use in rules):
            return None
        kind, _, queue = name.partition(":")
        if kind != "queue":
            known = used(self._tasks, Stats(limits=rules))
            holds = any(each.partition(":")[0] == name for each in known.limits)  # a rule is for all its partitions
            return None if holds else self._mistyped(known, "limit", name)
        known = await self._all_known(FRESH)
        return None if await self._has_jobs(queue) else self._mistyped(known, "queue", queue)

    async def _rules(self) -> tuple[LimitUse, ...]:
        return await (await self._storage()).limits(use=False)


def used(tasks: Mapping[str, Any], stats: Stats) -> Known:
    """The names that code and a storage use. A pause alone is a use: it is there to be resumed."""
    keys = {use.key for use in stats.limits if not use.key.startswith(OWN)}
    queues = {key.removeprefix("queue:") for key in keys if key.startswith("queue:")}
    found = {name: {frozenset((task.queue,))} for name, task in tasks.items()}
    for count in stats.counts:
        if count.queue == defaults.OWN_QUEUE:
            continue
        if count.task:
            found.setdefault(count.task, set()).add(frozenset((count.queue,)))
        queues.add(count.queue)
    for worker in stats.workers:
        queues.update(worker.queues)
        for name in worker.tasks:
            found.setdefault(name, set()).add(frozenset(worker.queues))
    queues |= {task.queue for task in tasks.values()}
    return Known(found, queues, keys | {limit for task in tasks.values() for limit in limits_of(task)}, monotonic())


def limits_of(task: Any) -> Iterable[str]:
    """The limits that a task names in code."""
    found: Iterable[str] = getattr(task, "constants", {}).get("limits", ())
    return found


def _unused(kind: str, name: str, like: str) -> str:
    return f"nothing knows the task {name!r}{like}" if kind == "task" else f"nothing uses the {kind} {name!r} yet{like}"


def _given(task: str | None, options: Mapping[str, Any]) -> Iterator[Name]:
    if task is not None:
        yield "task", task
    if isinstance(queue := options.get("queue"), str):
        yield "queue", queue
    limits = options.get("limits")
    if isinstance(limits, list | tuple):
        for limit in limits:
            if isinstance(limit, str):
                yield "limit", limit


def _of(job: NewJob) -> Iterator[Name]:
    yield "task", job.task
    yield "queue", job.queue
    for limit, _ in job.limits:
        if not limit.startswith("task:"):  # the limit that `concurrency=` makes
            yield "limit", limit


def _digits(name: str) -> str:
    return re.sub(r"\d+", "0", name)


async def _soon(look: Awaitable[T]) -> T | None:
    try:
        async with asyncio.timeout(COUNTING):
            return await look
    except (TreadleError, TimeoutError):  # also where a token has no right to look
        return None


def _seen() -> Visible:
    collected = _heard.get()
    return _all if collected is None else collected.visible


def _all(name: str) -> bool:
    return True
