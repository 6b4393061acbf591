"""The history of a fleet: plain entries that its processes write, and that the checker compares with the rows.

A process writes an entry either before an action or after it: `asked` before the call, `stored` after its answer. A
killed process may have acted without writing the entry; the checker allows for that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from treadle.core import defaults
from treadle.core.clock import Clock, monotonic
from treadle.core.errors import StorageUnavailable, TreadleError
from treadle.core.job import Continuation
from treadle.core.placement import Needs
from treadle.execution.context import Context
from treadle.execution.middleware import Middleware, Run, Send, Specs

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.events import Event
    from treadle.core.model import NewJob
    from treadle.tasks.core import TaskCore

What = Literal[
    "asked",
    "stored",
    "refused",
    "claiming",
    "answered",
    "claimed",
    "began",
    "ended",
    "settled",
    "again",
    "step",
    "kept",
    "signal",
    "signalled",
    "received",
    "waits",
    "waited",
    "act",
    "acted",
    "stalled",
    "crashed",
    "clock",
    "worker",
    "note",
]
"""The kinds of entries.

asked      a process is about to enqueue this job; `facts` are those of its spec, see `facts_of`
stored     the enqueue returned; `name` is the id of the existing row that was returned, if any
refused    the enqueue raised an error after which nothing is stored
claiming   a worker is about to make the claim `name`; written where claims may overlap and skip each other's rows
answered   that claim has returned
claimed    the storage has applied a worker's claim of this version; `name` is the claim
began      a run of this version begins; `facts` are the needs of its task, and the number of failed attempts before
ended      that run has ended; `how` it ended, and `text`, its encoded value; `facts` has what it says it spent
settled    the storage has confirmed the outcome to the worker; `how` is the state
again      the storage has confirmed that this version runs again, `seconds` after its outcome at the earliest
step       the function of the step `name` is about to run, in the run of this version
kept       the step has returned in that run, so its value `text` is stored
signal     a process is about to send the signal `name` with the encoded value `text`
signalled  sending the signal returned
received   a run of the job has received the signal `name` with the value `text`
waits      a run is about to sleep for `seconds`, or to wait for a signal for at most `seconds`; `name` tells the sleeps
           and waits of the job apart
waited     that time is over in this run: the sleep has returned, or the wait has raised TimeoutError
act        a process is about to do `name` (cancel, retry, delete ...) to the job; without an id, to many
acted      that call returned; `how` is "cancelled" if it raised nothing and the job has ended since
stalled    the actor did not run for `seconds` until now
crashed    the actor has ended and writes no more entries
clock      the clock of the storage steps by `seconds`
worker     the process runs a worker; `facts` are its labels and its resources
note       a text for people
"""

_KEPT_OPTIONS = ("task", "queue", "priority", "key", "delay", "required", "failures_allowed", "lane", "aging")

How = Literal["returned", "composed", "raised", "left", "succeeded", "failed", "cancelled"]


class Entry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One action of an actor, or one answer that it got.

    at     seconds by one clock that all actors share and that is never set (`time.monotonic` on one machine)
    actor  the process; a restarted process is another actor
    how    returned: a value; composed: jobs that continue it; raised; left: interrupted, to sleep or to wait
    """

    at: float
    actor: str
    what: What
    id: str = ""
    version: int = 0
    how: How | None = None
    text: str | None = None
    name: str = ""
    seconds: float = 0.0
    facts: dict[str, Any] = {}

    def __str__(self) -> str:
        version = f" v{self.version}" if self.version else ""
        rest = [self.how, self.name, None if self.text is None else self.text[:80]]
        seconds = f" {self.seconds:g} s" if self.seconds else ""
        details = " ".join(word for word in rest if word)
        return f"{self.at:12.6f}  {self.actor:<12} {self.what:<9} {self.id}{version} {details}{seconds}".rstrip()


