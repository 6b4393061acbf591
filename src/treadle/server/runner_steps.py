"""Durable code of runners in other languages: the server runs the engine of steps, sleeps and waits for them.

Each call takes one step. It first takes the recorded steps before it, as a run in Python does, so that the history is
that of a Python function. The server keeps nothing between two calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from msgspec import UNSET, Raw, Struct
from msgspec.structs import replace

from treadle.core import defaults, ids
from treadle.core.errors import UNREADABLE, BadOption, BadStep, StorageError, TreadleError
from treadle.core.events import was_lost
from treadle.core.job import JobSpec, inheriting
from treadle.core.model import STREAM, LeaseRenewal, NewJob, Outcome, Record, Settled, State
from treadle.core.ranges import a_span, check_ids
from treadle.durable import (
    LOCKED,
    ChildWait,
    Durable,
    DurableBackend,
    DurableRun,
    Failure,
    Lock,
    LockWait,
    SignalWait,
    Sleep,
    StepRequest,
    Suspend,
    checksum_of_jobs,
    leave,
)
from treadle.policy import attempts, guilt
from treadle.policy.error_text import text_of
from treadle.policy.retry import Defer
from treadle.server import system_rows
from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.incoming_rows import IncomingRows
from treadle.server.runner_metrics import RunnerMetrics
from treadle.server.runner_streams import checked_chunks, complete_step, write_chunks
from treadle.server.runner_trials import SERVER
from treadle.server.step_messages import Fate, StepCall, StepFailure, StepResult
from treadle.server.stream_messages import StreamWrite, StreamWritten
from treadle.storage import whole
from treadle.workflow.plan import adopted

if TYPE_CHECKING:
    from treadle.app.core import AppCore

MESSAGE: Final = 1_000  # characters of a stored failure, as of one in Python
WAIT: Final = "wait:"  # the beginning of the keys of signals
REPORTED: Final = "Reported"  # the type of a failure that a runner reports


class Lost(Exception):
    """The job does not belong to this run any more."""


class RunnerRun(Struct):
    """The run of a runner during one call. The times are by the server's clock, which is compared with that of the
    claim."""

    record: Record
    came: float
    sent: float
    suspended_as: Outcome | None = None
    place: object = None
    subject: Record | None = None


class RunnerBackend:
    """The services of a worker that the steps and waits of one call use. An outage of the storage ends the
    call with status 503, and the runner repeats it."""

    def __init__(self, app: AppCore, gate: IncomingRows, token: Token, lease: float, record: Record) -> None:
        self._app, self._gate, self._token, self._lease = app, gate, token, lease
        self.loop, self.sizes, self.now = asyncio.get_running_loop(), app.sizes, app.now
        self.offload = app.storage.capabilities.offload
        claimed = record.started_at or app.now()
        self.run = RunnerRun(record, claimed, claimed)
        # It has no services that call functions: the runner calls them.
        self.durable = Durable(self.run, cast("DurableBackend", self), None)

    def is_cancelled(self, run: DurableRun) -> bool:
        """A request that is cut off decides nothing: the runner repeats it."""
        return True

    def keeps(self, run: DurableRun) -> bool:
        """A call returns at once."""
        return False

    async def save(self, run: DurableRun) -> None:
        """Store the new checkpoints. Raises Lost."""
        checkpoints, record = self.durable.checkpoints, run.record
        pairs = tuple(checkpoints.unsaved.items())
        if not pairs:
            return
        progress = guilt.progress_note(record)
        renewal = LeaseRenewal(
            record.id, record.version, checkpoints=(*pairs, *progress), reach=tuple(self._token.queues)
        )
        answer = await self._app.storage.heartbeat(SERVER, [renewal], self._lease)
        if record.id in answer.lost:
            raise Lost
        if record.id in answer.unsaved:
            raise locked(record)
        checkpoints.saved(pairs)

    async def get(self, ids: Sequence[str]) -> Sequence[Record | None]:
        """Rows that the token sees: a runner may have stored the id of any job as the child of a step."""
        rows = await whole(self._app.storage, await self._app.storage.get(ids), "result")
        return [row if row is not None and rights.sees(self._token, row) else None for row in rows]

    def check(self, run: DurableRun) -> None:
        """The version of the claim fences each call that stores something."""

    async def store(self, job: NewJob) -> Record:
        [row] = await self.store_all([job])
        return row

    async def store_all(self, jobs: Sequence[NewJob]) -> Sequence[Record]:
        await self._gate.jobs(self._token, jobs)
        await rights.refuse_known(self._token, jobs, self._app.storage.get)
        return await self._app.storage.enqueue(await rights.to_store(self._token, jobs))

    async def adopted(self, run: DurableRun, jobs: Sequence[NewJob], time_left: float | None) -> tuple[NewJob, ...]:
        """These jobs as children of the run's job, after the middleware of the server's app."""
        job = run.record.job
        headers = dict(job.headers)
        try:
            prepared = await self._app.client.prepared([inheriting(new, headers) for new in jobs])
        except StorageError:
            raise
        except Exception as error:
            raise Refused(422, "refused", f"a middleware of the server refused the job: {text_of(error)}") from None
        return tuple([adopted(new, job, time_left) for new in prepared])

    def decoded(self, of: Any, text: str) -> str:
        """The result of a child stays as it is stored."""
        return text

    async def settle(self, outcomes: Sequence[Outcome]) -> Sequence[Settled]:
        return await self._app.storage.settle(outcomes)

    def joining(self, name: str) -> AbstractAsyncContextManager[object]:
        return nullcontext()


class RunnerSteps:
    """The steps of runners over the storage of one app."""

    def __init__(self, app: AppCore, gate: IncomingRows, metrics: RunnerMetrics) -> None:
        self._app, self._gate, self._metrics = app, gate, metrics

    async def take(self, token: Token, call: StepCall) -> StepResult:
        """Take one step. Raises Refused, BadOption, BadStep, StepMismatch and TooLarge."""
        _check(call)
        row = await self._row(token, call.id)
        if row is None or row.version != call.version or row.state is not State.RUNNING:
            return StepResult(_fate(row, call.version))
        backend = self._backend(token, call.lease, row)
        try:
            _follow(backend.durable, call.after)
            return await self._taken(token, backend, call)
        except Lost:
            return StepResult("lost")

    async def end_signals(
        self, token: Token, rows: Mapping[str, Record], outcomes: Sequence[Outcome], answers: Sequence[Settled]
    ) -> None:
        """End the rows of signals that ended jobs no longer wait for, and the open pages of their streams. `rows`: the
        jobs as they ran."""
        for outcome, answer in zip(outcomes, answers, strict=True):
            row = rows.get(outcome.id)
            is_over = answer.status == "applied" and outcome.state.final
            if row is not None and is_over and any(name.startswith((WAIT, STREAM)) for name, _ in row.checkpoints):
                with suppress(TreadleError):  # a history that cannot be read; the rows expire
                    durable = RunnerBackend(self._app, self._gate, token, defaults.LEASE, row).durable
                    _follow(durable, None)
                    await durable.concluded(outcome)

    async def write(self, token: Token, call: StreamWrite) -> StreamWritten:
        """Add chunks to a stream. Raises Refused, BadOption, BadStep and TooLarge."""
        chunks = checked_chunks(call)
        row = await self._row(token, call.id)
        if row is None or row.version != call.version or row.state is not State.RUNNING:
            return StreamWritten("lost", call.at or 0)
        backend = self._backend(token, call.lease, row)
        try:
            end = await write_chunks(backend.durable, call, chunks)
            await backend.save(backend.run)
        except Lost:
            return StreamWritten("lost", call.at or 0)
        return StreamWritten("stored", end)

    async def complete(self, token: Token, rows: Mapping[str, Record], outcomes: Sequence[Outcome]) -> None:
        """Void what earlier runs of jobs have written that take no steps, and that succeed now."""
        for outcome in outcomes:
            row = rows.get(outcome.id)
            if outcome.state is not State.SUCCEEDED or row is None or row.version != outcome.version:
                continue
            if any(name.startswith(STREAM) for name, _ in row.checkpoints):
                with suppress(TreadleError, Lost):
                    await complete_step(self._backend(token, defaults.LEASE, row).durable, "")

    def _backend(self, token: Token, lease: float, row: Record) -> RunnerBackend:
        system_rows.refuse_own(system_rows.plain_of(row.job))
        return RunnerBackend(self._app, self._gate, token, lease, row)

    async def _row(self, token: Token, id: str) -> Record | None:
        [row] = await whole(self._app.storage, await self._app.storage.get([id]), "checkpoints")
        return row if row is not None and rights.sees(token, row) else None

    async def _taken(self, token: Token, backend: RunnerBackend, call: StepCall) -> StepResult:
        durable, error = backend.durable, None
        if call.lock is False:
            await leave(durable, call.name)
            await backend.save(backend.run)
            return StepResult("done", call.after)
        wait = _wait(durable, call)
        if wait is None:
            return await _step(backend, call)
        try:
            await durable.over_here(wait)  # as in a thread: it suspends the run at once
        except Suspend:
            return await self._suspended(token, backend)
        except Defer as deferral:
            message = f"job {call.id} is {deferral.reason}; try again later"
            raise Refused(409, "key_held", message, id=call.id) from None
        except Exception as raised:
            entry = durable.checkpoints.entries.get(wait.request.key)
            if entry is None or not (entry.gave_up or isinstance(entry.failure, Failure)):
                raise
            error = raised
        if wait.request.key not in durable.checkpoints.entries:  # a sleep of no length
            durable.checkpoints.keep(wait.request, wait.request.entry_of(until=durable.moment()))
            await backend.save(backend.run)
        return _done(durable, wait.request, error)

    async def _suspended(self, token: Token, backend: RunnerBackend) -> StepResult:
        """Settle the job: it waits, and a later claim returns it."""
        run = backend.run
        row, outcome = run.record, run.suspended_as
        assert outcome is not None
        outcome = await backend.durable.concluded(outcome)
        if was_lost(row):
            outcome = replace(outcome, checkpoints=(*outcome.checkpoints, *attempts.losses(row)))
        odd, _ = await self._gate.outcomes(token, [outcome])
        [settled] = [odd[0]] if odd else await self._app.storage.settle([rights.to_settle(token, outcome)])
        if settled.again:
            raise locked(row)
        if settled.status == "refused":
            raise Refused(422, "refused", settled.reason or "the storage refuses this job", id=row.id)
        if settled.status == "applied":
            self._metrics.settled(row, outcome)
            return StepResult("lost" if outcome.state.final else "suspended")
        [now] = await self._app.storage.get([row.id])  # another request of this call may have settled it
        return StepResult(_fate(now, row.version))


async def _step(backend: RunnerBackend, call: StepCall) -> StepResult:
    """Take a step whose effect the runner runs."""
    durable = backend.durable
    request = durable.asked(call.name)
    if is_new := not durable.checkpoints.is_over(request.key):
        if call.failure is not None:
            failure = Failure(REPORTED, "", message=call.failure[:MESSAGE])
            durable.checkpoints.keep(request, request.entry_of(failure=failure))
        elif isinstance(value := call.result, Raw):
            await complete_step(durable, request.key)
            durable.keep_or_fail(request, lambda: request.entry_of(value=Raw(bytes(value))))
        is_new = request.key not in durable.checkpoints.unsaved
    await backend.save(backend.run)  # before the effect of a new step: also failures that the function has caught
    return StepResult("new", request.key) if is_new else _done(durable, request, None)


def _wait(durable: Durable, call: StepCall) -> Sleep | SignalWait | ChildWait | LockWait | None:
    """The sleep or wait of this call; None: it is a step."""
    if call.sleep is not None:
        return Sleep(durable, durable.asked(f"sleep:{call.name}"), call.sleep, None)
    if call.wait is not None:
        return SignalWait(durable, durable.asked(f"{WAIT}{call.name}"), call.name, call.wait.timeout, Any)
    if call.lock:
        return Lock(durable, call.name).wait()
    if call.call is None:
        return None
    job = call.call
    if job.id:  # the same in a repeated call
        job = replace(job, nonce=job.nonce or ids.digest(call.id, "call", job.id)[:16])
    spec = JobSpec[Any, Any](job, decode=str)
    return ChildWait(durable, durable.asked(f"call:{call.name}", checksum_of_jobs([spec])), spec)


def _follow(durable: Durable, last: str | None) -> None:
    """Take the recorded steps up to this one, as the run has done; None: all. Raises BadStep if it is not recorded."""
    key, checkpoints = "", durable.checkpoints
    while key != last:
        following = checkpoints.following(key)
        if following is None:
            if last is None:
                return
            raise BadStep(last, "is not recorded: `after` is the `step` of the answer before; the first step has none")
        key, name, entry = following, following.partition("#")[0], checkpoints.entries[following]
        request = durable.asked(name)
        if name.startswith(LOCKED) and not entry.exit:
            durable.locks[name.removeprefix(LOCKED)] = request
        if name.startswith(WAIT) and (entry.gave_up or isinstance(entry.turn, int)):
            with suppress(TimeoutError):
                SignalWait(durable, request, name.removeprefix(WAIT), None, Any).value()
        elif isinstance(entry.failure, Failure):
            with suppress(Exception):
                durable.recorded(request)  # raises it; the runner has caught it if it takes another step
        checkpoints.end(request)


def _check(call: StepCall) -> None:
    """Raise BadOption or Refused for a call that is out of range, or that is two steps at once."""
    check_ids("id", [call.id])
    a_span("lease", call.lease)
    kinds = [
        call.result is not UNSET,
        *(one is not None for one in (call.failure, call.sleep, call.wait, call.call, call.lock)),
    ]
    if sum(kinds) > 1:
        message = f"job {call.id}: expected at most one of result, failure, sleep, wait, call and lock"
        raise Refused(422, "wrong_shape", message, id=call.id)
    if (child := call.call) is not None:
        if not child.task:
            raise BadOption("call", f"step {call.name!r}: expected a job with a `task`, which a worker runs")
        try:
            msgspec.json.decode(child.payload, type=Raw)
        except UNREADABLE:
            problem = f"found {child.payload!r:.60}"
            raise BadOption(
                "call", f"step {call.name!r}: expected a `payload` of JSON such as '[1]', {problem}"
            ) from None


def _fate(row: Record | None, version: int) -> Fate:
    """The answer to a run that does not hold its job: "suspended" if an earlier request of the same call, whose answer
    was lost, has settled the job."""
    is_waiting = row is not None and row.state in (State.WAITING, State.READY) and not was_lost(row)
    return "suspended" if row is not None and is_waiting and row.version == version + 1 else "lost"


def _done(durable: Durable, request: StepRequest, error: Exception | None) -> StepResult:
    """The result or the failure in the history."""
    entry = durable.checkpoints.entries[request.key]
    if isinstance(failure := entry.failure, Failure):
        return StepResult("done", request.key, failure=StepFailure(failure.type, failure.text))
    if error is not None:
        return StepResult("done", request.key, failure=StepFailure(type(error).__name__, str(error)))
    value = entry.value if isinstance(entry.value, Raw) else Raw(msgspec.json.encode(entry.result))
    return StepResult("done", request.key, result=value)


def locked(row: Record) -> Refused:
    """The error of a call that must be repeated."""
    return Refused(
        503, "storage_unavailable", f"job {row.id}: its row is locked by another transaction; repeat the call"
    )
