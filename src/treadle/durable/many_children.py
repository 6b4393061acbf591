"""`current().map` and `current().as_completed`: many children of one call.

All children of a call are stored in one commit. `map` has one entry, in parts if its results are large. `as_completed`
has one entry for each wake-up: the indexes of the children that had ended, in the order of their ending.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from treadle.core.errors import BadOption, JobNotDone
from treadle.core.model import Record, State
from treadle.durable.checkpoints import WAIT, Checkpoint, StepRequest
from treadle.durable.children import Children, Spec, error_of_row, is_ended, keep_failure, lose, raw_of, value_of
from treadle.durable.failures import Failure, error_of, failure_of
from treadle.durable.pending import Pending
from treadle.durable.step_taker import StepTaker
from treadle.workflow import encoding_of

T_co = TypeVar("T_co", covariant=True)

PART: Final = 512 * 1024  # bytes of results in one entry, unless a single one is larger
STORED: Final = "many"


def plain(specs: Sequence[Spec], where: str, at_most: int | None = None) -> None:
    """Raise BadOption for jobs that cannot be called together."""
    number: object = at_most
    if at_most is not None and (not isinstance(number, int) or number < 1):
        raise BadOption(f"{where}.at_most", f"expected a positive number of jobs, found {at_most!r}")
    for spec in specs:
        if spec.new.key is not None or spec.new.nonce is not None:
            raise BadOption(where, f"{spec!r} has a key or an id of its own: use call() for it")
        if at_most is not None and spec.new.after:
            raise BadOption(f"{where}.at_most", f"{spec!r} waits for other jobs, so its start cannot be bounded")


def entry_of(request: StepRequest, specs: Sequence[Spec], rows: Mapping[int, Record], **fields: Any) -> Checkpoint:
    """The entry of these ended children, by their indexes."""
    of: dict[int, Any] = {}
    failures: dict[int, Failure] = {}
    values: list[Raw] = []
    for index, row in rows.items():
        if row.state is not State.SUCCEEDED:
            failures[index] = failure_of(request.key, error_of_row(row))[0]
        elif row.function_done or specs[index].decode is None:
            of[index] = encoding_of(row)
        values.append(raw_of(row) if row.state is State.SUCCEEDED else Raw(b"null"))
    value = Raw(msgspec.json.encode(values))
    return request.entry_of(child=STORED, value=value, failures=failures or UNSET, of=of or UNSET, **fields)


def results_in(run: StepTaker, key: str, specs: Sequence[Spec], entry: Checkpoint, start: int = 0) -> list[Any]:
    """The results in an entry, in its order; of children that failed, the errors. `start`: the index of the first one,
    if the entry has no order of its own."""
    assert isinstance(entry.value, Raw)
    values = msgspec.json.decode(entry.value, type=list[Raw])
    failures = {} if isinstance(entry.failures, UnsetType) else entry.failures
    of = {} if entry.of is UNSET else {int(index): tasks for index, tasks in entry.of.items()}
    indexes = range(start, start + len(values)) if isinstance(entry.order, UnsetType) else entry.order
    return [
        error_of(key, failures[index]) if index in failures else value_of(run, specs[index], raw, of.get(index, UNSET))
        for index, raw in zip(indexes, values, strict=True)
    ]


class MapWait:
    """The wait for all children of a call, or until the first of them has failed."""

    kind = WAIT

    def __init__(
        self, run: StepTaker, request: StepRequest, specs: Sequence[Spec], at_most: int | None, keeps_failures: bool
    ) -> None:
        self._run, self.request, self._at_most, self._keeps_failures = run, request, at_most, keeps_failures
        self._children = Children(run, request, specs)

    async def look(self) -> Pending | None:
        run, request, children = self._run, self.request, self._children
        if is_ended(run.checkpoints.entries.get(request.key)):
            return None
        rows = await children.rows()
        failed = [row for row in rows if row is not None and row.state.final and row.state is not State.SUCCEEDED]
        if failed and not self._keeps_failures:
            keep_failure(run, request, failed[0])
            return None
        if all(row is not None and row.state.final for row in rows):
            self._keep([row for row in rows if row is not None])
            return None
        missing = [index for index, row in enumerate(rows) if row is None]
        new = await children.new(missing, self._at_most) if missing else ()
        run.checkpoints.keep(request, request.entry_of(child=STORED, jobs=len(rows)))
        return Pending(children.open(rows), new, needs_all=True, failures_allowed=None if self._keeps_failures else 0)

    def _keep(self, rows: Sequence[Record]) -> None:
        """Record the results, in entries of some size."""
        run, request, specs = self._run, self.request, self._children.specs
        first, *later = _parts(rows)

        def entries() -> Checkpoint:
            for number, part in enumerate(later, 1):
                inside = replace(request, key=_part_key(request.key, number), after=f"{request.key}>&", args=UNSET)
                run.checkpoints.keep(inside, entry_of(inside, specs, part))
            return entry_of(request, specs, first)

        run.keep_or_fail(request, entries)

    def value(self) -> list[Any]:
        run, key = self._run, self.request.key
        results: list[Any] = []
        entry: Checkpoint | None = run.recorded(self.request)
        for number in count(1):
            if entry is None:
                break
            results += results_in(run, key, self._children.specs, entry, len(results))
            entry = run.checkpoints.entries.get(_part_key(key, number))
        return results

    async def conclude(self) -> None:
        if self._run.checkpoints.entries[self.request.key].failure is not UNSET:
            await self.drop()

    def lose(self) -> None:
        lose(self._run, self.request)

    async def drop(self) -> None:
        await self._children.cancel()


def _part_key(key: str, number: int) -> str:
    return f"{key}#p{number}"  # no step of a user has this name


def _parts(rows: Sequence[Record]) -> list[dict[int, Record]]:
    """The rows by index, in groups whose results have at most PART bytes, or in groups of one."""
    parts: list[dict[int, Record]] = [{}]
    size = 0
    for index, row in enumerate(rows):
        length = len(row.result or "") * 4 if not (row.result or "").isascii() else len(row.result or "")
        if size + length > PART and parts[-1]:
            parts.append({})
            size = 0
        size += length + 1
        parts[-1][index] = row
    return parts


class Done(Struct, Generic[T_co], frozen=True):
    """A child that has ended. `index`: its position among the jobs of the call."""

    index: int
    _ending: Any

    def result(self) -> T_co:
        """Its result. Raises JobFailed, JobExpired or JobCancelled."""
        if isinstance(self._ending, JobNotDone):
            raise self._ending
        result: T_co = self._ending
        return result


class EndedWait:
    """The wait for one of several children that the function has not got yet."""

    kind = WAIT

    def __init__(self, run: StepTaker, request: StepRequest, children: Children, seen: Sequence[int]) -> None:
        self._run, self.request, self._children, self._seen = run, request, children, frozenset(seen)

    async def look(self) -> Pending | None:
        run, request, children = self._run, self.request, self._children
        if is_ended(run.checkpoints.entries.get(request.key)):
            return None
        rows = await children.rows()
        ended = {
            index: row
            for index, row in enumerate(rows)
            if row is not None and row.state.final and index not in self._seen
        }
        if ended:
            order = sorted(ended, key=lambda index: (ended[index].ended_at or 0.0, index))
            by_index = {index: ended[index] for index in order}
            run.keep_or_fail(request, lambda: entry_of(request, children.specs, by_index, order=order))
            return None
        missing = [index for index, row in enumerate(rows) if row is None and index not in self._seen]
        new = await children.new(missing) if missing else ()
        if missing:
            run.checkpoints.keep(children.request, children.request.entry_of(child=STORED, jobs=len(rows)))
        return Pending(children.open(rows, self._seen), new)

    def value(self) -> list[Done[Any]]:
        entry = self._run.recorded(self.request)
        assert not isinstance(entry.order, UnsetType)
        results = results_in(self._run, self.request.key, self._children.specs, entry)
        return [Done(index, ending) for index, ending in zip(entry.order, results, strict=True)]

    async def conclude(self) -> None:
        """The other children go on."""

    def lose(self) -> None:
        """It takes part in no race."""

    async def drop(self) -> None:
        await self._children.cancel()


class AsCompleted(Generic[T_co]):
    """The children of a call in the order of their ending: `async for done in ...`, or `for` in a thread."""

    def __init__(
        self, run: StepTaker, children: Children, ask: Callable[[], StepRequest], take: Callable[[Any], Any]
    ) -> None:
        """`take`: returns the value of a wait: a coroutine in a coroutine."""
        self._run, self._children, self._ask, self._take = run, children, ask, take
        self._seen: list[int] = []
        self._ready: list[Done[T_co]] = []

    def _wait(self) -> EndedWait | None:
        if len(self._seen) == len(self._children.specs):
            return None
        return EndedWait(self._run, self._ask(), self._children, self._seen)

    def _next(self, ended: Sequence[Done[T_co]]) -> None:
        self._ready += ended
        self._seen += [done.index for done in ended]

    def __aiter__(self) -> AsyncIterator[Done[T_co]]:
        return self

    async def __anext__(self) -> Done[T_co]:
        if not self._ready:
            if (wait := self._wait()) is None:
                raise StopAsyncIteration
            self._next(await self._take(wait))
        return self._ready.pop(0)

    def __iter__(self) -> Iterator[Done[T_co]]:
        return self

    def __next__(self) -> Done[T_co]:
        if not self._ready:
            if (wait := self._wait()) is None:
                raise StopIteration
            self._next(self._take(wait))
        return self._ready.pop(0)