class History:
    """The log of one process. Without a file, entries stay in `entries`. With a file, each is one write of a JSON line,
    so a kill leaves whole lines."""

    def __init__(self, actor: str, clock: Clock = monotonic, path: Path | str | None = None) -> None:
        self.actor, self.clock = actor, clock
        self.entries: list[Entry] = []
        self._file = None if path is None else os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, what: What, id: str = "", **rest: Any) -> None:
        """Add an entry with the current time; `rest` are fields of `Entry`."""
        entry = Entry(**{"at": self.clock(), "actor": self.actor, "what": what, "id": id, **rest})
        if self._file is None:
            self.entries.append(entry)
        else:
            os.write(self._file, msgspec.json.encode(entry) + b"\n")

    def close(self) -> None:
        """Close the file. May be called more than once."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(*paths: Path | str) -> list[Entry]:
    """Return the entries of these files, ordered by time. An incomplete last line, left by a kill, is skipped."""
    entries: list[Entry] = []
    decode = msgspec.json.Decoder(Entry).decode
    for path in paths:
        whole, _, _ = Path(path).read_bytes().rpartition(b"\n")
        entries += [decode(line) for line in whole.splitlines() if line]
    return ordered(entries)


def moments(entries: Iterable[Entry], what: What) -> dict[tuple[str, int], float]:
    """When an actor last recorded this of each version of each job."""
    return {(entry.id, entry.version): entry.at for entry in entries if entry.what == what}


def ordered(entries: Iterable[Entry]) -> list[Entry]:
    """Sort by time; entries of the same time keep their order."""
    return sorted(entries, key=lambda entry: entry.at)


def facts_of(new: NewJob) -> dict[str, Any]:
    """The options of a job that the checker needs, as JSON values. Empty options are left out."""
    facts: dict[str, Any] = {name: getattr(new, name) for name in _KEPT_OPTIONS}
    if new.key:
        facts |= {"until": new.key_until, "conflict": new.key_conflict}
    facts |= {"after": list(new.after), "limits": [list(limit) for limit in new.limits]}
    facts |= {"keep": kept(new.keep, defaults.KEEP), "keep_failed": kept(new.keep_failed, defaults.KEEP_FAILED)}
    return {name: value for name, value in facts.items() if value not in (None, 0, [], ())}


def facts_of_needs(needs: Needs | None, of_one_run: bool) -> dict[str, Any]:
    """The needs of a task as facts of a run. A batch uses its resources once for all jobs of a call (`of_one_run` is
    false), so they are left out."""
    if needs is None:
        return {}
    facts: dict[str, Any] = {}
    if needs.requires:
        facts["requires"] = [[name, list(values)] for name, values in needs.requires]
    if needs.uses and of_one_run:
        facts["uses"] = dict(needs.uses)
    return facts


def kept(seconds: float, usual: float) -> float | None:
    """The seconds for which the row of an ended job is kept; None: the usual ones."""
    return None if seconds == usual else max(seconds, defaults.KEEP_LEAST)


class Recorder(Middleware):
    """Records the enqueues and runs of an app in this process: `Recorder(history).attach(app)`.

    The code that makes steps, signals and acts records them itself, for example
    `history.add("step", current().id, name="pay", version=current().version)`.
    """

    def __init__(self, history: Callable[[], History] | History, tasks: Mapping[str, TaskCore] | None = None) -> None:
        self._history = history
        self._tasks = {} if tasks is None else tasks  # tasks of the recorded app

    def attach(self, app: App) -> Recorder:
        """Record this app from now on, inside its other middleware."""
        self._tasks = app._core.tasks
        app.middleware(self)
        for name, listener in self.listeners:
            app.on(name)(listener)
        return self

    @property
    def listeners(self) -> list[tuple[str, Callable[[Event], None]]]:
        """Its listeners, each with the event of an app."""
        ended = [(name, self.settled) for name in ("succeeded", "failed", "cancelled")]
        return [*ended, *((name, self.runs_again) for name in ("retrying", "deferred"))]

    @property
    def history(self) -> History:
        return self._history if isinstance(self._history, History) else self._history()

    def settled(self, event: Event) -> None:
        """Record that the storage has applied an outcome that a worker of this process settled."""
        if event.record is not None and event.id is not None:
            how: Any = event.name
            self.history.add("settled", event.id, version=event.record.version, how=how)

    def runs_again(self, event: Event) -> None:
        """Record that the storage has applied an outcome after which the job runs again."""
        if event.record is not None and event.delay is not None:
            self.history.add("again", event.id, version=event.record.version, seconds=event.delay)

    async def enqueue(self, specs: Specs, proceed: Send) -> Any:
        history = self.history
        jobs = [new for spec in specs for new in (*spec.others, spec.new)]
        for new in jobs:
            history.add("asked", new.id, facts=facts_of(new))
        try:
            answers = await proceed(specs)
        except StorageUnavailable:
            raise  # unknown whether it was stored
        except TreadleError as error:
            for new in jobs:
                history.add("refused", new.id, text=type(error).__name__)
            raise
        for spec, job in zip(specs, answers, strict=False):
            if job.id != spec.new.id:
                history.add("stored", spec.new.id, name=job.id)
            elif job.task != spec.new.task:  # an existing row of another task was returned
                history.add("stored", spec.new.id)
            elif job.created:  # otherwise it was stored before, or will be with the outcome of the run that returned it
                for new in (*spec.others, spec.new):
                    if not new.key or new is spec.new:  # a part with a key may have been deduplicated to another row
                        history.add("stored", new.id)
        return answers

    async def run(self, context: Context, proceed: Run) -> Any:
        history, id, version = self.history, context.record.job.id, context.record.version
        known = self._tasks.get(context.task)
        needs = {} if known is None else facts_of_needs(known.needs, known.kind != "batch")
        facts = needs | {"attempt": context.record.attempt} if context.record.attempt else needs
        history.add("began", id, version=version, name=context.task, facts=facts)
        how: How = "left"
        text: str | None = None
        try:
            value = await proceed()
            how, text = self._encoded(context.task, value)
        except Exception as error:
            how, text = "raised", f"{type(error).__name__}: {error}"
            raise
        finally:
            spent = context._run.spent
            facts = {} if spent is None else {"spent": spent}
            history.add("ended", id, version=version, how=how, text=text, facts=facts)
        return value

    def _encoded(self, task: str, value: object) -> tuple[How, str | None]:
        """How the run ended, and its value as the row will store it."""
        parts: Sequence[object] = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(part, Continuation) for part in parts):
            return "composed", None
        known = self._tasks.get(task)
        try:
            return "returned", None if known is None else known.signature.encode_result(value)
        except TreadleError:
            return "raised", "BadResult"
