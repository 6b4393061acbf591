"""The awaits of the tasks of a run, and whether something other than its parked waits may let one of them continue.

The tasks of a run are that of its function, those that have used durable code, and those that these await. A task at a
lock, event or queue of asyncio waits for another task of the run if that has the object in a variable, and continues
once the parked waits are over. Tasks that await each other alone do not count for that.

A program whose path would depend on the time of a run is refused: `asyncio.timeout` and `asyncio.wait_for` around a
wait, and asyncio's ways to take the first of several tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
from asyncio import locks, queues, tasks
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import AsyncGeneratorType, MethodType
from typing import Any, Final, NamedTuple

DEPTH: Final = 3  # references from the frames of a task to a lock that it holds
REACHED: Final = 2_000  # objects that are looked at for that in each task

TIMED: Final = "asyncio.timeout and asyncio.wait_for begin anew in each run; write `async with current().timeout(...)`"
RACED: Final = "asyncio takes what is done first, which may differ in the next run; use current().first or as_completed"
STORAGE: Final = "durable_backend.py"  # the module that calls the storage for durable code
_PRIMITIVES: Final = (locks.__file__, queues.__file__)
_GENERATED: Final = ("async_generator_asend", "async_generator_athrow")  # what `async for` and `aclose` await

Task = asyncio.Task[Any]


class Refused(Exception):
    """A task awaits a wait in a way that a later run could not repeat."""


class Await(NamedTuple):
    """The awaits of one task.

    chain      its coroutines, each awaited by the one before it
    all_of     the tasks of which it awaits all
    others     the futures that it awaits with them
    primitive  the lock, event or queue at which it waits
    waiter     the future of that
    is_inner   trusted code waits for other tasks of the run
    """

    chain: list[Any]
    all_of: Sequence[Task] = ()
    others: Sequence[asyncio.Future[Any]] = ()
    primitive: object = None
    waiter: asyncio.Future[Any] | None = None
    is_inner: bool = False


def others_of(
    known: Iterable[Task], root: Task | None, parked: Collection[Task], *, refuses: bool, trusted: Collection[str] = ()
) -> list[asyncio.Future[Any]] | None:
    """The futures that the tasks of the run await, without its parked waits and its tasks. None: a task is about to
    run. Raises Refused.

    known    tasks that have used durable code
    root     the task of the function
    refuses  False: never raise Refused. At the end of a job, code after its waits is not refused
    trusted  packages that take results as they come but continue in an order of their own, and that wait for nothing
             but tasks of the run
    """
    todo, seen, others = {*known, *parked}, dict[Task, Await](), list[asyncio.Future[Any]]()
    if root is not None:
        todo.add(root)
    while todo:
        for task in todo:
            if (awaits := _await_of(task, parked, refuses, trusted)) is None:
                return None
            seen[task] = awaits
            others += [other for other in awaits.others if not other.done()]
        todo = {up for task in todo for up in seen[task].all_of if up not in seen and not up.done()}
        if not todo and not others:
            closed = _closed(seen, parked)
            if closed or any(awaits.is_inner for awaits in seen.values()):
                todo = _awaiting(seen, root)
                others = [] if todo else closed
    return others


def groups_of(known: Iterable[Task], root: Task | None) -> list[asyncio.TaskGroup]:
    """The groups of asyncio in which the tasks of the run are, or at whose end they wait. See `others_of`."""
    todo, seen, groups = {*known} if root is None else {*known, root}, set[Task](), list[asyncio.TaskGroup]()
    while todo:
        task = todo.pop()
        seen.add(task)
        chain = list(_chain(task))
        groups += _groups(task, chain)
        awaited = _futures(getattr(task, "_fut_waiter", None), chain) or ()
        todo |= {up for up in awaited if isinstance(up, asyncio.Task) and up not in seen and not up.done()}
    return groups


def _await_of(task: Task, parked: Collection[Task], refuses: bool, trusted: Collection[str]) -> Await | None:
    """The awaits of this task; None: it is about to run. Raises Refused if it `refuses`."""
    chain = list(_chain(task))
    if task in parked:
        if refuses:
            _refuse_races(task, chain)
        return Await(chain)
    waiter = getattr(task, "_fut_waiter", None)
    if waiter is None or waiter.done():
        return None
    awaited = _futures(waiter, chain)
    primitive = _primitive(chain) if awaited is None else None
    if (awaited is not None or primitive is not None) and _is_trusted(chain, trusted):
        inner = [other for other in awaited or () if isinstance(other, asyncio.Task) and not _is_signal(other)]
        return Await(chain, inner, is_inner=True)
    is_race = _is_race(_names(chain))
    # A timeout around anything else, such as a reply or a call of the storage, is not a timeout around a wait.
    if refuses and (awaited is not None or primitive is not None or is_race) and not _is_at_storage(chain):
        _refuse_races(task, chain)
    if awaited is None:
        if not refuses and is_race:
            return Await(chain)  # its tasks are known if they use durable code
        return Await(chain, (), [waiter]) if primitive is None else Await(chain, primitive=primitive, waiter=waiter)
    tasks = [other for other in awaited if isinstance(other, asyncio.Task)]
    return Await(chain, tasks, [other for other in awaited if not isinstance(other, asyncio.Task)])


def _is_trusted(chain: list[Any], trusted: Collection[str]) -> bool:
    """Whether code of these packages awaits this, by asyncio or anyio and without a timeout of `asyncio.wait`."""
    if not trusted or ("_wait" in _names(chain) and _frame_of(chain[-1]).f_locals["timeout_handle"] is not None):
        return False
    packages = [_frame_of(code).f_globals["__name__"].partition(".")[0] for code in reversed(chain)]
    return next((package for package in packages if package not in ("asyncio", "anyio")), "") in trusted


def _is_signal(task: Task) -> bool:
    """Whether the task only waits for an event of asyncio, which another task of the run may set."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is asyncio.Event.wait.__code__


