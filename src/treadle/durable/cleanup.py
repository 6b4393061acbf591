"""The run of a cleanup job: the function of a job that has ended continues where the job ended, to clean up.

The run has the history of the ended job. Its recorded steps return their results. The first step, sleep or wait that
was not recorded raises the ending of the job, `JobCancelled`, `JobExpired` or `JobFailed`: the code that handles this
error may take steps, which are stored with the cleanup job. Outside of such code the error is raised again, so that a
loop that swallows it does not continue its work. A job that failed by an error of its function has handled that
error: it is only read for its undos.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NoReturn

import msgspec
from msgspec import UNSET, UnsetType

from treadle.core.errors import BadStep, JobNotDone
from treadle.core.job import not_done
from treadle.core.model import Record
from treadle.durable.backend import SWALLOWED, DurableBackend, DurableRun, Suspend, is_suspension
from treadle.durable.branches import Branch, place_here, position_here
from treadle.durable.checkpoints import CALL, STEP, Checkpoint, StepRequest
from treadle.durable.failures import leaves
from treadle.durable.parts import Part, PartSteps, Past, Target
from treadle.durable.state import MOST_REPEATED
from treadle.policy import judge
from treadle.policy.cleanups import FREE, is_unheard
from treadle.policy.retry import Abort
from treadle.serialization.call_codec import Codec

REACH: Final = 10.0  # s until an async function must have reached the point at which its job ended
# Prefixes of the keys of what is no step and calls no job: no undo is registered for it.
NO_EFFECT: Final = ("lock:", "sleep:", "wait:", "receive:", "publish:", "answer:", "ended:", "timeout", "first")
CONTINUED: Final = "the function has swallowed the ending of its job again and again; clean up where it is handled"
_names = msgspec.json.Decoder(tuple[str, ...]).decode


class EndedSteps(PartSteps):
    """The steps of an ended job, and those of its cleanup."""

    def __init__(self, run: DurableRun, backend: DurableBackend, ended: Record, only: Target | None) -> None:
        self.theirs = _of_job(run.record, ended)
        super().__init__(run, backend, self.theirs if only is None else only.recorded, only)
        self._ended, self.history = ended, self.among(self.theirs)
        self.past = Past(self.history, ended.started_at)
        self.on_effect: Callable[[StepRequest], object] = lambda _: None  # called with each step and call
        self._before: set[object] = set()  # tasks in which the ending is raised, as they began before it
        self._raised_here = Counter[object]()  # how often, by the task or thread
        self.on_end: Callable[[], object] = lambda: None  # called when the function has reached the ending
        self.is_cut = False  # it does not reach the ending, and was cancelled
        self.is_heard = not is_unheard(
            ended.state, ended.reason
        )  # the function has handled its error: only undos follow
        self.undoing: Branch | None = None  # the branch of the undo that runs
        self._cleaning: set[str] = set()  # what code that may clean has requested or awaits

    def _is_forgotten(self, key: str, entry: Checkpoint) -> bool:
        return key not in self.theirs and super()._is_forgotten(key, entry)

    def ask(self, name: str, args: str | UnsetType = UNSET, key: str | None = None) -> StepRequest:
        request = super().ask(name, args, key)
        self._note(request)
        if not name.startswith(NO_EFFECT):
            self.on_effect(request)
        return request

    def reach(self, request: StepRequest, kind: str = STEP) -> None:
        if self.ends_at(request, kind):
            self.end(request)
            self.stop()
        super().reach(request, kind)

    def ends_at(self, request: StepRequest, kind: str) -> bool:
        """Whether the ending of the job is to be raised here: the job had not passed this, and the caller does not
        clean up. It is decided here and not by `ask`: steps that are requested together do not end together."""
        self._note(request)
        if kind != CALL and self.has_passed(self.past, request, kind):
            return False
        return request.key not in self._cleaning

    def has_ended(self, place: object) -> bool:
        """Whether the ending was raised in this task or thread."""
        return self._raised_here[place] > 0

    def has_begun_before(self, task: object) -> bool:
        """Whether this task began before the ending was raised anywhere."""
        return not self._before or task in self._before

    def _note(self, request: StepRequest) -> None:
        if self._may_clean(request.branch):
            self._cleaning.add(request.key)

    def stop(self) -> NoReturn:
        """Raise the ending of the job. Raises BadStep in a loop that swallows it."""
        self.on_end()
        if not self._before:
            self._before = _tasks() | {place_here()}
        self._raised_here[place_here()] += 1
        if self._raised_here[place_here()] > MOST_REPEATED:
            raise BadStep("cleanup", SWALLOWED if self.is_heard else CONTINUED)
        if self.is_heard:
            raise Suspend
        raise not_done(self._ended)

    def is_ending(self, error: BaseException) -> bool:
        """Whether this is the ending of the job, as it is raised here."""
        return isinstance(error, JobNotDone) and error.id == self._ended.job.id

    def _may_clean(self, branch: Branch) -> bool:
        """Whether the caller is an undo, handles the ending, or is a task that began after it."""
        if self.undoing is not None and branch.is_in(self.undoing):
            return True
        if self.is_heard or not (self._before or self.is_cut):
            return False
        handled = sys.exception()
        if handled is not None and (self.is_cut or any(map(self.is_ending, _with_causes(handled)))):
            return True
        return isinstance(branch.place, asyncio.Task) and bool(self._before) and branch.place not in self._before


def _of_job(row: Record, ended: Record) -> set[str]:
    """The names of the entries that the job has made, of which the last may be stored with the cleanup job."""
    late = dict(row.checkpoints).get(FREE)
    return {name for name, _ in ended.checkpoints} | set(() if late is None else _names(late))


def _tasks() -> set[object]:
    try:
        return set(asyncio.all_tasks())
    except RuntimeError:  # in a thread
        return set()


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what caused it or was handled when it was raised, and the members of groups."""
    look, seen = [error], set[int]()
    while look:
        if (here := look.pop()) is None or id(here) in seen:
            continue
        seen.add(id(here))
        yield here
        look += [here.__cause__, here.__context__]
        look += here.exceptions if isinstance(here, BaseExceptionGroup) else ()


