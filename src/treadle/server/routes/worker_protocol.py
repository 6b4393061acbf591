"""The worker protocol: the methods of the storage contract as JSON, one POST each under /v1/work/.

`App("http://...")` uses it, and so can runners in any language; see docs/guides/runners.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import IdTaken, StorageError
from treadle.core.model import Claimed, Outcome, Record, Settled
from treadle.core.query_model import Glance, Page, Query, Stats
from treadle.core.ranges import (
    FAR,
    MOST_CALL,
    a_count,
    a_name,
    a_span,
    check_change,
    check_ids,
    check_metrics,
    check_query,
)
from treadle.policy import judge
from treadle.server import runner_outcomes
from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.incoming_rows import IncomingRows
from treadle.server.longpoll import LongPoll
from treadle.server.middleware import for_everybody, unchanged
from treadle.server.operation import Call, Operation
from treadle.server.routes.runner_claims import RunnerClaims, placed
from treadle.server.routes.shown import one_queue
from treadle.server.row_checks import MOST_CHANGES, MOST_ROWS, at_most_in_call, check_claim
from treadle.server.runner_metrics import RunnerMetrics
from treadle.server.runner_steps import RunnerSteps
from treadle.server.settings import Settings
from treadle.server.step_messages import StepCall, StepResult
from treadle.server.stream_messages import StreamWrite, StreamWritten
from treadle.server.time_slices import TimeSlices, in_parts, in_turns
from treadle.server.worker_protocol_audit import ProtocolAct, ProtocolActs
from treadle.storage import among, fused, mark_of, messages, whole

if TYPE_CHECKING:
    from treadle.app.core import AppCore

IDS: Final = 8 * 2**20  # bytes of a request with names and ids, without rows: more than 100,000 ids
PART: Final = 1_000  # rows per call of the storage, where the rows of a request are independent
LONGEST_TOPIC: Final = 1_024  # characters
MOST_COUNTED: Final = 100_000  # jobs of each kind that one glance counts


class WorkerProtocol:
    """The worker protocol over the storage of one app."""

    def __init__(self, app: AppCore, waiting: LongPoll, settings: Settings) -> None:
        self._app, self._waiting, self._settings = app, waiting, settings
        self._gate, self._metrics = IncomingRows(lambda: app.storage, settings.pass_texts), RunnerMetrics(app)
        self._claims = RunnerClaims(app, waiting, settings)
        self._acts, self._steps = ProtocolActs(app), RunnerSteps(app, self._gate, self._metrics)

    # --- the life of a job

    @Operation("POST /v1/work/hello", tag="work")
    async def hello(self, call: Call[messages.Nothing, messages.Nothing]) -> messages.Hello:
        """Check that this is a Treadle server and that it accepts the token.

        The answer has the rights of the token and the size of the largest request.
        """
        mark = None
        with suppress(StorageError):  # clients may connect during an outage of the storage
            mark = await mark_of(self._app.storage)
        moving = None if mark is None else messages.Moving(mark.role, mark.other)
        able = self._app.storage.capabilities
        texts = able.payloads or bool(able.keys) or able.reads_texts
        scopes, queues, passes = call.token.scopes, call.token.queues, self._settings.pass_texts
        return messages.Hello(self._settings.max_body, scopes, queues, moving, texts, passes)

    @Operation("POST /v1/work/enqueue", tag="work", scope="enqueue|work|operate", most=None, bare=True)
    async def enqueue(self, call: Call[messages.Enqueue, messages.Nothing]) -> messages.Records:
        """Store jobs, all or none.

        A worker's once-locks and cleanup jobs need the scope "work", entries of the audit log "operate", and other jobs
        "enqueue".
        """
        sent, token = call.body.jobs, call.token
        own = await self._gate.jobs(token, sent)
        jobs = await rights.to_store(token, sent)
        await rights.refuse_known(token, sent, self._app.storage.get)
        try:
            async with self._acts.recorded(call, await self._acts.of_jobs(own)):
                rows = await self._app.storage.enqueue(jobs)
        except IdTaken as error:
            raise rights.without_row(token, error) from None
        pairs = zip(rows, sent, strict=True)
        return messages.Records(tuple(await in_turns(lambda pair: rights.shown(token, *pair), pairs)))

    @Operation("POST /v1/work/claim", tag="work", scope="work", most=IDS, bare=True)
    async def claim(self, call: Call[messages.ClaimCall, messages.Nothing]) -> Claimed:
        """Claim jobs; with `wait`, wait for the first."""
        claimed = await self._claims.claim(call)
        self._acts.claimed(claimed.records)
        return claimed

    @Operation("POST /v1/work/heartbeat", tag="work", scope="work", most=None)
    async def heartbeat(self, call: Call[messages.Beat, messages.Nothing]) -> messages.HeartbeatResult:
        """Renew leases; returns those that are lost or not saved."""
        body, token = call.body, call.token
        await self._gate.beat(token, body.worker, body.renewals, body.lease)
        worker, renewals = rights.to_beat(token, body.worker, body.renewals)
        lost, unsaved, turns = set[str](), set[str](), TimeSlices()
        async with self._acts.recorded(call, await self._acts.of_renewals(renewals)):
            for part in list(in_parts(renewals, PART, lambda _: 1)) or [()]:
                held = await self._app.storage.heartbeat(worker, part, body.lease)
                lost |= held.lost
                unsaved |= held.unsaved
                await turns.step()
        return messages.HeartbeatResult(tuple(sorted(lost)), tuple(sorted(unsaved)))

    @Operation("POST /v1/work/settle", tag="work", scope="work|operate", most=None, bare=True)
    async def settle(self, call: Call[messages.Settle, messages.Nothing]) -> messages.AllSettled:
        """Settle outcomes, each by itself.

        A report is judged here, an outcome is complete. Without the scope "work", only entries of the audit log can be
        settled.
        """
        body, token = call.body, call.token
        turns = TimeSlices()
        at_most_in_call("outcomes", len(body.outcomes), MOST_ROWS)
        is_open = await in_turns(runner_outcomes.check, body.outcomes)
        open_ones = [report.id for report, needs_judging in zip(body.outcomes, is_open, strict=True) if needs_judging]
        rows = {row.id: row for row in await self._app.storage.get(open_ones) if row is not None} if open_ones else {}
        outcomes: list[Outcome] = []
        for report in body.outcomes:
            await turns.step()
            if report.state is not None:
                outcomes.append(report.outcome())
            elif (row := rows.get(report.id)) is not None:
                max_lost, now = defaults.MAX_LOST, self._app.now()
                ready = await runner_outcomes.prepared(report, row, self._app.client.prepared)
                chance, most = self._app.random(), self._app.sizes.result
                outcome = runner_outcomes.judged(ready, row, self._app.retry, max_lost, now, chance, most)
                outcomes.append(runner_outcomes.with_spent(outcome, report, row))
        allowed, refused, of_operators = await self._checked(token, outcomes)
        await self._steps.complete(token, rows, allowed)
        async with self._acts.recorded(call, await self._acts.of_outcomes(allowed, of_operators)):
            answers = list(among(refused, await self._settled(allowed)))
        await self._end_refused(token, rows, outcomes, answers)
        await self._steps.end_signals(token, rows, outcomes, answers)
        self._count(open_ones, rows, outcomes, answers)
        settled = iter(answers)
        unknown = Settled("stale", "there is no such job")
        is_known = [report.state is not None or report.id in rows for report in body.outcomes]
        return messages.AllSettled(tuple(next(settled) if known else unknown for known in is_known))

    async def _end_refused(
        self, token: Token, rows: Mapping[str, Record], outcomes: Sequence[Outcome], answers: Sequence[Settled]
    ) -> None:
        """End the jobs of these rows whose reports say that their functions have returned, and whose outcomes cannot be
        stored."""
        now = self._app.now()
        ends = [
            runner_outcomes.refused(outcome, answer.reason or "refused", rows[outcome.id], now)
            for outcome, answer in zip(outcomes, answers, strict=True)
            if answer.status == "refused" and not answer.again and outcome.id in rows and judge.has_returned(outcome)
        ]
        if ends:
            may, _, _ = await self._checked(token, ends)
            await self._settled(may)

    def _count(
        self, judged: Sequence[str], rows: Mapping[str, Record], outcomes: Sequence[Outcome], answers: Sequence[Settled]
    ) -> None:
        """Count the jobs whose reports were judged here. A repeated report is applied again and counts once."""
        ids = frozenset(judged)
        for outcome, answer in zip(outcomes, answers, strict=True):
            row = rows.get(outcome.id) if outcome.id in ids else None
            if row is not None and answer.status == "applied" and row.version == outcome.version:
                self._metrics.settled(row, outcome)

    async def _settled(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Settle the outcomes in parts; they are independent."""
        answers: list[Settled] = []
        turns = TimeSlices()
        for part in in_parts(outcomes, PART, _rows):
            answers += await self._app.storage.settle(part)
            await turns.step()
        return answers

    @Operation("POST /v1/work/steps", tag="work", scope="work", most=None, bare=True)
    async def steps(self, call: Call[StepCall, messages.Nothing]) -> StepResult:
        """Take a step, a sleep or a wait of a durable function.

        Its outcome is in the history of the job when this answers, and is the same in every run.
        """
        return await self._steps.take(call.token, call.body)

    @Operation("POST /v1/work/stream", tag="work", scope="work", most=None)
    async def stream(self, call: Call[StreamWrite, messages.Nothing]) -> StreamWritten:
        """Add chunks to a stream of a job that the runner holds."""
        return await self._steps.write(call.token, call.body)

    @Operation("POST /v1/work/settle_claim", tag="work", scope="work", most=None, bare=True)
    async def settle_claim(self, call: Call[messages.SettleClaim, messages.Nothing]) -> messages.SettledClaimed:
        """Settle and claim in one round trip."""
        body, token = call.body, call.token
        claim, storage = rights.to_claim(token, placed(body.claim, self._app.tasks)), self._app.storage
        check_claim(claim)
        allowed, refused, of_operators = await self._checked(token, body.outcomes)
        *first, last = list(in_parts(allowed, PART, _rows)) or [()]
        async with self._acts.recorded(call, await self._acts.of_outcomes(allowed, of_operators)):
            before = [answer for part in first for answer in await self._settled(part)]
            if both := fused(storage):
                settled, claimed = await both.settle_claim(last, claim)
            else:
                settled, claimed = await storage.settle(last), await storage.claim(claim)
        answers = tuple(among(refused, [*before, *settled]))
        readable = await self._claims.readable(token, claimed, body.claim.most, messages.AllSettled(answers))
        self._acts.claimed(readable.records)
        return messages.SettledClaimed(answers, readable)

    # --- reading

    @Operation("POST /v1/work/get", tag="work", scope="read", most=IDS, bare=True)
    async def get(self, call: Call[messages.Ids, messages.Nothing]) -> messages.Records:
        """Return rows by id, in the order of the ids."""
        body, token = call.body, call.token
        check_ids("ids", body.ids)
        rows = await whole(self._app.storage, await self._app.storage.get(body.ids))
        return messages.Records(tuple(row if row is not None and rights.sees(token, row) else None for row in rows))

    @Operation("POST /v1/work/find", tag="work", scope="read", most=IDS, bare=True)
    async def find(self, call: Call[Query, messages.Nothing]) -> Page:
        """Return one page of rows.

        A token of one queue reads that queue; a token of several must name one of them.
        """
        query, token = call.body, call.token
        check_query(query)
        query = replace(query, queue=one_queue(call, query.queue, "name one queue"))
        if token.queues and query.ahead_of is not None:
            [row] = await self._app.storage.get([query.ahead_of])
            if row is None or not token.sees(row.job.queue):
                return Page(total=0 if query.count else None)
        page = await self._app.storage.find(query)
        return replace(page, records=tuple(row for row in page.records if rights.sees(token, row)))

    @Operation("POST /v1/work/stats", tag="work", scope="read")
    async def stats(self, call: Call[messages.Nothing, messages.Nothing]) -> Stats:
        """Return counts, workers and limits."""
        return rights.seen(call.token, await self._app.storage.stats())

    @Operation("POST /v1/work/glance", tag="work", scope="read")
    async def glance(self, call: Call[messages.GlanceCall, messages.Nothing]) -> Glance:
        """Return queues, workers and limits, counted to a bound."""
        a_count("most", call.body.most, 1, MOST_COUNTED)
        return rights.glanced(call.token, await self._app.storage.glance(call.body.most))

    @Operation("POST /v1/work/recount", tag="work", scope="operate", most=None)
    async def recount(self, call: Call[messages.Recount, messages.Nothing]) -> messages.Drifts:
        """Compare the kept counts with the rows."""
        for_everybody(call.token, "the counts of all rows")
        acts = [ProtocolAct("counts.repair", "")] if call.body.repair else []
        async with self._acts.recorded(call, acts):
            return messages.Drifts(await self._app.storage.recount(call.body.repair))

    # --- metrics

    @Operation("POST /v1/work/store_metrics", tag="work", scope="work", most=None)
    async def store_metrics(self, call: Call[messages.StoreMetrics, messages.Nothing]) -> messages.Nothing:
        """Store rows of metrics, each in place of the one with its identity.

        A token that is bound to queues stores those of its own workers only.
        """
        body, token = call.body, call.token
        at_most_in_call("rows", len(body.rows) + len(body.remove), MOST_ROWS)
        for row in (*body.rows, *body.remove):
            check_metrics(row)
        await self._app.storage.store_metrics(
            rights.to_measure(token, body.rows), rights.to_measure(token, body.remove)
        )
        return messages.Nothing()

    @Operation("POST /v1/work/read_metrics", tag="work", scope="read")
    async def read_metrics(self, call: Call[messages.ReadMetrics, messages.Nothing]) -> messages.MetricsRows:
        """Return rows of metrics.

        They are of all queues, so a token that is bound to queues gets none.
        """
        for_everybody(call.token, "rows of metrics")
        for option, moment in (("since", call.body.since), ("until", call.body.until)):
            a_span(option, moment, -FAR, FAR)
        return messages.MetricsRows(tuple(await self._app.storage.read_metrics(call.body.since, call.body.until)))

    # --- maintenance

    @Operation("POST /v1/work/limits", tag="work", scope="read")
    async def limits(self, call: Call[messages.LimitsCall, messages.Nothing]) -> messages.LimitUses:
        """Return limits, their pauses and their use."""
        return messages.LimitUses(rights.limits_seen(call.token, await self._app.storage.limits(call.body.use)))

    @Operation("POST /v1/work/set_limits", tag="work", scope="operate", most=None)
    async def set_limits(self, call: Call[messages.LimitChanges, messages.Nothing]) -> messages.Nothing:
        """Set, remove, pause and resume limits."""
        body, token = call.body, call.token
        at_most_in_call("changes", len(body.changes), MOST_CHANGES)
        changes = body.read()
        rights.to_set_limits(token, changes)
        for change in changes:
            check_change(change)
        async with self._acts.recorded(call, await self._acts.of_changes(changes)):
            await self._app.storage.set_limits(changes)
        return messages.Nothing()

    @Operation("POST /v1/work/prune", tag="work", scope="operate")
    async def prune(self, call: Call[messages.Prune, messages.Nothing]) -> messages.Number:
        """Delete ended rows past their retention."""
        for_everybody(call.token, "old rows")
        a_count("limit", call.body.limit, 0, MOST_CALL)
        async with self._acts.recorded(call, self._acts.of_prune(call.token.name)):
            self._acts.pruned(call.token.name)
            return messages.Number(await self._app.storage.prune(call.body.limit))

    @Operation("POST /v1/work/watch", tag="work", scope="read", most=IDS)
    async def watch(self, call: Call[messages.Watch, messages.Nothing]) -> messages.Topics:
        """Wait for a hint."""
        body, token = call.body, call.token
        at_most_in_call("topics", len(body.topics), MOST_CALL)
        for topic in body.topics:
            a_name("topics", topic, LONGEST_TOPIC)
        a_span("timeout", body.timeout)
        jobs = [topic[4:] for topic in body.topics if topic.startswith("job:")] if token.queues else []
        rows = await self._app.storage.get(jobs) if jobs else ()
        visible = {row.id for row in rows if row is not None and token.sees(row.job.queue)}
        topics = rights.topics(token, body.topics, visible)
        wait = max(0.0, min(body.timeout, self._settings.max_wait))
        hints = self._app.storage.watch(tuple(topics), wait)
        notified = await self._waiting.unless_stopped(hints, call.request.receive)
        await unchanged(call.request)
        return messages.Topics(tuple(sorted(topics[topic] for topic in notified or () if topic in topics)))

    async def _checked(
        self, token: Token, outcomes: Sequence[Outcome]
    ) -> tuple[list[Outcome], dict[int, Settled], frozenset[str]]:
        """The outcomes limited to the rights of the token, the refused ones by their index, and the ids of those that
        only an operator may store."""
        at_most_in_call("outcomes", len(outcomes), MOST_ROWS)
        await runner_outcomes.check_ids(outcomes)
        odd, of_operators = await self._gate.outcomes(token, outcomes)
        may: list[Outcome] = []
        turns = TimeSlices()
        for number, out in enumerate(outcomes):
            await turns.step()
            if number not in odd:
                try:
                    may.append(rights.to_settle(token, out))
                except Refused as error:
                    odd[number] = Settled("refused", str(error))
        return may, odd, of_operators


def _rows(out: Outcome) -> int:
    return 1 + len(out.followups)
