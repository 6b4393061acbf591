"""What a job remembers of its runs: one entry per step, and the order they were asked in.

Without it a run could not tell a step that was taken from one that is new, nor notice that the program has changed
since the job began. Pure: nothing here waits.

Every entry says which step was asked before it. So the order is checked where a program has one, and not where it has
none: steps asked in branches that run side by side (tasks of `gather` or a TaskGroup) follow the step before the
branches began. Forms of `after`:

    ""       the first step                  "a"      the step asked after a
    "a!E"    after a, which raised E         "a&"     the first in a branch begun after a
    "a>"     the first asked inside a
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from treadle.core import defaults
from treadle.core.model import Pairs
from treadle.errors import UNREADABLE, BadStep, StepMismatch, TooLarge
from treadle.tasks.options import Sizes

OURS = "treadle:"  # entries of the memo that are no steps begin so


class Entry(Struct, omit_defaults=True):
    """What is remembered of one step. A sleep has `until`; a wait that was given up, `gave_up`."""

    after: str = ""
    value: Raw | UnsetType = UNSET  # JSON, as our own codec writes it
    text: str | UnsetType = UNSET  # what a user's codec wrote, which may be anything
    until: float | UnsetType = UNSET  # a moment by the storage's clock
    left: int | UnsetType = UNSET  # the version of the run that went to sleep
    gave_up: bool = False
    turn: int | UnsetType = UNSET  # which row of its signal a wait has used up

    @property
    def result(self) -> str | None:
        """The encoded value; None if this is no entry of a value."""
        if isinstance(self.value, UnsetType):
            return None if isinstance(self.text, UnsetType) else self.text
        return bytes(self.value).decode()


read_entry = msgspec.json.Decoder(Entry).decode


class Branch:
    """One line of execution: steps asked in it have an order."""

    __slots__ = ("last", "memo", "place")

    def __init__(self, memo: Checkpoints, place: object, last: str) -> None:
        self.memo, self.place, self.last = memo, place, last


_branch: ContextVar[Branch | None] = ContextVar("treadle_strand", default=None)


class Asked(Struct, frozen=True):
    """A step as it was asked for: its key, what was before it, and what is remembered of it."""

    key: str
    after: str
    entry: Entry | None
    branch: Branch


class Checkpoints:
    """The steps of one job, as far as they were stored, and those of this run."""

    def __init__(self, job: str, stored: Pairs, sizes: Sizes, place: object = None) -> None:
        """`place` is where the job's own function runs; None: wherever the first step is asked."""
        self.job, self._sizes = job, sizes
        self.entries: dict[str, Entry] = {}
        self.unsaved: dict[str, str] = {}  # written by this run, and not known to be stored
        self._size = 0
        for key, text in stored:
            if key.startswith(OURS):
                continue
            self._size += len(key.encode()) + len(text.encode())
            try:
                self.entries[key] = read_entry(text)
            except UNREADABLE as error:
                raise BadStep(key, f"what is stored of it cannot be read: {error}") from None
        self._next = {entry.after: key for key, entry in self.entries.items() if not entry.after.endswith("&")}
        self._counts: dict[str, int] = {}
        self._owners: dict[str, Branch] = {}
        self._failed: dict[str, str] = {}  # steps that raised in this run -> the exception's class
        self._root = None if place is None else Branch(self, place, "")

    # --- asking

    def ask(self, name: str) -> Asked:
        """The next step of that name. Raises BadStep, StepMismatch; TooLarge where there are too many."""
        check_name(name)
        branch = self._here()
        owner = self._owners.setdefault(name, branch)
        if owner is not branch:
            raise BadStep(
                name,
                "is asked for in two places that have no order (branches side by side, steps within steps), so a "
                f"later run could not tell them apart; give each a name of its own, such as f'{name}:{{i}}'",
            )
        count = self._counts[name] = self._counts.get(name, 0) + 1
        key = name if count == 1 else f"{name}#{count}"
        after = branch.last
        if after in self._failed:
            after = f"{after}!{self._failed[after]}"
        entry = self.entries.get(key)
        self._check(key, after, entry)
        branch.last = key
        return Asked(key, after, entry, branch)

    def _here(self) -> Branch:
        """The strand of the caller: its own, or a new one if it is a branch."""
        place = _place()
        if self._root is None:
            self._root = Branch(self, place, "")
        found = _branch.get()
        if found is None or found.memo is not self:
            found = self._root
        if found.place != place:
            last = found.last if found.last.endswith(("&", ">")) else f"{found.last}&"
            found = Branch(self, place, last)
        _branch.set(found)
        return found

    def _check(self, key: str, after: str, entry: Entry | None) -> None:
        before = _plain(after)
        if entry is not None:
            if _plain(entry.after) != before and not self._went_another_way(entry.after):
                place = f"after {_shown(entry.after)!r}" if entry.after else "as the first"
                raise StepMismatch(self.job, key, _shown(before), f"it {place}")
            return
        # Before it runs: a step that was only renamed would do again what the other has done.
        there = None if after.endswith("&") else self._next.get(after)
        if there is not None and there != key:
            raise StepMismatch(self.job, key, _shown(before), f"{there!r} at this point")
        if len(self.entries) >= self._sizes.steps:
            raise TooLarge(f"the list of steps of job {self.job}", len(self.entries) + 1, self._sizes.steps)

    def _went_another_way(self, after: str) -> bool:
        """Whether a step before this point had raised when it was recorded, and has not raised the same now: then the
        way here may differ, though the program is the same."""
        while after:
            key, _, raised = after.partition("!")
            if raised and self._failed.get(key) != raised:
                return True
            entry = self.entries.get(_shown(key))
            after = "" if entry is None else entry.after
        return False

    @contextmanager
    def within(self, asked: Asked) -> Iterator[None]:
        """While its function runs: steps asked in there are its own, and come no more once it is remembered."""
        token = _branch.set(Branch(self, _place(), f"{asked.key}>"))
        running = _running.set(f"{self.job}:{asked.key}")
        try:
            yield
        except BaseException as error:
            self._failed[asked.key] = type(error).__name__
            raise
        finally:
            _running.reset(running)
            _branch.reset(token)

    # --- remembering

    def keep(self, asked: Asked, entry: Entry) -> None:
        """Remember it from now on. Raises TooLarge; nothing is remembered then."""
        text = msgspec.json.encode(entry).decode()
        size = len(text.encode())
        if size > self._sizes.step:
            raise TooLarge(f"what step {asked.key!r} of job {self.job} remembers", size, self._sizes.step)
        before = self.entries.get(asked.key)
        known = 0 if before is None else len(msgspec.json.encode(before)) + len(asked.key.encode())
        whole = self._size - known + size + len(asked.key.encode())
        if whole > self._sizes.memo:
            raise TooLarge(f"what the steps of job {self.job} remember, with {asked.key!r},", whole, self._sizes.memo)
        self._size = whole
        self.entries[asked.key] = entry
        self.unsaved[asked.key] = text

    def saved(self, pairs: Pairs) -> None:
        """These are stored."""
        for key, text in pairs:
            if self.unsaved.get(key) == text:
                del self.unsaved[key]


def valued(asked: Asked, text: str, own_codec: bool, turn: int | UnsetType = UNSET) -> Entry:
    """The entry of a value that a codec has written."""
    if own_codec:
        return Entry(asked.after, text=text, turn=turn)
    return Entry(asked.after, value=Raw(text.encode()), turn=turn)


def check_name(name: Any) -> None:
    """Raise BadStep for what cannot name a step."""
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
            f"expected a name of 1-{defaults.MAX_NAME} printable characters without '#' (ours: the second step of a "
            "name is 'name#2'), not ending in '&' or '>' nor beginning with 'treadle:'",
        )


_running: ContextVar[str | None] = ContextVar("treadle_step", default=None)


def running_step() -> str | None:
    """The key of the step whose function runs here, the job in front."""
    return _running.get()


def _place() -> object:
    """What cannot do two things at once: this task of the loop, or this thread."""
    try:
        return asyncio.current_task() or threading.get_ident()
    except RuntimeError:
        return threading.get_ident()


def _plain(after: str) -> str:
    """Without what the step before it raised, and side by side or not: the same step may follow both."""
    return after.partition("!")[0].rstrip("&")


def _shown(after: str) -> str:
    return after.rstrip("&>")
