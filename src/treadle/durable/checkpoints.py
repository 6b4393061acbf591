"""The checkpoints of a job: one entry per step, and the order in which its function takes the steps.

They show whether a step was taken before, and whether the program has changed since the job began. Nothing here waits.

Each entry names the step that was requested before it, so the order is checked where the program has one. Steps in
branches that run concurrently (tasks of `gather` or a TaskGroup) have no order among each other: each branch follows
the step before it began. Forms of `after`:

    ""       the first step                  "a&"     the first step of a branch that began after a
    "a"      the step after a                "a>"     the first step inside a

A step that raised has an entry as soon as the function takes another step: the function has caught the error, and no
later run may decide otherwise.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadStep, StepMismatch
from treadle.core.model import OURS, Pairs
from treadle.core.own_checkpoints import own_checkpoints
from treadle.core.stored_text import FORMS, lacks
from treadle.durable.branches import Branch, Position, begun_at, has_ended, own_name, place_here, position_here
from treadle.durable.failures import Failure
from treadle.durable.history_size import HistorySize
from treadle.tasks.options import Sizes

log = logging.getLogger("treadle")


class Checkpoint(Struct, omit_defaults=True, gc=False):  # a history is thousands of them, without a cycle
    """The stored data of one step. A sleep has `until`; a wait that timed out has `gave_up`.

    A step that failed has `failure`. One that is tried again has `tries`, and `until` while its next try is not due. A
    call has `child` before its job has ended.
    """

    after: str = ""
    value: Raw | UnsetType = UNSET  # JSON from Treadle's codec
    text: str | UnsetType = UNSET  # text from a user's codec, in any format
    until: float | UnsetType = UNSET  # the instant at which the sleep is over, by the storage's clock
    over: bool = False  # of a sleep: the function has passed it, whatever the clock says later
    gave_up: bool = False
    failure: Failure | UnsetType = UNSET
    turn: int | UnsetType = UNSET  # for a wait, the number of the row of the mailbox that it used
    ask: str | UnsetType = UNSET  # the tag of the row that takes the answer to that message
    tries: int | UnsetType = UNSET  # how often the function of the step was called, if that has options of its own
    args: str | UnsetType = UNSET  # a checksum of the step's arguments, if they can be encoded
    child: str = ""  # of a call, the id of its job; of several, anything; of an approval, the id of its row
    jobs: int = 0  # of several, how many
    taken_over: bool = False  # of a fork: the step is one of the job from which it was forked
    # Of a time limit, and of a wait with a timeout: how often the job had been reopened when it began, while nothing
    # has followed its end. The next reopening forgets it.
    life: int | UnsetType = UNSET
    lost_race: bool = False  # of a call that lost a race: its jobs are cancelled, or go on by themselves
    failures: dict[int, Failure] | UnsetType = UNSET  # of several jobs, those that failed; the value is a list
    cut: str = ""  # of a time limit, the step or wait at which it took effect
    order: list[int] | UnsetType = UNSET  # of several jobs, the indexes of those whose results the value has
    lock: str = ""  # of a lock, the turn of the job
    row: str = ""  # of a lock, its own row
    exit: int = 0  # of a lock that was left: LEAVING until its turn is known to have ended
    of: Any = UNSET  # of a call, the tasks that encoded its result, if it is not that of the job's own function

    @property
    def result(self) -> str | None:
        """The encoded value; None if the entry has none."""
        if isinstance(self.value, UnsetType):
            return None if isinstance(self.text, UnsetType) else self.text
        return str(self.value, "utf-8")

    @property
    def has_value(self) -> bool:
        """Whether there is a `result`, which takes some time to read."""
        return self.value is not UNSET or self.text is not UNSET

    @property
    def is_tried(self) -> bool:
        """Whether the step waits for its next try."""
        return isinstance(self.tries, int) and isinstance(self.until, float)

    @property
    def is_failed_attempt(self) -> bool:
        """Whether a try of a step with limits has failed, and with it this attempt: the next one makes another try."""
        return self.is_tried and self.until == 0.0 and self.failure is not UNSET


read_entry = msgspec.json.Decoder(Checkpoint).decode
_read_many = msgspec.json.Decoder(list[Checkpoint]).decode
LEAVING, LEFT = 1, 2
# Kinds of requests: a mark is not awaited, and a call is that of a step's function. A sleep that was over when the job
# was claimed is AT_ONCE: it has no entry, so runs over the history pass it whether the job had got there or not.
STEP, SLEEP, AT_ONCE, WAIT, MARK, CALL = "step", "sleep", "at once", "wait", "mark", "call"


class StepRequest(Position):
    """A step that the function asked for: its key, the step before it, its stored entry, and the position behind it. A
    replay makes one for each step."""

    after: str
    entry: Checkpoint | None
    args: str | UnsetType = UNSET
    number: int = 1  # among the steps of its name
    is_open: bool = True  # it has not ended

    @property
    def is_recorded(self) -> bool:
        """Whether its entry has a value, and nothing else is to be decided."""
        entry = self.entry
        return entry is not None and entry.failure is UNSET and (entry.value is not UNSET or entry.text is not UNSET)

    def entry_of(self, **fields: Any) -> Checkpoint:
        """An entry of this step."""
        return Checkpoint(self.after, args=self.args, **fields)


class Raised(NamedTuple):
    """An error that a step raised, and the task that called the step's function (None: a thread did). An error that has
    left the block of a lock has `leave` instead, which leaves the lock if the function catches it. That of a timeout
    has neither."""

    request: StepRequest
    failure: Failure | None
    task: object
    leave: Callable[[], Awaitable[None]] | None = None


class Checkpoints:
    """The steps of one job, stored before or in this run."""

    def __init__(
        self, job: str, stored: Pairs, sizes: Sizes, place: object = None, round: int = 0, offload: int = 0
    ) -> None:
        """`place`: the task or thread that runs the job's function; None: the one that asks for the first step.
        `round`: how often the job was reopened. `offload`: bytes above which a text goes to the blob store; 0: there is
        none."""
        self.job, self.round, self.size = job, round, HistorySize(job, sizes, offload)
        self.written = ""  # a stream to which the function of this run has written outside of its steps
        self.unsaved: dict[str, str] = {}  # written by this run, and not known to be stored
        self.caught: set[str] = set()  # entries that are to be stored before another function runs: what was decided
        own = own_checkpoints(stored)
        texts = {key: text for key, text in stored if key not in own}
        self.entries = _read_all(texts)
        dated = [key for key, entry in self.entries.items() if entry.failure is not UNSET or entry.life is not UNSET]
        for key in [key for key in dated if self._is_forgotten(key, self.entries[key])]:
            del self.entries[key], texts[key]  # an operator has reopened the job, so that this begins again
        self.size.add_all(texts)
        self._next = {entry.after: key for key, entry in self.entries.items()}
        self._asked: dict[str, StepRequest] = {}  # the last step of each name
        self.around: set[str] = set()  # steps inside of which another one was requested
        self.leaving: list[Callable[[], Awaitable[None]]] = []  # leave the locks whose blocks were left by an error
        self.undecided: dict[str, Raised] = {}  # errors of which it is not known whether the function catches them
        self.if_cut_off: dict[str, Callable[[], None]] = {}  # called if it is decided that this was cut off
        self._root = None if place is None else Branch(self, place, "")
        self.tasks: set[asyncio.Task[Any]] = set()  # in which steps or waits were requested, without that of the job

    def _is_forgotten(self, key: str, entry: Checkpoint) -> bool:
        """Whether an operator has reopened the job since the step failed or the time began, and nothing has followed:
        the step is tried again, and the time begins anew."""
        then = entry.failure.round if isinstance(entry.failure, Failure) else entry.life
        return isinstance(then, int) and then < self.round

    # --- asking for steps

    def ask(self, name: str, args: str | UnsetType = UNSET, key: str | None = None) -> StepRequest:
        """The next step of that name. `key`: its key, if that does not depend on the order of the branches. Raises
        BadStep, StepMismatch, and TooLarge if there are too many steps."""
        branch, before = self.here(), None if key is not None else self._asked.get(name)
        is_numbered, number = key is None, 1 if before is None else before.number + 1
        if before is None:
            check_name(name)
        elif before.branch is not branch:
            self._own(name, branch, before)
        if key is None:
            key = name if number == 1 else f"{name}#{number}"
        if self.undecided:
            self.decide(branch)
        entry, after = self.entries.get(key), branch.last
        if entry is None or entry.after != after or entry.args != args:
            self._check(key, after, entry, args)
        branch.last, branch.taken = key, branch.taken + 1
        request = StepRequest(branch, key, branch.taken, after, entry, args, number)
        if is_numbered:
            self._asked[name] = request
        position_here.set(request)
        if branch.outer:
            self.around.update(branch.outer)
        return request

    def end(self, request: StepRequest) -> None:
        """The step has returned or raised."""
        request.is_open = False

    def reach(self, request: StepRequest, kind: str = STEP) -> None:
        """The function awaits this step, sleep or wait, passes this mark, or is about to call the function of the step.
        Does nothing in a run of a job. Coroutines call `DurableState.reached`."""

    @property
    def has_asked(self) -> bool:
        """Whether this run, or an earlier one, has asked for a step, sleep or wait."""
        return bool(self.entries or self._asked)

    def is_over(self, key: str) -> bool:
        """Whether the step has its result or its failure."""
        entry = self.entries.get(key)
        return entry is not None and not entry.is_tried

    def following(self, key: str) -> str | None:
        """A recorded step directly behind this one, or the first one behind ""; with a form of `after`, one in that
        place. None: no earlier run has stored one."""
        return self._next.get(key)

    def here(self) -> Branch:
        """The branch of the caller: a known one, or a new one."""
        place, position = place_here(), position_here.get()
        if position is not None and position.branch.place == place and position.branch.checkpoints is self:
            return position.branch
        if self._root is None:
            self._root = Branch(self, place, "")
        if position is None or position.branch.checkpoints is not self:
            position = Position(self._root, "", 0)  # this place began before the first step
        if position.branch.place == place:
            return position.branch
        branch = begun_at(position, place)
        if isinstance(place, asyncio.Task):
            self.tasks.add(place)
        position_here.set(branch.position)
        return branch

    def _own(self, name: str, branch: Branch, taken: StepRequest) -> None:
        """Raise BadStep if another branch that may still run has taken a step of that name."""
        owner = taken.branch
        in_order = branch.follows(taken) or (isinstance(owner.place, asyncio.Task) and has_ended(owner.place))
        if taken.is_open or not in_order or owner.outer != branch.outer:
            raise BadStep(
                name,
                "is taken in two branches or steps that have no order, so a later run could not tell them apart; "
                f"{own_name(name)}",
            )

    def _check(self, key: str, after: str, entry: Checkpoint | None, args: str | UnsetType) -> None:
        before = _plain(after)
        if entry is not None:
            if _plain(entry.after) != before:
                place = f"after {_shown(entry.after)!r}" if entry.after else "as the first"
                raise StepMismatch(self.job, key, _shown(before), f"it {place}")
            if entry.args != args and UNSET not in (entry.args, args):
                raise StepMismatch.of_arguments(self.job, key)
            return
        if self.written:
            raise BadStep(key, f"the function has written to the stream {self.written!r} before, outside of a step")
        # Checked before the step runs: a renamed step would repeat the effects of the one it replaces.
        there = None if after.endswith("&") else self._next.get(after)
        if there is not None and there != key:
            raise StepMismatch(self.job, key, _shown(before), f"{there!r} at this point")
        self.size.refuse_more(len(self.entries))

    # --- errors

    def raised(self, request: StepRequest, failure: Failure) -> None:
        """Note that this step raises an error here. It is stored if the function catches it and continues."""
        self.undecided[request.key] = Raised(request, failure, place_here())

    def timed_out(self, request: StepRequest) -> None:
        """Note that the timeout of this wait or time limit raises an error here. No reopening of the job forgets it if
        the function catches the error and continues."""
        self.undecided[request.key] = Raised(request, None, place_here())

    def left_by_error(self, request: StepRequest, leave: Callable[[], Awaitable[None]]) -> None:
        """Note that an error leaves the block of a lock here. The lock is left if the function catches it."""
        self.undecided[request.key] = Raised(request, None, place_here(), leave)

    def decide_at(self, request: StepRequest) -> None:
        """`decide`, when the function awaits what it requested before: it may have caught an error in between."""
        if self.undecided and place_here() == request.branch.place:
            self.decide(request.branch)

    def decide(self, branch: Branch) -> None:
        """The function continues in this branch: store the errors that have reached it, as it has caught them."""
        for key, (request, failure, task, leave) in tuple(self.undecided.items()):
            if request.branch.has_passed_on(task, branch):
                del self.undecided[key]
                before = self.entries.get(key)
                if leave is not None:
                    self.leaving.append(leave)
                if failure is None:
                    if before is not None and (before.cut or before.gave_up):
                        self.keep(request, replace(before, life=UNSET))
                        self.caught.add(key)
                    continue
                tries = UNSET if before is None else before.tries
                self.keep(request, request.entry_of(failure=replace(failure, round=UNSET), tries=tries), is_last=True)
                self.caught.add(key)
                if (undo := self.if_cut_off.pop(key, None)) is not None:
                    undo()

    # --- storing

    def keep(self, request: StepRequest, entry: Checkpoint, is_last: bool = False) -> None:
        """Add the entry, to be stored. Raises TooLarge, and then adds nothing. Its job fails at once: a further attempt
        would take the same steps. `is_last`: the job fails with it, so it is stored whatever the sizes of the
        others."""
        text, key, before = msgspec.json.encode(entry).decode(), request.key, self.entries.get(request.key)
        replaced = None if before is None else len(msgspec.json.encode(before))
        self.size.keep(key, len(text.encode()), replaced, len(self.entries), is_last)
        self.entries[key] = entry
        self.unsaved[key] = text

    def pass_sleep(self, request: StepRequest) -> None:
        """Note that the function has passed this sleep, with the next call that stores checkpoints."""
        entry = self.entries.get(request.key)
        if entry is not None and not entry.over:
            self.keep(request, replace(entry, over=True))

    def note(self, pair: tuple[str, str]) -> None:
        """Store a checkpoint of the engine, which is not a step, with the next call that stores checkpoints."""
        self.unsaved[pair[0]] = pair[1]

    def saved(self, pairs: Pairs) -> None:
        """Note that these are stored."""
        for key, text in pairs:
            if self.unsaved.get(key) == text:
                del self.unsaved[key]
        self.caught &= self.unsaved.keys()


def valued(request: StepRequest, text: str, own_codec: bool, **fields: Any) -> Checkpoint:
    """The entry of an encoded value."""
    if own_codec:
        return request.entry_of(text=text, **fields)
    return request.entry_of(value=Raw(text.encode()), **fields)


def _read_all(texts: Mapping[str, str]) -> dict[str, Checkpoint]:
    """The entries of these texts, all in one call: a replay has thousands. Raises BadStep."""
    joined = f"[{','.join(texts.values())}]"
    if not any(form in joined for form in FORMS):
        with suppress(*UNREADABLE):
            return dict(zip(texts, _read_many(joined), strict=True))
    return {key: _read(key, text) for key, text in texts.items()}


def _read(key: str, text: str) -> Checkpoint:
    if text.startswith(FORMS) and (why := lacks(text)) is not None:
        raise BadStep(key, f"its value cannot be read: {why}")
    try:
        return read_entry(text)
    except UNREADABLE as error:
        raise BadStep(key, f"its checkpoint cannot be read: {error}") from None


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


def _plain(after: str) -> str:
    """`after` without the mark of a branch: the same step may follow with or without it."""
    return after.rstrip("&")


def _shown(after: str) -> str:
    return after.rstrip("&>")
