"""Runs durable functions over recorded histories, as a test of changed code: no step is run, and nothing is stored."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from datetime import timedelta
from os import PathLike
from pathlib import Path
from traceback import walk_stack, walk_tb
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec import UNSET, Struct, UnsetType

from treadle.admin.histories import History, Upstream, read
from treadle.app.core import injectors
from treadle.core.errors import BadOption, JobNotDone, StepMismatch, UnknownJob, UnknownTask, UnknownVersion, is_ours
from treadle.core.job import JobSpec, not_done
from treadle.core.model import APPLIED, NewJob, Outcome, Record, Settled, State
from treadle.durable import (
    Checkpoints,
    Durable,
    DurableBackend,
    DurableRun,
    LockWait,
    Pending,
    StepRequest,
    Wait,
    is_suspension,
    locks_of,
)
from treadle.execution import in_thread
from treadle.execution.job_run import JobRun, Site, enter
from treadle.policy.retry import read_policy
from treadle.policy.rounds import present
from treadle.resources import Life, NewThreads, Overrides
from treadle.serialization.call_codec import MISSING, Codec
from treadle.tasks.core import TaskCore
from treadle.tasks.options import Sizes
from treadle.tasks.versions import fitting, version_begun
from treadle.testing.app import Testing
from treadle.testing.clock import HandClock
from treadle.workflow import decode_of, decoded, specs_of
from treadle.workflow.plan import OF

if TYPE_CHECKING:
    from treadle.app.core import AnyApp, AppCore

WITHOUT_RESULT: Final = (JobNotDone, UnknownJob)
Stopped = Callable[[str | StepMismatch, FrameType], object]
PATIENCE: Final = 10.0  # s that the code between two steps may take


class Replayed(Struct, frozen=True):
    """The result of one history.

    stopped_at  the first step that no run has recorded; None: the function ended before such a step
    taken       the recorded steps that it took
    error       what the function raised after its recorded steps; None: nothing
    """

    id: str
    task: str
    stopped_at: str | None
    taken: tuple[str, ...]
    error: str | None = None


class _Beyond(BaseException):
    """Ends a function at a step that was not recorded. Not an Exception, so `except Exception` does not catch it."""


async def replay(
    app: AnyApp,
    histories: str | PathLike[str] | Iterable[str | bytes | Mapping[str, Any] | History],
    *,
    overrides: Overrides | None = None,
    stopped: Stopped | None = None,
) -> list[Replayed]:
    """Run the durable functions of `app` over histories that `treadle jobs export` has written.

    Each recorded step returns its recorded value. The function ends at the first step that was not recorded: no step is
    run, no job is stored, no signal is awaited, and the storage of the app is not opened. The code between steps runs,
    and so do providers of dependencies that are not overridden.

    histories  the file, or its lines
    overrides  functions that replace providers of `depends(...)`, by what they replace
    stopped    called for a debugger where a history ends: with the step that follows there, or the sleep that lasts, or
               the StepMismatch, and with the frame of the function. A function then has any time between two steps
    Raises StepMismatch for the first history that the code does not follow, with a note for each further one;
    UnknownTask; BadArgument for arguments that do not fit any more; BadResult for such results of steps; BadOption for
    a file that is none; TimeoutError if the code between two steps takes more than 10 seconds; and what a function
    raises before its last recorded step.
    """
    rows = _rows(histories)
    core = app._core
    core.resources.check(dict(overrides or {}), injectors(core))
    replayed: list[Replayed] = []
    mismatches: list[StepMismatch] = []
    async with Testing(core, HandClock(), overrides=overrides):
        life = Life(None, core.resources.overrides)
        try:
            for history in rows:
                try:
                    replayed.append(await _Replay(core, life, history, stopped).run())
                except StepMismatch as error:
                    mismatches.append(error)
        finally:
            await life.end(None)
    if mismatches:
        first, *others = mismatches
        for other in others:
            first.add_note(f"also: {other}")
        raise first
    return replayed


def _rows(histories: Any) -> list[History]:
    if isinstance(histories, str | PathLike):
        return read(Path(histories).read_text("utf-8").splitlines())
    lines: list[Any] = list(histories)
    if all(isinstance(line, History) for line in lines):
        return lines
    try:
        return read([line if isinstance(line, str | bytes) else msgspec.json.encode(line) for line in lines])
    except TypeError as error:
        raise BadOption("histories", f"expected a file, or lines of `treadle jobs export`: {error}") from None


class _Replay:
    """One history and one run of the function over it."""

    def __init__(self, core: AppCore, life: Life, history: History, stopped: Stopped | None) -> None:
        task = core.tasks.get(history.task)
        if task is None:
            raise UnknownTask(history.task, tuple(core.tasks))
        chosen = fitting(task, present(history.record))
        if chosen is None:
            begun = version_begun(history.record) or 1
            raise UnknownVersion(history.id, history.task, begun, tuple(sorted(task.versions)))
        task = chosen
        self._core, self._history, self._task = core, history, task
        loop = asyncio.get_running_loop()
        site = Site(None, loop, life, NewThreads)
        self._run = JobRun(
            present(history.record), "replay", lambda: None, self._results, site=site, came=history.at, sent=history.at
        )
        self._durable = _RecordedDurable(self._run, _Backend(loop, core, history.at), task.signature._codec)
        self._run.durable = self._durable
        self._durable.steps.stopped, self._patience = stopped, PATIENCE if stopped is None else None

    async def run(self) -> Replayed:
        """Raises StepMismatch, and what the function raises before its last recorded step."""
        error: BaseException | None = None
        try:
            payload, task = self._run.record.job.payload, self._task
            args, kwargs = task.signature.decode_call(payload, first=self._first())
            async with asyncio.timeout(self._patience):
                await asyncio.create_task(self._call(task, args, kwargs))
        except BaseException as raised:
            error = raised
            if isinstance(raised, asyncio.CancelledError):
                raise
        return self._told(error)

    async def _call(self, task: TaskCore, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        enter(self._run)
        if task.kind == "async":
            self._run.place = asyncio.current_task()
            await task.call(*args, **kwargs)
        else:
            here = contextvars.copy_context()
            call = functools.partial(here.run, task.call, *args, **kwargs)
            await in_thread(NewThreads(), call, task.name, lambda: True, self._durable.interrupt)

    def _told(self, error: BaseException | None) -> Replayed:
        """The result of the run. Raises StepMismatch also if the function ended although its history continues."""
        steps, history = self._durable.steps, self._history
        if steps.mismatch is not None:  # even if the function caught it
            raise steps.mismatch
        if self._run.suspended_as is not None:  # it sleeps
            steps.stopped_at = steps.stopped_at or steps.last
            steps.tell(steps.last, None if error is None else error.__traceback__)
        if steps.stopped_at is None:
            behind = steps.following(steps.last)
            if error is not None and (behind is not None or not steps.taken or not isinstance(error, Exception)):
                raise error
            if behind is not None:
                raise StepMismatch(history.id, "", steps.last, f"{behind!r} at this point")
        elif error is not None and not _is_end(error):
            error = None  # what it raised after it was ended, such as an error of a `finally`
        shown = None if error is None or _is_end(error) else f"{type(error).__name__}: {error}"
        return Replayed(history.id, history.task, steps.stopped_at, tuple(steps.taken), shown)

    def _first(self) -> object:
        how = read_policy(self._history.retry).pass_result
        if not how:
            return MISSING
        values = self._values()
        if how == "list":
            return [result for result in values if not isinstance(result, WITHOUT_RESULT)]
        return values[0] if len(values) == 1 and not isinstance(values[0], WITHOUT_RESULT) else None

    def _values(self) -> list[Any]:
        """The list that `upstream()` returns: results, and exceptions of jobs without one."""
        stored = {up.id: up for up in self._history.upstream}
        return [_value_of(stored[id], self._core) if id in stored else UnknownJob(id) for id in self._history.after]

    async def _results(self, ids: Sequence[str]) -> list[Any]:
        return self._values()


def _value_of(up: Upstream, core: AppCore) -> Any:
    if up.result is None and up.state is not State.SUCCEEDED:
        row = Record(job=NewJob(id=up.id, task=up.task), version=1, state=up.state, reason=up.reason)
        return not_done(row)
    noted = () if up.of == up.task else ((OF, msgspec.json.encode(up.of).decode()),)
    row = Record(job=NewJob(id=up.id, task=up.task), version=1, state=up.state, checkpoints=noted)
    return decode_of(row, core.tasks, up.result or "null")


def _users_frame(trace: TracebackType | None) -> FrameType:
    """The innermost frame of the user's code in a traceback; without one, among the callers of this function."""
    frames = [frame for frame, _ in (walk_stack(sys._getframe()) if trace is None else reversed([*walk_tb(trace)]))]
    return next((frame for frame in frames if not is_ours(frame.f_code.co_filename)), frames[0])


