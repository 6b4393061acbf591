"""The undos that a run has registered: functions that run, last one first, if the job does not succeed."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from treadle.core.model import Record
from treadle.durable.backend import DurableBackend
from treadle.durable.branches import Branch
from treadle.durable.checkpoints import Checkpoint, Checkpoints, StepRequest
from treadle.durable.fingerprints import checksum_of
from treadle.durable.step_codec import is_async
from treadle.policy import cleanups
from treadle.policy.parts import is_part


class Undo(Struct, eq=False):
    """A function with its arguments.

    shown  its name
    branch, behind  where it was registered, and the last step that was requested there before
    is_foreign  whether the step that it undoes was taken by the job from which this one was forked; None: no step or
                call has followed
    """

    shown: str
    branch: Branch
    behind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_foreign: bool | None = None


class Undos:
    """Those of one run."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self.registered: list[Undo] = []
        self._undecided: list[Undo] = []
        self.is_stored = is_part(record.job) or cleanups.is_stored(record)

    def add(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], branch: Branch) -> None:
        shown = getattr(function, "__name__", type(function).__name__).strip("<>")
        self.registered.append(Undo(shown, branch, branch.last, _without_result(function), args, kwargs))
        self._undecided.append(self.registered[-1])

    def follow(self, request: StepRequest) -> None:
        """A step or call is requested: undos that were registered before it undo what it does."""
        for undo in self._undecided:
            if request.branch.is_in(undo.branch):
                undo.is_foreign = request.entry is not None and request.entry.taken_over
        self._undecided = [undo for undo in self._undecided if undo.is_foreign is None]

    def in_order(self, history: Mapping[str, Checkpoint]) -> list[tuple[str, Undo]]:
        """The undos of this job, with the names of their steps, in the order in which the history has the steps before
        them: that in which branches register theirs may differ in the next run."""
        place = {key: number for number, key in enumerate(history, 1)}
        for undo in self._undecided:
            entry = history.get(undo.behind.rstrip("&>"))
            undo.is_foreign = entry is not None and entry.taken_over
        last, count = dict[Branch, int](), Counter[tuple[Branch, int]]()
        keyed = list[tuple[tuple[int, int, str], Undo]]()
        for undo in self.registered:
            before = last[undo.branch] = max(place.get(undo.behind.rstrip("&>"), 0), last.get(undo.branch, 0))
            count[undo.branch, before] += 1
            args = checksum_of(undo.args, undo.kwargs)
            keyed.append(((before, count[undo.branch, before], args if isinstance(args, str) else ""), undo))
        keyed.sort(key=lambda pair: pair[0])
        numbered = [(f"undo:{number}:{undo.shown}", undo) for number, (_, undo) in enumerate(keyed, 1)]
        return [(name, undo) for name, undo in numbered if not undo.is_foreign]

    @property
    def to_store(self) -> bool:
        """Whether the cleanup job must be stored before the next effect."""
        return bool(self.registered) and not self.is_stored

    async def store(self, backend: DurableBackend, checkpoints: Checkpoints) -> None:
        """Store the cleanup job, and note that with the next step."""
        await backend.store(cleanups.cleanup_of(self._record))
        self.is_stored = True
        checkpoints.note((cleanups.STORED, str(self._record.reopenings)))


def _without_result(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function without its result, which nothing reads: it may be one that cannot be stored."""

    async def awaited(*args: Any, **kwargs: Any) -> None:
        await function(*args, **kwargs)

    def called(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        return value if inspect.isawaitable(value) else None

    return awaited if is_async(function) else called
