"""The checkpoints of a job: one entry per step, and the order in which its function takes the steps.

They show whether a step was taken before, and whether the program has changed since the job began. Nothing here waits.

Each entry names the step that was requested before it, so the order is checked where the program has one. Steps in
branches that run concurrently (tasks of `gather` or a TaskGroup) have no order among each other: each branch follows
the step before it began. Forms of `after`:

    ""       the first step                  "a"      the step after a
    "a!E"    after a, which raised E         "a&"     the first step of a branch that began after a
    "a>"     the first step inside a
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from treadle.core import defaults
from treadle.core.errors import CODE, UNREADABLE, BadResult, BadStep, StepMismatch, TooLarge
from treadle.core.model import OURS, Pairs
from treadle.core.stored_text import lacks
from treadle.tasks.options import Sizes

log = logging.getLogger("treadle")

MOST_PROBLEM = (
    1_000  # characters of the stored reason why a result cannot be stored; a codec of the user may give a longer one
)


class Failure(Struct, frozen=True):
    """The error of a step. Each later run raises it in the place of the step, and does not call the function again.

    type  the name of the class in `treadle.errors`
    args  what its constructor was called with
    """

    type: str
    args: tuple[Any, ...]


class Checkpoint(Struct, omit_defaults=True):
    """The stored data of one step. A sleep has `until`; a wait that timed out has `gave_up`; a step whose result could
    not be stored has `failure` in its place."""

    after: str = ""
    value: Raw | UnsetType = UNSET  # JSON from Treadle's codec
    text: str | UnsetType = UNSET  # text from a user's codec, in any format
    until: float | UnsetType = UNSET  # the instant at which the sleep is over, by the storage's clock
    gave_up: bool = False
    failure: Failure | UnsetType = UNSET
    turn: int | UnsetType = UNSET  # for a wait, the number of the signal row that it used

    @property
    def result(self) -> str | None:
        """The encoded value; None if the entry has none."""
        if isinstance(self.value, UnsetType):
            return None if isinstance(self.text, UnsetType) else self.text
        return bytes(self.value).decode()


read_entry = msgspec.json.Decoder(Checkpoint).decode


class Branch:
    """A branch of execution, in which steps have an order."""

    __slots__ = ("checkpoints", "last", "place")

    def __init__(self, checkpoints: Checkpoints, place: object, last: str) -> None:
        self.checkpoints, self.place, self.last = checkpoints, place, last


_branch: ContextVar[Branch | None] = ContextVar("treadle_branch", default=None)


class StepRequest(Struct, frozen=True):
    """A step that the function asked for: its key, the step before it, and its stored entry."""

    key: str
    after: str
    entry: Checkpoint | None
    branch: Branch


class Checkpoints:
    """The steps of one job, stored before or in this run."""

    def __init__(self, job: str, stored: Pairs, sizes: Sizes, place: object = None) -> None:
        """`place`: the task or thread that runs the job's function; None: the one that asks for the first step."""
        self.job, self._sizes = job, sizes
        self.entries: dict[str, Checkpoint] = {}
        self.unsaved: dict[str, str] = {}  # written by this run, and not known to be stored
        self._size = 0
        for key, text in stored:
            if key.startswith(OURS):
                continue
            self._size += len(key) + len(text) if key.isascii() and text.isascii() else len(f"{key}{text}".encode())
            if (why := lacks(text)) is not None:
                raise BadStep(key, f"its value cannot be read: {why}")
            try:
                self.entries[key] = read_entry(text)
            except UNREADABLE as error:
                raise BadStep(key, f"its checkpoint cannot be read: {error}") from None
        self._next = {entry.after: key for key, entry in self.entries.items() if not entry.after.endswith("&")}
        self._counts: dict[str, int] = {}
        self._owners: dict[str, Branch] = {}
        self._failed: dict[str, str] = {}  # steps that raised in this run, with the exception's class
        self._root = None if place is None else Branch(self, place, "")

    # --- asking for steps

    def ask(self, name: str) -> StepRequest:
        """The next step of that name. Raises BadStep, StepMismatch, and TooLarge if there are too many steps."""
        if name not in self._counts:
            check_name(name)
        branch = self._here()
        owner = self._owners.setdefault(name, branch)
        if owner is not branch:
            raise BadStep(
                name,
                "is taken in two branches or steps that have no order, so a later run could not tell them apart; give "
                f"each its own name, such as f'{name}:{{i}}'",
            )
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = name if count == 1 else f"{name}#{count}"
        after = branch.last
        if after in self._failed:
            after = f"{after}!{self._failed[after]}"
        entry = self.entries.get(key)
        self._check(key, after, entry)
        branch.last = key
        return StepRequest(key, after, entry, branch)

    def following(self, key: str) -> str | None:
        """The recorded step directly behind this one, or the first one behind ""; None: there is none."""
        return self._next.get(key)

    def _here(self) -> Branch:
        """The branch of the caller: a known one, or a new one."""
        place = _place()
        if self._root is None:
            self._root = Branch(self, place, "")
        branch = _branch.get()
        if branch is None or branch.checkpoints is not self:
            branch = self._root
        if branch.place != place:
            last = branch.last if branch.last.endswith(("&", ">")) else f"{branch.last}&"
            branch = Branch(self, place, last)
        _branch.set(branch)
        return branch

    def _check(self, key: str, after: str, entry: Checkpoint | None) -> None:
        before = _plain(after)
        if entry is not None:
            if _plain(entry.after) != before and not self._went_another_way(entry.after):
                place = f"after {_shown(entry.after)!r}" if entry.after else "as the first"
                raise StepMismatch(self.job, key, _shown(before), f"it {place}")
            return
        # Checked before the step runs: a renamed step would repeat the effects of the one it replaces.
        there = None if after.endswith("&") else self._next.get(after)
        if there is not None and there != key:
            raise StepMismatch(self.job, key, _shown(before), f"{there!r} at this point")
        if len(self.entries) >= self._sizes.steps:
            error = TooLarge(f"the list of steps of job {self.job}", len(self.entries) + 1, self._sizes.steps)
            error.fails_as = CODE
            raise error

    def _went_another_way(self, after: str) -> bool:
        """Whether a step before this point raised when this was recorded, and has not raised the same in this run. If
        so, the same program may have reached this step by another branch of its code."""
        while after:
            key, _, raised = after.partition("!")
            if raised and self._failed.get(key) != raised:
                return True
            entry = self.entries.get(_shown(key))
            after = "" if entry is None else entry.after
        return False

    @contextmanager
    def within(self, request: StepRequest) -> Iterator[None]:
        """While the step's function runs: steps inside belong to it, and do not run again once it is stored."""
        token = _branch.set(Branch(self, _place(), f"{request.key}>"))
        running = _running.set(request.key)
        try:
            yield
        except BaseException as error:
            self._failed[request.key] = type(error).__name__
            raise
        finally:
            _running.reset(running)
            _branch.reset(token)

    # --- storing

    def keep(self, request: StepRequest, entry: Checkpoint) -> None:
        """Add the entry, to be stored. Raises TooLarge, and then adds nothing. Its job fails at once: a further attempt
        would take the same steps. A failure is stored whatever the sizes of the others, as it is the last step."""
        text = msgspec.json.encode(entry).decode()
        size = len(text.encode())
        if size > defaults.WARN_AT * self._sizes.step:
            self._warn(f"the result of step {request.key!r} has {size:,} of at most {self._sizes.step:,} bytes")
        before = self.entries.get(request.key)
        known = 0 if before is None else len(msgspec.json.encode(before)) + len(request.key.encode())
        whole = self._size - known + size + len(request.key.encode())
        if isinstance(entry.failure, UnsetType):
            if size > self._sizes.step:
                raise TooLarge.of_result(
                    f"the checkpoint of step {request.key!r} of job {self.job}", size, self._sizes.step
                )
            if whole > self._sizes.checkpoints:
                of_all = f"the sum of the checkpoints of job {self.job}, with {request.key!r},"
                raise TooLarge.of_result(of_all, whole, self._sizes.checkpoints)
        if self._size <= defaults.WARN_AT * self._sizes.checkpoints < whole:
            self._warn(f"its steps have {whole:,} of at most {self._sizes.checkpoints:,} bytes")
        if before is None and len(self.entries) + 1 == math.ceil(defaults.WARN_AT * self._sizes.steps):
            self._warn(f"it has {len(self.entries) + 1:,} of at most {self._sizes.steps:,} steps")
        self._size = whole
        self.entries[request.key] = entry
        self.unsaved[request.key] = text

    def _warn(self, what: str) -> None:
        log.warning("job %s nears a limit of durable code: %s; current().restart() begins anew", self.job, what)

    def note(self, pair: tuple[str, str]) -> None:
        """Store a checkpoint of the engine, which is not a step, with the next call that stores checkpoints."""
        self.unsaved[pair[0]] = pair[1]

    def saved(self, pairs: Pairs) -> None:
        """Note that these are stored."""
        for key, text in pairs:
            if self.unsaved.get(key) == text:
                del self.unsaved[key]