def _is_end(error: BaseException) -> bool:
    """Whether this is the exception that ends a function here, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_end(member) for member in error.exceptions)
    return isinstance(error, _Beyond) or is_suspension(error)


class _RecordedSteps(Checkpoints):
    """The recorded steps. Asking for another one ends the function."""

    def __init__(self, record: Record, sizes: Sizes, place: object) -> None:
        super().__init__(record.job.id, record.checkpoints, sizes, place, record.reopenings)
        self.taken: list[str] = []
        self.stopped_at: str | None = None
        self.last = ""
        self.mismatch: StepMismatch | None = None
        # A wait that is not recorded may have lost a race: it ends the function when it is looked at.
        self.of_wait = False
        self.stopped: Stopped | None = None

    def ask(self, name: str, args: str | UnsetType = UNSET, key: str | None = None) -> StepRequest:
        try:
            request = super().ask(name, args, key)
        except StepMismatch as error:
            self.mismatch = self.mismatch or error
            self.tell(error)
            raise
        if request.entry is None or request.entry.is_tried:
            if not self.of_wait:
                self.stop(request.key)
        else:
            self.taken.append(request.key)
        self.last = request.key
        return request

    def tell(self, place: str | StepMismatch, trace: TracebackType | None = None) -> None:
        """Call `stopped`, the first time that the function comes to the end of its history: with the frame that calls
        durable code now, or that a suspension has left."""
        stopped, self.stopped = self.stopped, None
        if stopped is not None:
            stopped(place, _users_frame(trace))

    def stop(self, key: str) -> NoReturn:
        self.stopped_at = self.stopped_at or key
        self.tell(key)
        raise _Beyond(key)


class _RecordedDurable(Durable):
    """Durable code that returns what was recorded."""

    def __init__(self, run: JobRun, backend: DurableBackend, codec: Codec | None) -> None:
        super().__init__(run, backend, codec)
        self.checkpoints = self.steps = _RecordedSteps(run.record, backend.sizes, None)
        self._held = {mark.key for mark in locks_of(run.record.checkpoints) if not mark.given_back}

    def asked(self, name: str, args: str | UnsetType = UNSET, key: str | None = None) -> StepRequest:
        self.steps.of_wait = True
        try:
            return super().asked(name, args, key)
        finally:
            self.steps.of_wait = False

    async def _look(self, wait: Wait) -> Pending | None:
        entry = wait.request.entry
        if isinstance(wait, LockWait) and (entry is None or not entry.has_value):
            self.steps.stop(wait.request.key)
        return await super()._look(wait)

    async def win(self, key: str, keep: float | timedelta) -> bool:
        """True for a mark that the job has; nothing says whether it would get another one."""
        if key not in self._held:
            self.steps.stop(f"once:{key}")
        return True


class _Backend:
    """The services of a worker, without a worker: nothing is stored."""

    def __init__(self, loop: asyncio.AbstractEventLoop, core: AppCore, now: float) -> None:
        self.loop, self.sizes, self.offload, self._core, self._now = loop, core.sizes, 0, core, now

    def now(self) -> float:
        return self._now

    def random(self) -> float:
        return 0.0

    def codec(self, task: str) -> Codec | None:
        return None

    def arguments(self, record: Record, args: Sequence[object], kwargs: Mapping[str, object]) -> str:
        return "[]"

    def is_cancelled(self, run: DurableRun) -> bool:
        return False

    def keeps(self, run: DurableRun) -> bool:
        return False

    def check(self, run: DurableRun) -> None:
        """The run may take steps."""

    async def save(self, run: DurableRun) -> None:
        """Store nothing."""

    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]:
        return [None] * len(ids)

    async def store(self, job: NewJob) -> Record:
        raise _Beyond(job.id)

    async def store_all(self, jobs: Sequence[NewJob]) -> Sequence[Record]:
        return [Record(job=job, version=1, state=State.WAITING) for job in jobs]

    def specs(self, record: Record, jobs: Iterable[Any], where: str) -> list[JobSpec[Any, Any]]:
        return specs_of(self._core.tasks[record.job.task].factory, jobs, where)

    async def adopted(self, run: DurableRun, jobs: Sequence[NewJob], time_left: float | None) -> tuple[NewJob, ...]:
        return tuple(jobs)

    def decoded(self, of: Any, text: str) -> Any:
        return decoded(of, self._core.tasks, text)

    async def cancel(self, record: Record, ids: Sequence[str]) -> None:
        """Cancel nothing."""

    async def kept_limits(self, job: NewJob, around: Iterable[str]) -> frozenset[str]:
        return frozenset()

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Settled]:
        """Settle nothing."""
        return [APPLIED] * len(outcomes)

    def joining(self, name: str) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def call(self, run: DurableRun, function: Callable[[], Any]) -> Any:
        raise _Beyond(run.record.job.id)

    def around_step(self, run: DurableRun, name: str) -> AbstractContextManager[object]:
        return nullcontext()