class Cleanup(Part):
    """The durable code of a run of a cleanup job, or of one try of a step that the cleanup takes."""

    has_ending = True
    steps: EndedSteps

    def __init__(
        self, run: DurableRun, backend: DurableBackend, codec: Codec | None, ended: Record, only: Target | None = None
    ) -> None:
        super().__init__(run, backend, codec, ended.job.id, EndedSteps(run, backend, ended, only))
        self._ended, self.is_done = ended, False
        self.steps.on_effect = self.undos.follow

    # --- what differs from a run of the job itself

    async def reached(self, request: StepRequest, kind: str = STEP) -> None:
        """A task that has come to the end of the history waits there until all others have, too: otherwise the undos of
        slower ones would be missing, and a group would cut off what they do to clean up."""
        if not self.steps.ends_at(request, kind):
            await super().reached(request, kind)
            return
        self.steps.end(request)
        if not self.steps.has_ended(place_here()):
            try:
                await self._parking.park(request)
            except asyncio.CancelledError:
                if self.backend.is_cancelled(self.run) or self.is_suspended or self._parking.has_ended:
                    raise
                _uncancel()  # by a group, or by code of the job: the ending is raised in its place
        self.steps.stop()

    def refuse_message(self) -> None:
        """Nothing can be sent to a job that has ended."""
        self.steps.stop()

    async def restart(self, args: Any, kwargs: Any) -> NoReturn:
        self.steps.stop()

    def refuse_transaction(self) -> None:
        """The transaction of a run commits the ending of its job, and this one has ended."""
        self.steps.stop()

    def misuse(self) -> BadStep | None:
        self._unawaited.forgotten()  # the ending was raised before they could be awaited
        return self._misused

    # --- the run

    async def cleaned(self, call: Callable[[], Awaitable[Any]], reach: float | None) -> Any:
        """Call the function, and then the undos that it has registered. Sets `is_done`, and returns or raises what the
        function did. If this raises without `is_done`, the cleanup is tried again.

        reach  seconds until the function must have reached the ending; None: it runs in a thread, which cannot be cut
        """
        value, left_by = None, list[BaseException]()
        self.run.subject = self._ended
        try:
            try:
                value = await (call() if reach is None else self._to_its_end(call, reach))
            except BaseException as error:
                is_asleep = self.run.suspended_as is not None or self.is_between_tries
                if not all(isinstance(leaf, Exception | Suspend) for leaf in leaves(error)):
                    raise
                if is_asleep if is_suspension(error) else judge.fails_as(error) is not None:
                    raise  # it sleeps; or its code does not follow the history, so its undos are not known
                left_by.append(error)
            left_by += await self._branches(reach)
            errors = [error for error in left_by if not self._is_handled(error)]
            errors += await self._undone()
        finally:
            self.run.subject = None
        if errors:
            raise errors[0] if len(errors) == 1 else BaseExceptionGroup(f"{len(errors)} errors of a cleanup", errors)
        self.is_done = True
        if left_by:
            raise left_by[0]
        return value

    async def _to_its_end(self, call: Callable[[], Awaitable[Any]], seconds: float) -> Any:
        """Call the function. It is cancelled if it has not reached the ending after this time: the job may have been
        cancelled because its code between two steps hangs."""
        task = asyncio.current_task()
        assert task is not None

        def cut() -> None:
            self.steps.is_cut = True
            self._parking.release()
            task.cancel()

        timer = self.backend.loop.call_later(seconds, cut)
        self.steps.on_end = lambda: self.backend.loop.call_soon_threadsafe(timer.cancel)
        try:
            return await call()
        except asyncio.CancelledError:
            if not self.steps.is_cut or task.uncancel() or self.backend.is_cancelled(self.run):
                raise
            return None
        finally:
            timer.cancel()

    async def _branches(self, seconds: float | None) -> list[BaseException]:
        """Wait for the tasks of the function that have not ended with it. Returns the errors of tasks that it does not
        know. A task that does not reach the ending is cancelled after some time."""
        if seconds is None:
            return []
        late = {task for task in self.checkpoints.tasks if not task.done() or getattr(task, "_log_traceback", False)}

        def cut() -> None:
            for task in self.checkpoints.tasks:
                if self.steps.has_begun_before(task) and not self.steps.has_ended(task):
                    task.cancel()

        timer = self.backend.loop.call_later(seconds, cut)
        try:
            while tasks := [task for task in self.checkpoints.tasks if not task.done()]:
                late |= set(tasks)
                self._parking.changed()
                await asyncio.wait(tasks)
        except asyncio.CancelledError:
            if self.run.suspended_as is None or self.backend.is_cancelled(self.run):
                raise
            _uncancel()
            raise Suspend from None
        finally:
            timer.cancel()
        return [error for task in late if not task.cancelled() and (error := task.exception()) is not None]

    def _is_handled(self, error: BaseException) -> bool:
        """Whether the function may end with this error: the ending of its job, one raised from it, or a verdict."""
        if self.steps.is_heard or isinstance(error, Abort):
            return True
        if all(isinstance(leaf, Suspend) or self.steps.is_ending(leaf) for leaf in leaves(error)):
            return True
        cause = error.__cause__
        return cause is not None and any(map(self.steps.is_ending, _with_causes(cause)))

    async def _undone(self) -> list[BaseException]:
        """Run the undos, the last one first. An undo that fails does not keep the others from running, and is tried
        again in the next attempt. Each is a branch of its own: no order is recorded."""
        errors = list[BaseException]()
        for name, undo in reversed(self.undos.in_order(self.steps.history)):
            self.steps.undoing = Branch(self.steps, place_here(), "&")
            position_here.set(self.steps.undoing.position)
            try:
                await self.step(name, undo.function, undo.args, undo.kwargs)
            except Exception as error:
                errors.append(error)
        return errors


def _uncancel() -> None:
    """The cancellation of this task has done its work."""
    task = asyncio.current_task()
    while task is not None and task.uncancel():
        pass