def valued(request: StepRequest, text: str, own_codec: bool, turn: int | UnsetType = UNSET) -> Checkpoint:
    """The entry of an encoded value."""
    if own_codec:
        return Checkpoint(request.after, text=text, turn=turn)
    return Checkpoint(request.after, value=Raw(text.encode()), turn=turn)


def failed(request: StepRequest, error: BadResult | TooLarge) -> Checkpoint:
    """The entry of a step that has run, and whose result cannot be stored."""
    if isinstance(error, BadResult):
        return Checkpoint(request.after, failure=Failure("BadResult", (error.task, error.problem[:MOST_PROBLEM])))
    return Checkpoint(request.after, failure=Failure("TooLarge", (error.what, error.size, error.limit)))


def error_of(key: str, failure: Failure) -> BadResult | TooLarge | BadStep:
    """The error to raise in the place of this step."""
    match failure.type, failure.args:
        case "BadResult", [str(task), str(problem)]:
            return BadResult(task, problem)
        case "TooLarge", [str(what), int(size), int(limit)]:
            return TooLarge.of_result(what, size, limit)
    return BadStep(key, f"another version of Treadle stored that it failed with {failure.type}")


def check_name(name: Any) -> None:
    """Raise BadStep unless this can be the name of a step."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= defaults.MAX_NAME
        or not name.isprintable()
        or "#" in name
        or name.endswith(("&", ">"))
        or name.startswith(OURS)
    ):
        raise BadStep(
            str(name)[:60],
            f"expected a name of 1-{defaults.MAX_NAME} printable characters without '#' (Treadle names the second "
            "step of a name 'name#2'). It must not end in '&' or '>', or begin with 'treadle:'",
        )


_running: ContextVar[str | None] = ContextVar("treadle_step", default=None)


def running_step() -> str | None:
    """The key of the step whose function runs here; None outside a step."""
    return _running.get()


def _place() -> object:
    """The current task of the event loop, or this thread: the caller's branch, as neither runs two things at once."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def _plain(after: str) -> str:
    """`after` without the marks for an exception and for a branch: the same step may follow with or without them."""
    return after.partition("!")[0].rstrip("&") if "!" in after or "&" in after else after


def _shown(after: str) -> str:
    return after.rstrip("&>")