def _is_at_storage(chain: list[Any]) -> bool:
    """Whether the task is in a call of the storage, whose drivers have timeouts of their own."""
    return any(_code_of(code).co_filename.endswith(STORAGE) for code in chain)


def _code_of(code: Any) -> Any:
    return code.ag_code if type(code) is AsyncGeneratorType else code.cr_code


def _closed(seen: Mapping[Task, Await], parked: Collection[Task]) -> list[asyncio.Future[Any]]:
    """The futures of tasks at primitives that none of the run's tasks opens once the parked waits are over."""
    at_primitive = [task for task, awaits in seen.items() if awaits.waiter is not None]
    if not at_primitive:
        return []
    certain, new = set[Task](), {task for task in seen if task in parked}
    while new:
        certain |= new
        while more := {task for task in seen if task not in certain and _continues(seen[task], certain)}:
            certain |= more
            new |= more
        reached = _reached([seen[task].chain for task in new])
        new = {task for task in at_primitive if task not in certain and id(seen[task].primitive) in reached}
    return [waiter for task in at_primitive if task not in certain and (waiter := seen[task].waiter) is not None]


def _continues(awaits: Await, certain: Collection[Task]) -> bool:
    """Whether a task that awaits tasks continues when those that are certain to continue have ended."""
    return bool(awaits.all_of) and all(up in certain or up.done() for up in awaits.all_of)


def _reached(chains: Iterable[list[Any]]) -> set[int]:
    """The ids of the objects to which these coroutines refer, directly or through a few others."""
    level = [coroutine for chain in chains for coroutine in chain]
    most = REACHED * len(level)
    seen = {id(thing) for thing in level}
    for _ in range(DEPTH):
        below = {id(thing): thing for thing in gc.get_referents(*level) if id(thing) not in seen}
        dicts = [thing for thing in below.values() if type(thing) is dict]  # an object may have one for its attributes
        below |= {id(thing): thing for thing in gc.get_referents(*dicts) if id(thing) not in seen}
        seen |= below.keys()
        if len(seen) > most:
            break
        level = [thing for thing in below.values() if not isinstance(thing, type | asyncio.AbstractEventLoop)]
    return seen


def _awaiting(seen: Mapping[Task, Await], root: Task | None) -> set[Task]:
    """Tasks of the loop that await tasks of the run, without those that await its function: they belong to it, too."""
    return {
        task
        for task in asyncio.all_tasks()
        if task not in seen and (waiter := getattr(task, "_fut_waiter", None)) is not None
        if any(other in seen and other is not root for other in _futures(waiter, list(_chain(task))) or ())
    }


