"""One trip after the other: settle what has ended, claim for what is free, start what came. The hot loop.

Without it nothing would move. What ends during a trip rides on the next one; there is no linger timer
(0.5-2 ms of linger cost 20-40 %, hotpath study).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.core import defaults
from treadle.core.events import Emitter, Event, lease_expired, was_lost
from treadle.core.model import APPLIED, DECLINED, Claim, Claimed, Outcome, Record, Settled, State
from treadle.durable.steps import DurableBackend
from treadle.errors import StorageError, StorageFull, StorageUnavailable, TreadleError, UnknownTask
from treadle.execution.context import Context, Results
from treadle.execution.runner import AnyTask, OwnTask, Runner
from treadle.policy import judge
from treadle.policy.retry import DEFAULT
from treadle.storage.contract import Fused, Storage
from treadle.tasks.batch import BatchTask
from treadle.worker import commit, job_log
from treadle.worker.executors.batches import Batches
from treadle.worker.handoff import HandOff
from treadle.worker.job_events import event_of, name_of
from treadle.worker.lost_jobs import LostReporter
from treadle.worker.outage import StorageOutage
from treadle.worker.state import RunningJob, Timers, WorkerState
from treadle.workflow.finisher import WorkflowFinisher
from treadle.workflow.fold import failure

log = logging.getLogger("treadle")

NOTHING = Claimed()
LOCKED = 30.0  # s that an outcome is tried to be settled while somebody else holds a row it would change
START = 64  # jobs started in one turn of the loop: what 128 no-ops take together held it for 5 ms
AT_LEAST = 0.001  # s between two looks at an empty line: what is due at this very moment may not be claimable yet


class Dispatcher:
    """Several of these may share one worker's slots; never beyond the free ones."""

    def __init__(
        self,
        number: int,
        share: int,
        spare: bool,
        hand: HandOff,
        slots: WorkerState,
        timers: Timers,
        storage: Storage,
        tasks: Mapping[str, AnyTask],
        ask: Callable[[int, int, str], Claim],
        runner: Runner,
        emitter: Emitter,
        poll: float,
        accept: Callable[[Record], Any] | None,
        outage: StorageOutage,
        results: Results,
        own: Mapping[str, OwnTask],
        lost: LostReporter,
        home: DurableBackend,
        ender: WorkflowFinisher,
        batches: Batches,
    ) -> None:
        self._number, self._share, self._results, self._home = number, share, results, home
        self._spare = spare  # it leaves everything to the first while there is work
        self._hand, hand.start = hand, self._start_handed
        self._own, self._lost, self._ender, self._batches = own, lost, ender, batches
        self._label = f"pump {number}"
        self._slots, self._timers, self._storage, self._tasks = slots, timers, storage, tasks
        self._ask, self._runner, self._emitter, self._poll = ask, runner, emitter, poll
        self._accept, self._outage = accept, outage
        self._fused = storage if isinstance(storage, Fused) else None
        self._site = storage, slots.loop
        self._rules: dict[str, judge.Rules] = {}
        self._whole = True  # whether the last claim asked for our own queue too

    async def run(self) -> None:
        """Until the worker claims no more and all that ran is settled."""
        slots = self._slots
        while True:
            outs: list[tuple[RunningJob, Outcome]] = []
            if not self._rests():
                outs, slots.outcomes = slots.outcomes, []
            room = self._room()
            if outs or room or self._hand.stands:
                await self._trip(outs, room)
                await asyncio.sleep(0)  # a storage that answers at once must not hold the loop for the whole drain
            elif slots.stopping and not slots.claiming and not slots.running and not slots.asking:
                return
            else:
                slots.wake.clear()
                if (self._rests() or not slots.outcomes) and not self._room():
                    await slots.wake.wait()

    def _rests(self) -> bool:
        """Whether all is left to the first pump: the line is empty, and it is not under way. Two trips at once for one
        job would only wait for each other (pick-up on Redis, p50: 1.5 ms, not 1.2)."""
        slots = self._slots
        if not self._number or not slots.claiming:
            return False
        return 0 not in slots.settling if slots.idle else self._spare

    def _room(self) -> int:
        slots = self._slots
        if not slots.claiming or slots.pause:
            return 0
        if self._rests() or (self._number and slots.idle and not slots.hinted):
            return 0
        share = self._share
        if self._batches.open:
            # The first pump alone claims items, and those that wait take no slot. With half of the slots, beside
            # claims of the other pump that bring nothing, a call of 50 took ten trips.
            share = 0 if self._number else slots.free
        return max(0, min(slots.free + self._hand.stands, share, defaults.CLAIM_MOST))

    async def _trip(self, outs: list[tuple[RunningJob, Outcome]], room: int) -> None:
        slots, hand = self._slots, self._hand
        stood, ticket = hand.stands, hand.ticket()
        kept = room or int(stood)
        slots.free -= kept
        slots.settling[self._number] = outs
        taken = 0
        try:
            if room:
                slots.hinted = False
            settled, claimed, standing = await self._call([out for _, out in outs], room, ticket, stood)
            taken = len(claimed.records)
        except BaseException:
            slots.outcomes[:0] = outs  # not known to be stored: to be settled again, which law 10 makes safe
            raise
        finally:
            slots.free += kept - taken
            del slots.settling[self._number]
        self._note_settled(outs, settled, claimed.records)
        if room:
            self._note_pace(taken >= room)
            if self._number == 0:  # the others ask for no items
                self._batches.looked(claimed.records)
        if taken:
            hand.answered(False)
            slots.flowing = True
            if slots.idle and (taken >= room or self._number):
                slots.idle = False  # there may be more than the first pump can take
                slots.wake.set()
            for at in range(0, taken, START):
                if at:
                    await asyncio.sleep(0)  # what else is to be done in the loop gets its turn
                self.start_all(claimed.records[at : at + START])
        elif room:
            flowed, slots.flowing = slots.flowing, False
            hand.answered(standing)
            if standing and not hand.stands:
                return  # it has brought a job already
            if not flowed or self._whole:  # else our own queue was left out of that claim: look again
                await self._wait_for_work(claimed.next_in)

    async def _call(
        self, outs: list[Outcome], room: int, ticket: str, stood: bool
    ) -> tuple[Sequence[Settled], Claimed, bool]:
        """Settle and claim in one trip, again and again while the storage is away: law 10 makes that safe. Any other
        refusal may concern one outcome: they are settled one by one then, and those refused say why.

        `stood`: there is an ask to be withdrawn, if we claim no more. Answers also whether there is one now."""
        settled: Sequence[Settled] | None = None if outs else []
        asked = apart = False
        answer: tuple[Sequence[Settled], Claimed]
        while True:
            # Said anew at each try: what we hold has changed meanwhile, and a job of ours must not come back to us.
            ask = self._ask(room, self._number, ticket) if room else self._hand.withdrawal() if stood else None
            self._whole = ask is not None and ask.queues != () and ask.queues[0][0] == defaults.OWN_QUEUE
            try:
                if apart and settled is None:
                    settled = await self._settle_apart(outs)
                if self._fused is not None and ask is not None and not apart:
                    asked = True
                    answer = await self._fused.settle_claim(outs, ask)
                else:
                    # Once answered it is not asked again: who came after may have claimed the job meanwhile.
                    settled = await self._storage.settle(outs) if settled is None else settled
                    asked = ask is not None
                    answer = settled, NOTHING if ask is None else await self._storage.claim(ask)
            except TreadleError as error:
                if outs and not apart and not isinstance(error, StorageUnavailable | StorageFull):
                    apart = True
                    continue
                if not isinstance(error, StorageError):
                    raise
                if settled and all(each.status == "refused" for each in settled):
                    apart, settled = False, None  # it refuses everything: no outcome is to blame
                await self._outage.failed(self._label, error)
                # What was claimed by a call whose answer was lost is ours all the same: ask on, to hand it back.
                if not self._slots.claiming:
                    room, stood = room if asked else 0, False  # an ask ends by itself
            else:
                self._outage.answered(self._label)
                return *answer, room > 0 and ask is not None and ask.hand is not None

    async def _settle_apart(self, outs: Sequence[Outcome]) -> list[Settled]:
        """Each outcome by itself. Raises StorageUnavailable, StorageFull, and what a storage says that refuses all."""
        ids, settled = [out.id for out in outs], list[Settled]()
        await self._storage.get(ids)  # while it refuses this too, no outcome is to blame
        for out in outs:
            try:
                settled += await self._storage.settle([out])
            except (StorageUnavailable, StorageFull):
                raise
            except TreadleError as error:
                settled.append(Settled("refused", str(error)))
        if all(each.status == "refused" for each in settled):
            await self._storage.get(ids)
        return settled

    def _note_pace(self, full: bool) -> None:
        """Who took as much as it could may be behind; who could have taken more is not."""
        if not full:
            self._slots.behind_since = None
        elif self._slots.behind_since is None:
            self._slots.behind_since = self._slots.loop.time()

    async def _wait_for_work(self, next_in: float | None) -> None:
        """The line is empty: until a hint, the next due moment, or the poll that nets lost hints."""
        slots = self._slots
        slots.idle = True
        if self._number:
            # The first pump waits for all, until a claim finds more than it can take. It may have gone to sleep for
            # want of the slots this claim had reserved, and then nobody would look at the clock.
            if not slots.watched:
                slots.wake.set()
            return
        if slots.outcomes or slots.hinted or not slots.claiming:
            slots.hinted = False
            return
        wait = self._poll if next_in is None else min(self._poll, max(next_in, AT_LEAST))
        slots.wake.clear()
        timer = asyncio.get_running_loop().call_later(wait, slots.wake.set)
        slots.watched = True
        try:
            await slots.wake.wait()
        finally:
            slots.watched = False
            timer.cancel()

    # --- starting and ending one job

    def start_all(self, records: Sequence[Record]) -> None:
        """Run claimed jobs; their slots are taken already. One that cannot be started does not keep the others."""
        for record in records:
            try:
                if self._slots.stopping:
                    self._not_started(record, judge.handed_back(record))
                else:
                    self.start(record)
            except Exception:
                log.exception("%s %s could not be started; its lease will run out", record.job.task, record.job.id)
                self._slots.free += 1

    def _start_handed(self, records: Sequence[Record]) -> None:
        if any(record.job.id in self._slots.running for record in records):
            for record in records:  # its lease was lost, and it still runs here
                self._not_started(record, judge.handed_back(record))
        else:
            self.start_all(records)

    def start(self, record: Record) -> None:
        """Run a claimed job; its slot is taken already."""
        slots, job = self._slots, record.job
        if record.lost and was_lost(record):
            self._tell_expired(record)
        task = self._tasks.get(job.task) or self._own.get(job.task)
        if record.ran:
            max_lost = defaults.MAX_LOST if task is None else self._rules_for(task, record).max_lost
            run = RunningJob(record, _NO_TASK, Context(record, slots.name, slots.noted), NO_RULES, job.lease or 0.0)
            slots.begin(run, self._end(run, max_lost))
            return
        if task is None:
            # Claims name our tasks, so this is a storage's mistake, or a task taken away meanwhile: back, uncounted.
            log.error("%s", UnknownTask(job.task, tuple(self._tasks)))
            self._not_started(record, judge.handed_back(record, 5.0))
            return
        rules = self._rules.get(job.task) if job.retry is None else None
        if rules is None:
            rules = self._rules_for(task, record)
        context = Context(record, slots.name, slots.noted, self._results, self._home)
        context.site = self._site
        run = RunningJob(record, task, context, rules, job.lease or task.lease or 0.0)
        if rules.timeout is not None:
            self._timers.add(rules.timeout, run, "timeout")
        if record.deadline_at is not None and record.started_at is not None:
            self._timers.add(record.deadline_at - record.started_at, run, "deadline")
        if isinstance(task, BatchTask):
            run.gathered = True
            slots.free += 1
        slots.begin(run, self._work(run))

    async def _work(self, run: RunningJob) -> None:
        outcome: Outcome | None = None
        task, context = run.task, run.context
        run.begun = True
        try:
            if run.cut:
                raise asyncio.CancelledError
            if run.record.lost:
                outcome = self._lost_too_often(run)
            if isinstance(task, OwnTask):
                outcome = await self._runner.run_own(task, context, run.rules)
            elif outcome is None and self._accept is not None and not await self._accepts(run):
                self._slots.troubles[context] = None
                outcome = judge.handed_back(run.record, self._poll, reason=DECLINED + self._slots.name)
            elif outcome is None:
                if not self._emitter.silent and self._emitter.wants("started"):
                    self._emitter.emit(event_of("started", run, self._slots.name))
                if task.kind == "async":
                    context.place = run.handle or asyncio.current_task()
                outcome = await self._runner.run(task, context, run.rules)
                if outcome is not None and context.durable is not None:
                    outcome = await context.durable.concluded(outcome)
        except asyncio.CancelledError:
            outcome = None if context.why == "lost" else judge.handed_back(run.record)
        except Exception as error:
            # Not the job's doing: a fault of ours. It counts, so that it cannot go on for ever.
            log.exception("running %s %s failed outside the task", run.task.name, run.record.job.id)
            self._slots.troubles[context] = error
            outcome = judge.failed(run.record, run.rules, error, None, run.record.started_at or 0.0, 1.0)
        finally:
            if context.open is not None:
                outcome = await commit.undisturbed(self._end_jointly(run, outcome))
            self._slots.end(run, outcome)

    def _lost_too_often(self, run: RunningJob) -> Outcome | None:
        outcome = judge.lost_too_often(run.record, run.rules)
        if outcome is not None:
            self._slots.troubles[run.context] = None
        return outcome

    async def _end_jointly(self, run: RunningJob, outcome: Outcome | None) -> Outcome | None:
        """What is left to be settled of a run that holds a transaction."""
        try:
            return await commit.end(run, outcome, self._storage)
        except commit.Committed:
            assert outcome is not None
            self._tell(run, outcome)
            return None

    def _tell_expired(self, record: Record) -> None:
        event = lease_expired(record)
        if job_log.wanted(event.name, event.task):
            job_log.write(event)
        if self._emitter.wants(event.name):
            self._emitter.emit(event)

    def _tell(self, run: RunningJob, outcome: Outcome) -> None:
        emitter, final, troubles = self._emitter, outcome.state.final, self._slots.troubles
        in_trouble = run.context in troubles
        error = troubles.pop(run.context, None)
        if emitter.silent and not in_trouble:
            return
        name = name_of(run.record, outcome)
        if not (run.record.ran and not final):
            logged, heard = in_trouble and job_log.wanted(name, run.record.job.task), emitter.wants(name)
            if logged or heard:
                event = event_of(name, run, self._slots.name, outcome)
                if logged:
                    job_log.write(event, error)
                if heard:
                    emitter.emit(event)
        if final and run.record.job.root is None and emitter.wants("workflow.ended"):
            emitter.emit(event_of("workflow.ended", run, self._slots.name, outcome))

    async def _end(self, run: RunningJob, max_lost: int) -> None:
        """A job that has run and waited: only its ending is left."""
        outcome: Outcome | None = None
        record, run.begun = run.record, True
        try:
            if run.cut:
                raise asyncio.CancelledError
            outcome = await self._ender.end(record, max_lost)
            if outcome.state is not State.SUCCEEDED:
                self._slots.troubles[run.context] = None
        except asyncio.CancelledError:
            outcome = None if run.context.why == "lost" else judge.handed_back(record)
        except Exception as error:  # a fault of ours, or rows that cannot be read: told, not tried for ever
            log.exception("ending %s %s failed", record.job.task, record.job.id)
            outcome = failure(record, judge.text_of(error))
            self._slots.troubles[run.context] = error
        finally:
            self._slots.end(run, outcome)

    async def _accepts(self, run: RunningJob) -> bool:
        assert self._accept is not None
        try:
            answer = self._accept(run.record)
            return bool(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            # Not the job's fault: it goes back uncounted, like one that was declined.
            log.exception("accept failed for %s %s; it is handed back", run.task.name, run.record.job.id)
            if self._emitter.wants("worker.error"):
                self._emitter.emit(Event(name="worker.error", worker=self._slots.name, error=error))
            return False

    def _rules_for(self, task: AnyTask | OwnTask, record: Record) -> judge.Rules:
        if record.job.retry is not None:
            return judge.rules_for(record, task.retry, task.timeout, task.max_lost)
        known = self._rules.get(task.name)
        if known is None:
            known = self._rules[task.name] = judge.rules_for(record, task.retry, task.timeout, task.max_lost)
        return known

    def _not_started(self, record: Record, outcome: Outcome) -> None:
        """Settle a claimed job that does not run here."""
        run = RunningJob(record, _NO_TASK, Context(record, self._slots.name, lambda: None), NO_RULES, 0.0)
        run.ended = True
        self._slots.free += 1
        self._slots.outcomes.append((run, outcome))
        self._slots.wake.set()

    def _note_settled(
        self, outs: list[tuple[RunningJob, Outcome]], settled: Sequence[Settled], claimed: Sequence[Record]
    ) -> None:
        """Tell what became of what; an outcome the storage cannot keep is a failed attempt."""
        silent, troubles = self._emitter.silent, self._slots.troubles
        if silent and not troubles and settled.count(APPLIED) == len(outs) == len(settled):
            return
        for (run, outcome), answer in zip(outs, settled, strict=True):
            if silent and answer is APPLIED and run.context not in troubles:
                continue  # nobody is to be told
            if answer.status == "applied" or (
                answer.status == "stale"
                and not outcome.state.final  # what has ended does not come back: its lease had run out before
                and (_came_back(outcome, claimed) or self._slots.came_back(outcome.id, outcome.version))
            ):
                self._tell(run, outcome)
            elif answer.status == "stale":
                troubles.pop(run.context, None)
                log.info(
                    "%s %s was settled by somebody else: %s", run.record.job.task, run.record.job.id, answer.reason
                )
                if run.context.why != "lost":
                    self._lost.tell(run)
            elif answer.again and self._may_wait(run):
                self._slots.outcomes.append((run, outcome))  # it ran well: somebody only stands in the way
                self._slots.wake.set()
            elif run.refused or answer.again:
                job = run.record.job
                troubles.pop(run.context, None)
                log.error("%s %s cannot be settled (%s); its lease will run out", job.task, job.id, answer.reason)
            else:
                run.refused = True
                troubles[run.context] = None
                error = StorageError(answer.reason or "refused")
                again = judge.failed(run.record, run.rules, error, None, run.record.started_at or 0.0, 1.0)
                if run.record.ran:
                    again = failure(run.record, str(error))
                self._slots.outcomes.append((run, again))
                self._slots.wake.set()

    def _may_wait(self, run: RunningJob) -> bool:
        """Whether an outcome that a locked row keeps from being settled is tried once more. Each try waits for 1 s."""
        now = self._slots.loop.time()
        run.blocked_since = run.blocked_since or now
        return now - run.blocked_since < LOCKED


_NO_TASK: Any = None
NO_RULES = judge.Rules(DEFAULT, None, 0)


def _came_back(outcome: Outcome, claimed: Sequence[Record]) -> bool:
    """Whether its own trip brought the job back: it was settled, claimed, and the answer that said so was lost."""
    return any(row.job.id == outcome.id and row.version == outcome.version + 2 for row in claimed)
