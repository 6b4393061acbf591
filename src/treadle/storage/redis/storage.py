"""Implements the verbs of the contract on a Redis or Valkey server. Each is one script and may be repeated.

The scripts in `lua/` decide about rows. This module only converts arguments to bytes and answers to records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from msgspec.structs import asdict

from treadle.core import clock
from treadle.core.errors import BadUrl, SchemaTooOld, StorageUnavailable, Unsupported
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats
from treadle.storage.contract import Capabilities
from treadle.storage.optional_parts import Risk
from treadle.storage.queries import drifts
from treadle.storage.redis import call_words, counts, lists, metrics, opening, queries, reading, transfer
from treadle.storage.redis.health import RedisHealth, health
from treadle.storage.redis.notifier import Mailbox, Notifier
from treadle.storage.redis.pool import Command, Pool
from treadle.storage.redis.recount import recount
from treadle.storage.redis.rows import decode_any, encode, handed, is_bulk, is_plain, job_bytes, stored
from treadle.storage.redis.scripts import Script, load
from treadle.storage.redis.topology import Clustered, place_of
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import SETTLES, SHUT, Chunk, MoveState, gone, refusal
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    check_rows,
    guarded_settle,
    guarded_settle_claim,
)

HOME, LATE = b"\1", b"\2"  # a shard stored nothing: the jobs belong to the first shard, or the call came too late
SHEDS = b"\3"  # nothing was stored: a bounded queue must shed jobs, which only the per-row path can
TIDIED: Final = 500  # entries of each kind that one prune checks
RECOUNTED: Final = 10_000  # the most rows from which slots are counted: some 15 ms of the server's time
HOUR: Final = 3_600.0  # seconds between two such counts


class RedisStorage:
    """A storage on one server, shared by any number of machines.

    url   redis://, rediss:// or unix://, as redis-py reads it; redis+sentinel://host:port,host:port/service and
          redis+cluster://host:port,host:port, and both with rediss+ for TLS
    ns    separates programs that share the server; the keys begin with {treadle:<ns>}
    now   a clock for tests; None: the server's own
    shard, shards, waiters   the number of this shard, how many there are, and their common waiters (`shards.py`)
    """

    capabilities = Capabilities(settle_claim=True, hand_off=True, movable=True, marks=True, risks=True)

    def __init__(
        self,
        url: str,
        *,
        ns: str = "default",
        now: clock.Clock | None = None,
        shard: int = 0,
        shards: int = 1,
        waiters: TopicWaiters | None = None,
    ) -> None:
        if not re.fullmatch(r"[A-Za-z0-9._:-]{1,100}", ns):
            raise BadUrl(f"ns: expected letters, digits, . _ : or -, found {ns!r}")
        self._now, self._ns, self._shards = now, ns, shards
        self._tag = f"{{treadle:{ns}/{shard}}}" if shard else f"{{treadle:{ns}}}"
        # The second key is for a cluster that is moving our slot. One of the two keys is then missing on either node,
        # so the node refuses the script before it runs. With one key the script would run on half of the data.
        keys = (self._tag, f"{self._tag}:schema", f"{self._tag}:left")[: 2 if shards == 1 else 3]
        self._keys = (len(keys), *keys)
        self._scripts = load()
        self._waiters = waiters or TopicWaiters()
        self._place = place_of(url, self._tag)
        self._pool = Pool(self._place)
        self._notifier: Notifier | None = None
        self._looking = False
        self._tidied: Sequence[Any] = (0, 0, 0, 0, 0)  # the cursors of `tidy`

    @property
    def where(self) -> str:
        """The server's URL without secrets."""
        return self._pool.where

    async def open(self, look: bool = False) -> None:
        """Connect. Raises StorageUnavailable, StorageDenied, SchemaTooNew; with `look` SchemaTooOld."""
        if self._notifier is not None or self._looking:
            return
        self._pool, self._looking = Pool(self._place, look), look
        try:
            stored = await self.read("GET", "schema")
            if look:
                await self._open_to_look(0 if stored is None else self._check_schema(stored))
            else:
                await self._open_to_write(stored)
        except BaseException:
            await self.close()
            raise

    async def _open_to_write(self, stored: bytes | None) -> None:
        if stored is None:  # write only then, so that a full server can still be opened and pruned
            await self.write("SET", "schema", opening.stored_schema(self._shards), "NX")
            stored = await self.read("GET", "schema")
        self._check_schema(stored)
        self._notifier = Notifier(self._pool, self._tag, self._waiters)
        await self._notifier.open()
        await opening.check_rights(self, self._notifier, self.where, self._ns)

    async def _open_to_look(self, schema: int) -> None:
        """Open without writing, and without a subscription."""
        if schema < opening.SCHEMA:
            raise SchemaTooOld(schema, opening.SCHEMA, f"{self.where} (ns={self._ns})")
        self._pool.look = await opening.restricts_scripts(self)

    def _check_schema(self, stored: Any) -> int:
        return opening.check_schema(stored, self._shards, self.where, self._ns)

    async def close(self) -> None:
        """Close all connections."""
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.close()
        self._looking = False
        await self._pool.close()

    # --- trips

    def _call(self, verb: str, arguments: Sequence[Any]) -> tuple[Script, Command]:
        now = "" if self._now is None else repr(self._now())
        return self._scripts[verb], (*self._keys, now, *arguments)

    async def call(self, verb: str, *arguments: Any) -> Any:
        """Run a script."""
        [answer] = await self._pool.run(self._call(verb, arguments))
        return answer

    async def calls(self, *calls: tuple[str, Sequence[Any]]) -> list[Any]:
        """Run several scripts in one trip."""
        return await self._pool.run(*(self._call(verb, arguments) for verb, arguments in calls))

    async def open_call(self, verb: str, *arguments: Any) -> Any:
        """Run a script. Raises StorageMoved or StorageUnavailable if a mark stops it."""
        answer = await self.call(verb, *arguments)
        mark = transfer.away(answer)
        if mark is not None:
            raise refusal(mark, self._pool.where)
        return answer

    async def read(self, verb: str, key: str, *arguments: Any) -> Any:
        """Run a command that changes nothing."""
        return await self._pool.command(verb, f"{self._tag}:{key}", *arguments)

    write = read  # for a command that is safe to repeat

    async def moment(self) -> float:
        """The current time by the clock that the scripts use."""
        if self._now is not None:
            return self._now()
        seconds, micros = await self._pool.command("TIME")
        return int(seconds) + int(micros) / 1e6

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        rows = await self.store(jobs)
        assert rows is not None  # only a shard after the first returns None
        return rows

    async def store(
        self, jobs: Sequence[NewJob], call: str = "", until: float = 0.0, here: bool = False
    ) -> list[Record] | None:
        """Store jobs as `enqueue` does. `call`: they are part of this call over several shards, stored once and not
        after `until`. `here`: they are known to belong here. None: they belong to the first shard."""
        part = (call, repr(until) if call else "here" if here else "")
        if all(map(is_bulk, jobs)) and len({job.id for job in jobs}) == len(jobs):
            answer = await self.open_call("enqueue", *part, *call_words.groups(jobs))
            if self._belongs_home(answer):
                return None
            if answer[0] != SHEDS:
                return stored(jobs, *answer)
        arguments: list[Any] = [*part]
        for job in jobs:
            arguments += (job.id, job_bytes(job, is_plain(job)))
        answer = await self.open_call("store", *arguments)
        if self._belongs_home(answer):
            return None
        rows = answer[1]
        return [call_words.row_of(job, rows[2 * n], rows[2 * n + 1], float(answer[0])) for n, job in enumerate(jobs)]

    def _belongs_home(self, answer: list[Any]) -> bool:
        """Whether the first shard must store the jobs. Raises the refusal of a script, and if a part came too late."""
        if not answer[0]:
            raise call_words.refusal_of(*answer[1:])
        if answer[0] == LATE:
            raise StorageUnavailable(f"{self._pool.where}: the call took too long, but it will still be carried out")
        return bool(answer[0] == HOME)

    async def claim(self, ask: Claim, advanced: bool = False, more: bool = False) -> Claimed:
        """Claim. `advanced`: `peek` has just advanced due rows. `more`: claim even if the claim id has jobs already."""
        check_ask(ask)
        fields = {**asdict(ask), "advanced": advanced, "more": more} if advanced else asdict(ask)
        packed = encode(fields if advanced else ask)
        while True:
            answer = await self.call("claim", packed)
            mark = transfer.away(answer)
            if mark is None:
                claimed = call_words.claimed_of(answer, ask)
                if claimed is not None:
                    return claimed
                if len(answer) > 3:
                    packed = encode({**fields, "passed": decode_any(answer[3])})
            elif mark.role == SETTLES:
                return Claimed()
            else:
                raise refusal(mark, self._pool.where)

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        check_beat(worker, renewals, lease)
        packed = encode(
            [(renewal.id, renewal.version, renewal.checkpoints, renewal.note, renewal.reach) for renewal in renewals]
        )
        leaves = "1" if worker.gone else ""
        lost = await self.call("heartbeat", worker.worker, leaves, encode(worker), repr(float(lease)), packed)
        mark = transfer.away(lost)
        if mark is not None:
            if mark.role == "gone":
                return HeartbeatResult(lost=frozenset(renewal.id for renewal in renewals))
            raise refusal(mark, self._pool.where)
        return HeartbeatResult(lost=frozenset(id.decode() for id in lost))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        return self._results_of(await self.call("settle", *call_words.outcome_words(outcomes)), len(outcomes))

    def _results_of(self, answer: list[Any], count: int) -> list[Settled]:
        mark = transfer.away(answer)
        if mark is None:
            return call_words.settled_of(answer, count)
        if mark.role == "gone":
            return [gone(mark)] * count
        raise refusal(mark, self._pool.where)

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Settle and claim in one script: a trip of 8 jobs costs the server 120 us, two scripts 141 us."""
        if not outcomes:
            return [], await self.claim(ask)
        call = self._call("settle_claim", (*call_words.outcome_words(outcomes), encode(ask)))
        [[count, *answer]] = await self._pool.run(call)
        settled, claimed = answer[:count], answer[count + 1 :]
        results = self._results_of(settled, len(outcomes))
        if transfer.away(claimed) is not None:
            return results, Claimed()
        return results, call_words.claimed_of(claimed, ask) or await self.claim(ask)

    def post(self, take: Callable[[str, Record], None]) -> Mailbox | None:
        """A new mailbox. None in a cluster, where a node knows only its own subscribers."""
        if self._notifier is None or isinstance(self._place, Clustered):
            return None
        return self._notifier.post(lambda data: take(*handed(data)))

    # --- reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        rows = await self._rows(list(dict.fromkeys(ids)), True)
        return [rows.get(id) for id in ids]

    async def _rows(self, ids: list[str], whole: bool) -> dict[str, Record]:
        return await reading.by_ids(self, ids, whole)

    async def find(self, query: Query) -> Page:
        return await queries.find([self], query, self._rows)

    async def stats(self) -> Stats:
        return counts.stats_of([await counts.kept(self)])

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        if self._looking:
            raise Unsupported(self.where, "recount() while it is only read", "the server keeps counts meanwhile")
        return drifts(*await recount(self, repair))

    async def glance(self, most: int = 10_000) -> Glance:
        return counts.glance_of([await counts.glance(self)], most)

    async def health(self) -> list[RedisHealth]:
        """The health of the server."""
        return [await health(self._pool)]

    async def risks(self) -> Sequence[Risk]:
        return (await health(self._pool)).risks()

    # --- operating

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await counts.limits(self, use)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        if changes:
            await self.change_limits(*(word for change in changes for word in call_words.change_words(change)))

    async def change_limits(self, *arguments: Any) -> list[Any]:
        """Apply changes, or copy the facts of another shard; return the facts of the limits that were changed. Without
        arguments, publish the topics of all queues, and queue the blocked jobs that have room."""
        answer: list[Any] = await self.open_call("limits", *arguments)
        return answer

    async def prune(self, limit: int) -> int:
        went, past, more, first = 0, 0, True, "1"
        while more and (went < limit or first):
            gone, stay, again = await self.call("prune", max(limit, 0) - went, past, first)
            went, past, more, first = went + gone, past + stay, bool(again), ""
        tidied = "tidy", (TIDIED, *self._tidied)
        self._tidied, _ = await self.calls(tidied, ("slots", (RECOUNTED, repr(HOUR))))
        return went

    async def recount_slots(self, correct: bool = True) -> list[tuple[str, int, int]]:
        """Count the slots in use from the rows. For each counter that differs, return the limit, the counter, and the
        slots in use; `correct`: set the counter to them."""
        answer = await self.call("slots", RECOUNTED, "0", "" if correct else "1")
        return [(answer[k].decode(), answer[k + 1], answer[k + 2]) for k in range(0, len(answer), 3)]

    async def relist(self, correct: bool = True) -> list[tuple[str, int, int]]:
        """Compare the lists of few jobs with the rows: see `lists.py`. Without `correct` only where rows are few."""
        if not correct and await self.read("ZCARD", "made") > RECOUNTED:
            return []
        return await lists.relist(self, correct)

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        check_rows(rows, remove)
        await self.open_call("keep_metrics", *metrics.removed_words(remove), *metrics.stored_words(rows))

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        return await metrics.read(self, since, until)

    # --- moves

    async def read_mark(self) -> MoveState | None:
        return transfer.mark_of(await self.read("GET", "move"))

    async def set_mark(self, mark: MoveState) -> None:
        transfer.check(await self.call("move", transfer.mark_bytes(mark)))
        if mark.role not in SHUT:
            await self.change_limits()

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        return await transfer.unload(self, cursor, limit)

    async def load(self, load: Chunk, mark: MoveState) -> None:
        await transfer.load(self, load, mark)

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        with self.listening(topics):
            return await self._waiters.wait(topics, timeout)

    def listening(self, topics: Sequence[str]) -> AbstractContextManager[None]:
        """Keep the channels of these topics subscribed while the caller waits for them."""
        return nullcontext() if self._notifier is None else self._notifier.listening(topics)
