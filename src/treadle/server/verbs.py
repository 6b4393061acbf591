"""The worker protocol: the contract's verbs as JSON, one POST each under /v1/work/.

Without it only Python programs that reach the database could run jobs. `App("http://...")` speaks it, and so does a
runner in any language; docs/guides/runners.md is the page for those who write one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from treadle import defaults, wire
from treadle.clock import Clock
from treadle.compose.reduce import Reducer
from treadle.ending import Ender
from treadle.model import Claim, Claimed, Outcome, Page, Query, Record, Settled, Stats
from treadle.options import Sizes
from treadle.retry import Retry
from treadle.server import reports
from treadle.server.faults import Refused
from treadle.server.guard import allowed, for_everybody, seen
from treadle.server.operations import Call, Operation
from treadle.server.settings import Settings
from treadle.server.tokens import Token
from treadle.server.waiting import Waiting
from treadle.storage.contract import Fused, Storage

ROUNDS: Final = 20  # claims of one call that find nothing but jobs to be ended
MOST: Final = 10_000  # jobs of one claim, ids of one look: bounds the answer


class Keeper(Protocol):
    """What the verbs need of the app: its storage, and the policy of jobs that bring none."""

    @property
    def storage(self) -> Storage: ...
    @property
    def retry(self) -> Retry: ...
    @property
    def now(self) -> Clock: ...
    @property
    def tasks(self) -> Mapping[str, Any]: ...
    @property
    def reducers(self) -> Mapping[str, Reducer]: ...
    @property
    def sizes(self) -> Sizes: ...
    @property
    def chance(self) -> Callable[[], float]: ...


class Verbs:
    """The verbs of one app's storage."""

    def __init__(self, app: Keeper, waiting: Waiting, settings: Settings) -> None:
        self._app, self._waiting, self._settings = app, waiting, settings

    def operations(self) -> list[Operation]:
        """One for each verb, with the scope it needs and the shapes it takes and gives."""
        return [
            _verb(self.hello, wire.Nothing, wire.Nothing, "", "That this is a Treadle server, and knows the token"),
            _verb(self.enqueue, wire.Enqueue, wire.Records, "enqueue", "Store jobs, all or none"),
            _verb(self.claim, wire.ClaimCall, Claimed, "work", "Lease jobs; with `wait`, wait for the first"),
            _verb(self.heartbeat, wire.Beat, wire.Ids, "work", "Lengthen leases; answers those that are lost"),
            _verb(self.settle, wire.Settle, wire.AllSettled, "work", "Say what became of jobs, each for itself"),
            _verb(self.settle_claim, wire.SettleClaim, wire.SettledClaimed, "work", "Both in one trip"),
            _verb(self.get, wire.Ids, wire.Records, "read", "Rows by id, in order"),
            _verb(self.find, Query, Page, "read", "One page of rows"),
            _verb(self.stats, wire.Nothing, Stats, "read", "Counts, workers, limits"),
            _verb(self.set_limits, wire.Limits, wire.Nothing, "operate", "Add, replace or remove limits"),
            _verb(self.prune, wire.Prune, wire.Number, "operate", "Delete ended rows past their retention"),
            _verb(self.watch, wire.Watch, wire.Topics, "read", "Wait for a hint"),
        ]

    # --- the life of a job

    async def hello(self, call: Call[wire.Nothing, wire.Nothing]) -> wire.Nothing:
        """That this is a Treadle server, and that the token is known to it."""
        return wire.Nothing()

    async def enqueue(self, call: Call[wire.Enqueue, wire.Nothing]) -> wire.Records:
        asked, token = call.body, call.token
        allowed(token, (job.queue for job in asked.jobs))
        return wire.Records(tuple(await self._app.storage.enqueue(asked.jobs)))

    async def claim(self, call: Call[wire.ClaimCall, wire.Nothing]) -> Claimed:
        """Lease jobs; with `wait`, wait for the first of them."""
        asked, token = call.body, call.token
        queues = [name for name, _ in asked.queues]
        allowed(token, queues)
        await self._own(token, asked.ids)
        ask, wait = asked.ask(), min(asked.wait, self._settings.max_wait)
        if not 0 <= ask.limit <= MOST or not ask.lease >= 0 or not asked.wait >= 0:
            raise Refused(422, "wrong_shape", f"expected limit 0 to {MOST:,}, lease and wait 0 or more")

        async def look() -> tuple[Claimed, bool, float | None]:
            found = await self._claim(ask, asked.max_lost)
            return found, bool(found.records), found.next_in

        return await self._waiting.until_found(queues, wait, call.request, look)

    async def _claim(self, ask: Claim, max_lost: int | None) -> Claimed:
        """What was claimed. For a runner that leaves judging to the server, what is only to be ended is ended here."""
        for _ in range(ROUNDS):
            found = await self._app.storage.claim(ask)
            if max_lost is None or not any(row.lost or row.ran for row in found.records):
                return found
            over = reports.lost_too_often([row for row in found.records if not row.ran], self._app.retry, max_lost)
            over += [await self._ender().end(row, max_lost) for row in found.records if row.ran]
            await self._app.storage.settle(over)
            gone = {outcome.id for outcome in over}
            left = tuple(row for row in found.records if row.id not in gone)
            if left or not over or ask.ids:
                break
        return Claimed(left, found.next_in)

    def _ender(self) -> Ender:
        app = self._app
        return Ender(app.storage, app.tasks, app.reducers, app.sizes.result)

    async def heartbeat(self, call: Call[wire.Beat, wire.Nothing]) -> wire.Ids:
        asked, token = call.body, call.token
        await self._own(token, [hold.id for hold in asked.holds])
        lost = await self._app.storage.heartbeat(asked.worker, asked.holds, asked.lease)
        return wire.Ids(tuple(sorted(lost)))

    async def settle(self, call: Call[wire.Settle, wire.Nothing]) -> wire.AllSettled:
        """Word for word, or judged here; each outcome stands for itself."""
        asked, token = call.body, call.token
        open_ones = [report.id for report in asked.outcomes if reports.check(report)]
        rows = {row.id: row for row in await self._app.storage.get(open_ones) if row is not None} if open_ones else {}
        outcomes: list[Outcome] = []
        for report in asked.outcomes:
            if report.state is not None:
                outcomes.append(report.outcome())
            elif (row := rows.get(report.id)) is not None:
                max_lost, now = defaults.MAX_LOST, self._app.now()
                outcomes.append(reports.judged(report, row, self._app.retry, max_lost, now, self._app.chance()))
        await self._check_outcomes(token, outcomes)
        said = iter(await self._app.storage.settle(outcomes)) if outcomes else iter(())
        unknown = Settled("stale", "there is no such job")
        return wire.AllSettled(
            tuple(next(said) if report.state is not None or report.id in rows else unknown for report in asked.outcomes)
        )

    async def settle_claim(self, call: Call[wire.SettleClaim, wire.Nothing]) -> wire.SettledClaimed:
        asked, token = call.body, call.token
        ask = asked.claim.ask()
        allowed(token, (name for name, _ in ask.queues))
        await self._own(token, ask.ids)
        await self._check_outcomes(token, asked.outcomes)
        storage = self._app.storage
        if isinstance(storage, Fused):
            settled, claimed = await storage.settle_claim(asked.outcomes, ask)
        else:
            settled, claimed = await storage.settle(asked.outcomes), await storage.claim(ask)
        return wire.SettledClaimed(tuple(settled), claimed)

    # --- looking

    async def get(self, call: Call[wire.Ids, wire.Nothing]) -> wire.Records:
        asked, token = call.body, call.token
        rows = await self._app.storage.get(asked.ids)
        return wire.Records(tuple(row if row is None or _sees(token, row) else None for row in rows))

    async def find(self, call: Call[Query, wire.Nothing]) -> Page:
        """One page. A token of some queues must name one of them."""
        asked, token = call.body, call.token
        if token.queues:
            if asked.queue is None:
                raise Refused(403, "forbidden", f"the token {token.name!r} may look into {', '.join(token.queues)}")
            allowed(token, (asked.queue,))
        return await self._app.storage.find(asked)

    async def stats(self, call: Call[wire.Nothing, wire.Nothing]) -> Stats:
        return seen(call.token, await self._app.storage.stats())

    # --- tending

    async def set_limits(self, call: Call[wire.Limits, wire.Nothing]) -> wire.Nothing:
        asked, token = call.body, call.token
        for_everybody(token, "limits")
        await self._app.storage.set_limits(asked.limits)
        return wire.Nothing()

    async def prune(self, call: Call[wire.Prune, wire.Nothing]) -> wire.Number:
        return wire.Number(await self._app.storage.prune(call.body.limit))

    async def watch(self, call: Call[wire.Watch, wire.Nothing]) -> wire.Topics:
        asked, token = call.body, call.token
        allowed(token, (topic[6:] for topic in asked.topics if topic.startswith("queue:")))
        heard = await self._app.storage.watch(asked.topics, max(0.0, min(asked.timeout, self._settings.max_wait)))
        return wire.Topics(tuple(sorted(heard)))

    # --- the rights of tokens that are bound to queues

    async def _own(self, token: Token, ids: Sequence[str]) -> None:
        """Raises Refused if one of these jobs is in a queue that is not the token's."""
        if token.queues and ids:
            allowed(token, (row.job.queue for row in await self._app.storage.get(ids) if row is not None))

    async def _check_outcomes(self, token: Token, outcomes: Iterable[Outcome]) -> None:
        if token.queues:
            outcomes = list(outcomes)
            allowed(token, (job.queue for outcome in outcomes for job in outcome.then))
            await self._own(token, [outcome.id for outcome in outcomes])


def _verb(
    run: Callable[[Call[Any, Any]], Awaitable[object]], takes: Any, gives: Any, scope: str, summary: str
) -> Operation:
    name = run.__name__
    return Operation(
        method="POST", path=f"/v1/work/{name}", run=run, summary=summary, tag="work", scope=scope, takes=takes,
        gives=gives,
    )  # fmt: skip


def _sees(token: Token, row: Record) -> bool:
    return not token.queues or row.job.queue in token.queues