def _chain(task: Task) -> Iterator[Any]:
    """The coroutines and asynchronous generators of a task, each awaited by the one before it."""
    code: Any = task.get_coro()
    while code is not None:
        if type(code).__name__ in _GENERATED:
            code = next((thing for thing in gc.get_referents(code) if type(thing) is AsyncGeneratorType), None)
        if _frame_of(code) is None:
            return
        yield code
        code = code.ag_await if type(code) is AsyncGeneratorType else code.cr_await


def _frame_of(code: Any) -> Any:
    return getattr(code, "ag_frame" if type(code) is AsyncGeneratorType else "cr_frame", None)


def _is_timed(task: asyncio.Task[Any], chain: list[Any]) -> bool:
    """Whether the task is in a block of `asyncio.timeout` or anyio that has a deadline, in one of these coroutines."""
    return any(_cuts_off(task, manager) for coroutine in chain for manager in _managers(coroutine))


def _managers(coroutine: Any) -> Iterator[Any]:
    """The objects to which a coroutine refers. The managers of the `with` blocks in which it is are among them: its
    frame has the bound method that ends such a block; from Python 3.14 on, the function and the manager."""
    todo, seen = [coroutine], set[int]()
    while todo:
        for thing in gc.get_referents(todo.pop()):
            manager: Any = thing.__self__ if type(thing) is MethodType else thing
            yield manager
            if issubclass(type(manager), contextlib._GeneratorContextManagerBase) and id(manager) not in seen:
                seen.add(id(manager))
                todo.append(manager.gen)


def _cuts_off(task: asyncio.Task[Any], manager: Any) -> bool:
    """Whether this is the manager of a block with a deadline that the task has entered and not left."""
    kind = type(manager)
    if issubclass(kind, asyncio.Timeout):
        return manager._task is task and manager._timeout_handler is not None
    if not kind.__module__.startswith("anyio.") or not hasattr(manager, "deadline"):
        return False
    return manager._host_task is task and manager._active and manager.deadline != math.inf


def _groups(task: asyncio.Task[Any], chain: list[Any]) -> Iterator[asyncio.TaskGroup]:
    """The groups of asyncio in whose blocks the task is, in one of these coroutines, or at whose end it waits."""
    inner = _frame_of(chain[-1]).f_locals.get("self") if chain else None
    for manager in (inner, *(manager for coroutine in chain for manager in _managers(coroutine))):
        if isinstance(manager, asyncio.TaskGroup) and getattr(manager, "_parent_task", None) is task:
            yield manager


def _futures(waiter: Any, chain: list[Any]) -> list[Any] | None:
    """The tasks and futures that a task awaits together; None: something else."""
    if isinstance(waiter, asyncio.Task):
        return [waiter]
    if hasattr(waiter, "_children"):  # of asyncio.gather
        return list(waiter._children)
    inner = _frame_of(chain[-1]).f_locals if chain else {}
    if "_wait" in _names(chain):
        return list(inner["fs"])
    group = inner.get("self")
    return list(group._tasks) if isinstance(group, asyncio.TaskGroup) else None


def _refuse_races(task: Task, chain: list[Any]) -> None:
    """Raise Refused for asyncio's ways to await something with a timeout, or the first of several."""
    names = _names(chain)
    if any("_wait_for_one" in name for name in names):
        raise Refused(RACED)
    if "wait_for" in names or _is_timed(task, chain):
        raise Refused(TIMED)
    if "_wait" in names:
        inner = _frame_of(chain[-1]).f_locals
        if inner["timeout_handle"] is not None:
            raise Refused(TIMED)
        if inner["return_when"] != asyncio.ALL_COMPLETED:
            raise Refused(RACED)


def _is_race(names: Iterable[str]) -> bool:
    return any(name == "wait_for" or "_wait_for_one" in name for name in names)


def _names(chain: list[Any]) -> list[str]:
    """The functions of asyncio for waits among these coroutines."""
    codes = [_frame_of(coroutine).f_code for coroutine in chain]
    return [code.co_qualname for code in codes if code.co_filename == tasks.__file__]


def _primitive(chain: list[Any]) -> object:
    """The lock, event or queue of asyncio for which the last of these coroutines waits; None: it is something else."""
    if not chain or _frame_of(chain[-1]).f_code.co_filename not in _PRIMITIVES:
        return None
    return _frame_of(chain[-1]).f_locals.get("self")
