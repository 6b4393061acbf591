"""Runs an app's tasks on a test storage, under a clock that the test advances: the result of `app.testing()`.

Code that enqueues needs no second app, and the real storage is not touched.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from msgspec.structs import replace

from treadle.admin import EmptiedWatch, stored_values
from treadle.app.core import injectors
from treadle.app.storage_choice import StorageChoice
from treadle.core import defaults
from treadle.core.awaiting import async_block
from treadle.core.errors import BadArgument, BadOption
from treadle.core.limit_model import LimitUse
from treadle.core.model import Claim, NewJob, Record
from treadle.core.query_model import Query
from treadle.policy.retry import seconds as in_seconds
from treadle.resources import Life, Overrides
from treadle.scheduling.ticker import TASK as SCHEDULE
from treadle.serialization.call_codec import CallCodec
from treadle.storage import MemoryStorage
from treadle.tasks.stub import Stub
from treadle.testing.assertions import Call, Expected, What, missing, unexpected
from treadle.testing.clock import HandClock
from treadle.testing.codec_check import Checked
from treadle.testing.drain import Endless, drain_core
from treadle.testing.given_storage import GROUP, MEMORY, UNFINISHED, Given, GivenStorage, apart, each_row, rows_of
from treadle.testing.payloads import in_test
from treadle.testing.transactions import Transactions, When, at_once
from treadle.worker import InlineWorker, Runs
from treadle.workflow.locks import is_free
from treadle.workflow.plan import FLOW
from treadle.workflow.signals import signal_name

if TYPE_CHECKING:
    from treadle.admin import Jobs
    from treadle.app.core import AppCore
    from treadle.storage.contract import Storage
    from treadle.tasks.task import AnyTask

STEP = 0.001  # seconds; the smallest clock move from one due time to the next
BLOCK = "`async with app.testing() as t:`, or `with app.sync.testing() as t:`"
STUCK = 20  # clock moves in a row, each twice as long, without a run; then no due job will ever run
ENDLESS = 86_400.0  # seconds; beyond it, check whether only signal waits without a timeout are left
UNCOMMITTED = (
    "\n{} more of this task wait for the commit of their within=; in a Django TestCase, which never commits, wrap the "
    "code in self.captureOnCommitCallbacks(execute=True)"
)
QUEUE_RULE = "queue:"  # prefix of the limit of a queue


@async_block(f"write {BLOCK} in synchronous code")
class Testing:
    """A context in which the app stores its jobs in the test's storage, under `clock`.

    Ids count up, and delays have no jitter. Tasks, middleware and listeners are the app's own. An argument that its
    codec does not decode to itself raises BadArgument at the enqueue; such a result fails the job with BadResult.
    Leaving the context restores the app.

    storage  a URL, or a function from the clock to a storage that reads it, called for each reader of the test.
             Storages other than memory must be empty at the beginning (NotEmpty); the test's rows are removed at the
             end. With `blobs=` of the app, large texts are in memory, whichever the storage
    within   in memory, "commit": jobs of `within=session` are stored when the session commits and dropped when it rolls
             back, for SQLAlchemy sessions and Django's connection; "at_once": they are stored at once, for any session.
             Other storages always behave like "commit", and "at_once" raises BadOption
    overrides  functions that replace providers of `depends(...)`, or the lifespan, by what they replace
    """

    __test__ = False  # otherwise pytest collects it because of its name

    def __init__(
        self,
        core: AppCore,
        clock: HandClock | None = None,
        *,
        storage: Given = MEMORY,
        within: When = "commit",
        threads: Runs | None = None,
        overrides: Overrides | None = None,
    ) -> None:
        self._overrides = dict(overrides or {})
        core.resources.check(self._overrides, injectors(core))
        clock_given: object = clock
        if not isinstance(clock_given, HandClock | None):
            problem = f"{clock_given!r}; a storage is given by name, app.testing(storage=...)"
            raise BadOption("clock", f"expected a treadle.testing.HandClock, found {problem}")
        if within not in ("commit", "at_once"):
            raise BadOption("within", f'expected "commit" or "at_once", found {within!r}')
        self._core, self.clock, self._threads = core, clock or HandClock(), threads
        self._given: GivenStorage | None = None
        self._transactions: Transactions | None = None
        self.storage: Storage
        if storage == MEMORY:
            self.storage = MemoryStorage(self.clock)
            self._transactions = Transactions(self.storage, within)
            vars(self.storage).update(
                within=self._transactions.within,
                begin=self._transactions.begin,
                oldest_open=self._transactions.oldest_open,
                capabilities=replace(self.storage.capabilities, transactions=True),
            )
        else:
            if within != "commit":
                why = "because the storage itself stores at the commit"
                raise BadOption("within", f'expected "commit" with storage=, {why}')
            self._given = GivenStorage(storage, self.clock)
            self.storage = self._given.make()
        self._texts = in_test(core.choice.wrap, self.clock)
        self._changes = ExitStack()
        self._peeks = count(1)
        self._stage: Literal["new", "entered", "left"] = "new"
        self._life: Life | None = None  # entered by the first drain, left at the end of the test

    async def __aenter__(self) -> Self:
        storage = self._given
        if self._stage != "new":
            raise BadOption("testing", "a test can be entered once: call app.testing() for each `async with`")
        if storage is not None:
            await storage.begin()
        try:
            self._change_app()
            await self._core.open()
            if storage is not None:
                await storage.check(self.storage)
        except BaseException:
            await self._leave()
            raise
        if self._transactions is not None:
            self._transactions.loop = asyncio.get_running_loop()
        self._stage = "entered"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._stage = "left"
        failed = await self._leave()
        if failed is not None and error is None:
            raise failed

    async def _leave(self) -> BaseException | None:
        """Restore the app. Returns the error of its lifespan."""
        error: BaseException | None = None
        try:
            try:
                if self._life is not None:
                    error = await self._core.resources.leave(self._life)
            finally:
                await self._core.close()
        finally:
            self._changes.close()
            if self._transactions is not None:
                self._transactions.undo.close()
            if self._given is not None:
                await self._given.clear()
        return error

    def _change_app(self) -> None:
        core, ids = self._core, count(1)
        new: dict[str, Any] = {
            "choice": StorageChoice(
                storage=self.storage,
                clock=self.clock,
                # in memory, the commit is observed at the session; elsewhere the outbox is used as it is
                outbox=None if self._transactions is not None else core.choice.outbox,
                wrap=self._texts,
            ),
            "now": self.clock,
            "random": lambda: 0.0,
            "inline": InlineWorker(core),
            "resources": core.resources.for_test(self._overrides),
            "in_test": True,
        }
        for name, value in new.items():
            self._change(core, name, value)
        self._change(core, "life", core.new_life(core.choice))
        self._change(core, "emptied", EmptiedWatch(core.opened, self.clock))  # the test before has left no mark
        self._change(core.client, "at_hand", core.life.at_hand)
        # Jobs enqueued at the same moment are queued by id, so ids must sort in counting order.
        self._change(core.maker, "new_id", lambda: f"job-{next(ids):06d}")
        self._change(core.maker, "now", self.clock)
        self._change(core.jobs, "_now", self.clock)
        self._change(core.metrics, "_now", self.clock)
        self._change(core.client, "run_now", None)  # inline jobs wait for `drain` like other jobs
        for task in core.tasks.values():
            self._change(task, "signature", cast("CallCodec", Checked(task.signature, task)))

    def _check_entered(self, what: str) -> None:
        """Raise BadOption outside of the block, where the app uses its own storage."""
        if self._stage != "entered":
            raise BadOption("testing", f"{what} only inside the block: {BLOCK}")

    def _change(self, target: object, name: str, value: Any) -> None:
        self._changes.callback(setattr, target, name, getattr(target, name))
        setattr(target, name, value)

    @property
    def jobs(self) -> Jobs:
        """`app.jobs`."""
        return self._core.jobs

    async def drain(
        self,
        *,
        tasks: Iterable[str | AnyTask] | None = None,
        limit: int = 10_000,
        raise_errors: bool = False,
        concurrency: int = 1,
    ) -> int:
        """Run all due jobs and their follow-up jobs; see `treadle.testing.drain`. Returns the number of runs."""
        self._check_entered("run jobs")
        if self._life is None:
            self._life = await self._core.resources.enter(threads=self._threads)
        return await drain_core(
            self._core,
            tasks=tasks,
            limit=limit,
            raise_errors=raise_errors,
            concurrency=concurrency,
            threads=self._threads,
        )

    async def advance(self, seconds: float | timedelta, *, raise_errors: bool = False) -> int:
        """Advance the clock by `seconds`, running each job when it is due. Returns the number of runs."""
        clock = self.clock
        end, least = clock.moment + in_seconds(seconds, "advance"), STEP
        ran = await self.drain(raise_errors=raise_errors)
        while (wait := await self._next_in()) is not None and clock.moment + max(wait, least) < end:
            clock.advance(max(wait, least))
            now_ran = await self.drain(raise_errors=raise_errors)
            least = STEP if now_ran or wait > least else 2 * least  # a due job cannot run: take longer steps
            ran += now_ran
        clock.moment = end
        return ran + await self.drain(raise_errors=raise_errors)

    async def finish(self, *, limit: int = 10_000, raise_errors: bool = False) -> int:
        """Run every job to its end without sleeping. When nothing is due, the clock moves to the next due time, across
        sleeps, delays, retries and timeouts. Ends when only schedules are left and waits for a signal without a
        timeout. Returns the number of runs. Raises Endless beyond `limit`.
        """
        ran = await self.drain(limit=limit, raise_errors=raise_errors)
        idle = 0  # clock moves in a row without a run: due jobs that cannot run must not loop forever
        while (wait := await self._next_in()) is not None and idle < STUCK:
            if await self._recurs(wait):
                break
            self.clock.advance(max(wait, STEP * 2**idle))
            try:
                more = await self.drain(limit=limit - ran, raise_errors=raise_errors)
            except Endless as error:
                raise Endless(limit, error.last, "finish") from None
            idle = 0 if more or wait > 0 else idle + 1
            ran += more
        return ran

    async def _next_in(self) -> float | None:
        """Seconds until the next job is due, or until the rate of a queue admits the next one."""
        ask = Claim(worker=f"treadle-testing#{next(self._peeks)}", queues=(), tasks={}, limit=1)
        waits = [(await self.storage.claim(ask)).next_in, await self._next_start(await self.storage.limits())]
        return min((wait for wait in waits if wait is not None), default=None)

    async def _next_start(self, limits: Sequence[LimitUse]) -> float | None:
        """Seconds until the rate of a queue admits one of its queued jobs; None: no rate holds one up."""
        opens = {
            use.key.removeprefix(QUEUE_RULE): use.next_start
            for use in limits
            if use.next_start is not None and use.key.startswith(QUEUE_RULE) and not use.pauses
        }
        if not opens:
            return None
        queued = {counted.queue for counted in (await self.storage.stats()).counts if counted.queued}
        moments = [moment for queue, moment in opens.items() if queue in queued]
        return max(0.0, min(moments) - self.clock()) if moments else None

    async def _recurs(self, wait: float) -> bool:
        """Whether nothing is left that a move of the clock can end: only schedules, and waits for signals without a
        timeout, which both begin again for ever; and locks that no job has, which no job waits for either."""
        own = Query(queue=defaults.SYSTEM_QUEUE, state=UNFINISHED, order="oldest", limit=GROUP, whole=True)
        locks = Query(task=FLOW, state=UNFINISHED, order="oldest", limit=GROUP)
        if wait <= ENDLESS and not any(
            [_is_schedule(row) or is_free(row) for query in (own, locks) async for row in each_row(self.storage, query)]
        ):
            return False
        async for row in each_row(self.storage, Query(state=UNFINISHED, order="oldest", limit=GROUP)):
            endless = (
                _is_schedule(row)
                or is_free(row)
                or (signal_name(row) is not None and row.job.deadline == defaults.SIGNAL_ROW)
            )
            if not endless and (row.due_at is not None or row.deadline_at is not None):
                return False
        limits = await self.storage.limits()
        if any(use.blocked and use.next_start is not None and not use.pauses for use in limits):
            return False
        return await self._next_start(limits) is None

    def enqueued(self, task: AnyTask | Stub | str) -> list[Call]:
        """The jobs of a task that were enqueued, oldest first, including those that have run meanwhile.

        A call that returned another job (same id, key held) enqueued none. Raises UnknownTask for the name of no task
        if no job has it; for a task of another program that was not enqueued, pass `app.stub(name)`.
        """
        if not isinstance(task, str):
            return self._calls(task.name)
        calls = self._calls(task)
        if not calls:
            self._core.find_task(task)
        return calls

    def _calls(self, name: str) -> list[Call]:
        return [Call(*self._arguments(record.job), record) for record in self._rows(name)]

    def assert_enqueued(self, what: What, /, *args: Any, **kwargs: Any) -> Call:
        """Return the first job that was enqueued like this, including jobs that have run meanwhile.

        what    a task: any call of it, or with arguments, a call with equal ones, however they were passed. A spec such
                as `send.options(delay=60).job("a@example.org")`: a call with its arguments and the options it sets

        Raises AssertionError, which shows the existing calls and how they differ, nearest first, and BadArgument for
        arguments that the task does not take.
        """
        expected, calls = self._expected(what, args, kwargs)
        for call in calls:
            if not expected.differences(call):
                return call
        others = Counter(record.job.task for record in self._rows(None) if record.job.task)
        held = 0 if self._transactions is None else self._transactions.held(expected.task)
        raise AssertionError(missing(expected, calls, others) + (UNCOMMITTED.format(held) if held else ""))

    def assert_not_enqueued(self, what: What, /, *args: Any, **kwargs: Any) -> None:
        """Check that no job was enqueued like this, see `assert_enqueued`. Raises AssertionError with their ids."""
        expected, calls = self._expected(what, args, kwargs)
        if wrong := [call for call in calls if not expected.differences(call)]:
            raise AssertionError(unexpected(expected, wrong))

    def _expected(self, what: What, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Expected, list[Call]]:
        """The expected call, and the calls of its task."""
        expected = Expected(self._core, what, args, kwargs, self._arguments)
        return expected, self._calls(expected.task)

    def _rows(self, name: str | None) -> list[Record]:
        """The rows of a task, or all; oldest first."""
        if self._stage == "new" or self._given is not None:
            self._check_entered("look at jobs")
        query = Query(task=name, order="oldest", limit=GROUP)
        rows = at_once(rows_of(self.storage, query)) if self._given is None else self._given.rows(query)
        return rows if self._texts is None else apart(self._texts.readable(rows))

    def _arguments(self, new: NewJob) -> tuple[tuple[Any, ...], dict[str, Any]]:
        task = self._core.tasks.get(new.task)
        if task is not None:
            with suppress(BadArgument):  # with `pass_result`, the first argument is not known yet
                return task.signature.decode_call(new.payload)
        return stored_values.arguments(new.payload)


def _is_schedule(row: Record) -> bool:
    """Whether the row is that of a schedule, which never ends."""
    return row.job.task.partition(":")[0] == SCHEDULE
