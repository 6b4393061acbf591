"""Spreads one namespace over several hash tags, so that it can use several nodes of a cluster.

Every verb calls only the shards that it needs. A workflow that involves no other workflow is in the shard of its root's
id. Keys, limits, chosen ids and waits for other workflows are in the first shard; a workflow that comes to need one of
them moves there (`cross_shard.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from msgspec.structs import replace

from treadle.core import clock
from treadle.core.errors import BadUrl, StorageUnavailable, Unsupported
from treadle.core.ids import is_derived
from treadle.core.limit_model import Declare, Limit, LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage.contract import Capabilities
from treadle.storage.optional_parts import Risk
from treadle.storage.queries import Group, drifts
from treadle.storage.redis import counts, queries, reading, transfer
from treadle.storage.redis.call_words import change_words, outcome_words, settle_calls, settled_of
from treadle.storage.redis.cross_shard import CrossShard, together
from treadle.storage.redis.health import RedisHealth
from treadle.storage.redis.recount import recount
from treadle.storage.redis.routing import MOST, Layout, is_of_queues, is_random, numbers_by_shard
from treadle.storage.redis.shard_claims import ShardClaims, peek
from treadle.storage.redis.storage import RedisStorage
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import Carried, Chunk, MoveState, gone, refusal
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    guarded_settle,
    guarded_settle_claim,
)

KNOWN: Final = 100_000  # ids whose shard is cached
TRIES: Final = 8  # attempts to settle a job whose workflow moves between lookup and settle


class ShardedRedis:
    """`RedisStorage` over `shards` hash tags, with the same other arguments.

    spreads   which ids may be in another shard than the first, for tests; default: those that no user chose
    """

    capabilities = Capabilities(settle_claim=True, movable=True, marks=True, risks=True)

    def __init__(
        self,
        url: str,
        *,
        shards: int,
        ns: str = "default",
        now: clock.Clock | None = None,
        spreads: Callable[[str], bool] = is_random,
    ) -> None:
        if not 1 < shards <= MOST:
            raise BadUrl(f"shards: expected 1 to {MOST}, found {shards}")
        self._waiters = TopicWaiters()
        self._shards = [
            RedisStorage(url, ns=ns, now=now, shard=number, shards=shards, waiters=self._waiters)
            for number in range(shards)
        ]
        self._first = self._shards[0]
        self._layout = Layout(shards, spreads)
        self._cross_shard = CrossShard(self._layout, self._shards)
        self._claims = ShardClaims(self._shards, self._cross_shard, self._note)
        self._seen: dict[str, int] = {}
        self._look = False

    async def open(self, look: bool = False) -> None:
        """Connect. Raises StorageUnavailable and SchemaTooNew, with `look` SchemaTooOld, and BadUrl if the namespace
        was created with another number of shards."""
        self._look = look
        await self._first.open(look)
        try:
            await together(shard.open(look) for shard in self._shards[1:])
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close all connections."""
        await together(shard.close() for shard in self._shards)

    # --- the shard of a job

    def _note(self, rows: Sequence[Record | None], shard: int) -> None:
        seen = self._seen
        for row in rows:
            if row is not None:
                seen[row.job.id] = shard
        while len(seen) > KNOWN:
            del seen[next(iter(seen))]

    async def _by_shard(self, ids: Sequence[str]) -> list[int]:
        """The shard of each id; the first one for unknown ids."""
        missing = [id for id in dict.fromkeys(ids) if id not in self._seen]
        located = await self._cross_shard.where(missing) if missing else {}
        self._seen.update(located)
        return [self._seen.get(id, located.get(id, 0)) for id in ids]

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        parts = self._layout.parts(jobs)
        if parts is None or not await self._cross_shard.point(jobs):
            return await self._cross_shard.enqueue_in_first(jobs)
        if len(parts) > 1:
            return await self._cross_shard.enqueue(jobs, parts)
        rows = await self._shards[next(iter(parts))].store(jobs)
        return await self._cross_shard.enqueue_in_first(jobs) if rows is None else rows

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        results: dict[int, Settled] = {}
        unsettled = list(range(len(outcomes)))
        for _ in range(TRIES):
            parts = numbers_by_shard(await self._by_shard([outcomes[number].id for number in unsettled]), unsettled)
            answers = await together(
                self._settle(shard, [outcomes[number] for number in numbers]) for shard, numbers in parts.items()
            )
            unsettled = []
            for numbers, answers_of_shard in zip(parts.values(), answers, strict=True):
                for number, answer in zip(numbers, answers_of_shard, strict=True):
                    if answer is None:
                        unsettled.append(number)
                    else:
                        results[number] = answer
            if not unsettled:
                return [results[number] for number in range(len(outcomes))]
            unsettled.sort()
            await self._cross_shard.finish()
        raise StorageUnavailable("a workflow is being moved to the first shard; repeat the call")

    async def _settle(self, shard: int, outcomes: Sequence[Outcome]) -> list[Settled | None]:
        """Settle in one shard. None for an outcome that must be settled again, because its job is in another shard."""
        if shard == 0:
            await self._gather(outcomes)
        return await self._understood(
            shard, outcomes, await self._shards[shard].call("settle", *outcome_words(outcomes))
        )

    async def _understood(self, shard: int, outcomes: Sequence[Outcome], answer: Any) -> list[Settled | None]:
        """The result of each outcome in a shard's answer. Moves the workflows that must be in the first shard; None for
        their outcomes, and for jobs that are in another shard."""
        mark = transfer.away(answer)
        if mark is not None:
            if mark.role == "gone":
                return [gone(mark)] * len(outcomes)
            raise refusal(mark, self._first.where)
        again: set[int] = set()
        roots: set[str] = set()
        kept: list[Any] = []
        for k in range(0, len(answer), 4):
            number, status, subject, _ = answer[k : k + 4]
            if status not in (b"left", b"cross"):
                kept += answer[k : k + 4]
                continue
            again.add(number - 1)
            if status == b"cross":
                roots.add(subject.decode())
        for root in sorted(roots):
            await self._cross_shard.move_to_first(shard, root)
        for number in again:
            self._seen.pop(outcomes[number].id, None)
        return [None if n in again else result for n, result in enumerate(settled_of(kept, len(outcomes)))]

    async def _gather(self, outcomes: Sequence[Outcome]) -> None:
        """Prepare the first shard for these outcomes: move there the workflows that they or their follow-ups wait for,
        and workflows that contain the id of a follow-up."""
        born = {job.id: job for out in outcomes for job in out.followups}
        own = [id for id in born if not is_derived(id) and self._layout.spreads(id)]
        ups = {up: False for out in outcomes if not out.state.final for up in out.after if up not in born}
        for job in born.values():
            for up in job.after:
                if up not in born:
                    ups[up] = ups.get(up, False) or job.wait_timeout is not None
        if own or ups:
            await self._cross_shard.gather_in_first(own, ups)

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        where = await self._by_shard([renewal.id for renewal in renewals])
        parts: list[list[LeaseRenewal]] = [[] for _ in self._shards]
        for renewal, shard in zip(renewals, where, strict=True):
            parts[shard].append(renewal)
        beats = zip(self._shards[1:], parts[1:], strict=True)
        answers = await together(shard.heartbeat(worker, some, lease) for shard, some in beats)
        lost = frozenset[str]().union(*(held.lost for held in answers))
        if lost:  # the job is gone, or was moved to the first shard
            await self._cross_shard.finish()
            for id in lost:
                self._seen.pop(id, None)
        return await self._first.heartbeat(
            worker, [*parts[0], *(renewal for renewal in renewals if renewal.id in lost)], lease
        )

    # --- claiming

    async def claim(self, ask: Claim) -> Claimed:
        check_ask(ask)
        return await self._claims.claim(ask)

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Settle and peek at the queues in one trip: two trips to each shard instead of three."""
        if not outcomes:
            return [], await self.claim(ask)
        numbered = numbers_by_shard(await self._by_shard([out.id for out in outcomes]), range(len(outcomes)))
        parts = {shard: [outcomes[number] for number in numbers] for shard, numbers in numbered.items()}
        await self._gather(parts.get(0, ()))
        answers = await together(
            shard.calls(*settle_calls(parts.get(number, ())), peek(ask)) for number, shard in enumerate(self._shards)
        )
        results: dict[int, Settled] = {}
        for shard, numbers in numbered.items():
            results_of_shard = await self._understood(shard, parts[shard], answers[shard][0])
            results |= {n: result for n, result in zip(numbers, results_of_shard, strict=True) if result is not None}
        unsettled = [number for number in range(len(outcomes)) if number not in results]
        results |= dict(zip(unsettled, await self.settle([outcomes[number] for number in unsettled]), strict=True))
        settled = [results[number] for number in range(len(outcomes))]
        lines = [answer[-1] for answer in answers]
        if any(transfer.away(line) is not None for line in lines):
            return settled, Claimed()
        claimed = None if unsettled else await self._claims.claim_peeked(ask, lines)
        return settled, await self.claim(ask) if claimed is None else claimed

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        rows = await self._rows(list(dict.fromkeys(ids)), True)
        return [rows.get(id) for id in ids]

    async def _rows(self, ids: list[str], whole: bool) -> dict[str, Record]:
        """Read rows from the shards where they are expected, then from all. The first shard is read last, because
        workflows move there."""
        rows: dict[str, Record] = {}
        parts: dict[int, list[str]] = {}
        for id in ids:
            parts.setdefault(self._seen.get(id, self._layout.of(id)), []).append(id)
        for rows_of_shard in await together(
            reading.by_ids(self._shards[shard], own, whole) for shard, own in parts.items()
        ):
            rows.update(rows_of_shard)
        if missing := [id for id in ids if id not in rows]:
            for rows_of_shard in await together(reading.by_ids(shard, missing, whole) for shard in self._shards[1:]):
                rows.update(rows_of_shard)
            await self._arrive()
            rows.update(await reading.by_ids(self._first, [id for id in missing if id not in rows], whole))
        return rows

    async def _arrive(self) -> None:
        """Finish all moves of workflows, so that no job is between two shards. A process that only reads leaves them to
        the others: it may miss the jobs of a workflow that is being moved."""
        if not self._look and any(await together(shard.read("EXISTS", "leaving") for shard in self._shards[1:])):
            await self._cross_shard.finish()

    async def find(self, query: Query) -> Page:
        await self._arrive()
        return await queries.find(self._shards, query, self._rows)

    async def stats(self) -> Stats:
        return counts.stats_of(await together(counts.kept(shard) for shard in self._shards))

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        """Recounts each shard by itself, and returns how the sums that `stats` shows differ."""
        if self._look:
            raise Unsupported(self._first.where, "recount() while it is only read", "the server keeps counts meanwhile")
        parts = await together(recount(shard, repair) for shard in self._shards)
        kept, counted = Counter[Group](), Counter[Group]()
        for counts_of_shard, rows in parts:
            kept.update(counts_of_shard)
            counted.update(rows)
        return drifts(kept, counted)

    async def glance(self, most: int = 10_000) -> Glance:
        return counts.glance_of(await together(counts.glance(shard) for shard in self._shards), most)

    async def recount_slots(self, correct: bool = True) -> list[tuple[str, int, int]]:
        return [row for rows in await together(shard.recount_slots(correct) for shard in self._shards) for row in rows]

    async def relist(self, correct: bool = True) -> list[tuple[str, int, int]]:
        return [drift for part in await together(shard.relist(correct) for shard in self._shards) for drift in part]

    async def risks(self) -> Sequence[Risk]:
        return tuple({risk.name: risk for server in await self.health() for risk in server.risks()}.values())

    async def health(self) -> list[RedisHealth]:
        """The health of each server that has one of the shards."""
        servers = [server for shard in self._shards for server in await shard.health()]
        return list({server.info.get("run_id", number): server for number, server in enumerate(servers)}.values())

    # --- operating

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        if not use:
            return await self._first.limits(use)
        return counts.used(await together(shard.limits() for shard in self._shards))

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        """Apply the changes in the first shard; the others copy its facts about queues. The latest copy wins."""
        check_changes(changes)
        self._check(change.rule if isinstance(change, Declare) else change for change in changes)
        if not changes:
            return
        changed = await self._first.change_limits(*(value for change in changes for value in change_words(change)))
        arguments = [argument for facts in changed if is_of_queues(facts[0].decode()) for argument in ("copy", *facts)]
        if arguments:
            await together(shard.change_limits(*arguments) for shard in self._shards[1:])

    def _check(self, rules: Iterable[object]) -> None:
        for rule in rules:
            if isinstance(rule, Limit) and is_of_queues(rule.name) and (rule.slots or rule.rate or rule.max_waiting):
                raise Unsupported(
                    f"{self._first.where} with shards={len(self._shards)}",
                    f"the limit {rule.name!r} of a whole queue, whose jobs are in several shards",
                    "pause it with slots=0, name a limit in the task's `limits=`, or use shards=1",
                )

    async def prune(self, limit: int) -> int:
        # before pruning: calls that are finished late must find the rows that answer their jobs
        await self._cross_shard.finish()
        await self._cross_shard.restore_moved()
        went = 0
        for shard in (*self._shards[1:], self._first):
            went += await shard.prune(max(limit, 0) - went)
        await self._cross_shard.sweep()
        return went

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        await self._first.store_metrics(rows, remove)

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return await self._first.read_metrics(since, until)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        with ExitStack() as stack:
            for shard in self._shards:
                stack.enter_context(shard.listening(topics))
            return await self._waiters.wait(topics, timeout)

    # --- moves

    async def read_mark(self) -> MoveState | None:
        return await self._first.read_mark()

    async def set_mark(self, mark: MoveState) -> None:
        """Set the mark, first in the first shard, which decides. If the run dies after that, the next run's mark is
        accepted by all shards."""
        for shard in self._shards:
            await shard.set_mark(mark)

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        if cursor is None and not self._look:
            await self._cross_shard.finish(fresh=-1.0)  # all calls that began; under a mark no other begins
        chunk, jobs = Chunk(), list[Carried]()
        while True:
            number, _, inner = (cursor or "0:").partition(":")
            shard = int(number)
            part = await self._shards[shard].unload(inner or ("0" if shard else None), limit - len(jobs))
            if cursor is None:
                chunk = part  # the first chunk also has rules and rates
            jobs += part.jobs
            if part.cursor is not None:
                cursor = f"{shard}:{part.cursor}"
            else:
                cursor = f"{shard + 1}:" if shard + 1 < len(self._shards) else None
            if cursor is None or len(jobs) == limit:
                return replace(chunk, jobs=tuple(jobs), cursor=cursor)

    async def load(self, load: Chunk, mark: MoveState) -> None:
        """Load all jobs into the first shard, because a job that is loaded later may wait for one that is there."""
        self._check(rule for facts in load.rules for rule in (facts.set, facts.declared))
        paused = [facts for facts in load.rules if is_of_queues(facts.name)]
        before = await self._shards[-1].read_mark()
        if before is None or (before.role, before.turn, before.run) != (mark.role, mark.turn, mark.run):
            await self.set_mark(replace(mark, cursor=None, jobs=0))
        for shard in self._shards[1:] if paused else ():
            await shard.load(Chunk(rules=tuple(paused)), mark)
        jobs = [carried.record.job for carried in load.jobs]
        await self._cross_shard.gather_in_first([*{word for job in jobs for word in (job.id, job.root) if word}], {})
        await self._first.load(load, mark)
