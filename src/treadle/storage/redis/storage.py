"""The verbs on a Redis or Valkey server, as the contract words them. Each is one script, and may be repeated.

Without it many machines could not share jobs at the price of a few microseconds each. What is decided about a row is
decided in `lua/`; here words become bytes and bytes rows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from msgspec.structs import asdict

from treadle.core import clock
from treadle.core.model import (
    APPLIED,
    Claim,
    Claimed,
    Declare,
    Held,
    Hold,
    Limit,
    LimitChange,
    LimitUse,
    NewJob,
    Outcome,
    Page,
    Pause,
    Presence,
    Query,
    Record,
    Resume,
    Settled,
    Stats,
)
from treadle.errors import BadUrl, IdTaken, KeyHeld, SchemaTooNew, StorageDenied, StorageUnavailable, UnknownUpstream
from treadle.storage.redis import queries, transfer
from treadle.storage.redis.errors import RIGHTS
from treadle.storage.redis.health import Health, health
from treadle.storage.redis.notifier import Mailbox, Notifier
from treadle.storage.redis.pool import Command, Pool
from treadle.storage.redis.rows import (
    decode_any,
    encode,
    handed,
    is_bulk,
    is_plain,
    job_bytes,
    moment_of,
    new_record,
    outcome_bytes,
    pairs,
    record,
    stored,
    until_bytes,
)
from treadle.storage.redis.scripts import Script, load
from treadle.storage.redis.topology import Clustered, place_of
from treadle.storage.row_rules import CircularWait, rank
from treadle.storage.topic_waiters import TopicWaiters
from treadle.storage.transfer import SETTLES, SHUT, Chunk, MoveState, gone, refusal
from treadle.storage.value_checks import (
    check_ask,
    check_beat,
    check_changes,
    check_jobs,
    guarded_settle,
    guarded_settle_claim,
)

# 1: jobs with limits or a lane had a row from the start; they are read as they are. 2: every ended job stood alone in
# the lists of endings, as it still may. A version that knows no packs would never prune what is in them. 3: pauses
# stood among the rules; they are taken over when the namespace is opened, or when a limit is changed. 4: lines remember
# what claims looked past, and those back in line say their turn; an older version does neither.
SCHEMA: Final = 4
HOME, LATE = b"\1", b"\2"  # what storing jobs in a shard may answer instead
TIDIED: Final = 500  # entries of each kind that one prune looks at
RECOUNTED: Final = 10_000  # rows from which slots are counted: some 15 ms of the server's time
HOUR: Final = 3_600.0  # s between two such counts
GROUP: Final = 1_000  # plain jobs of one queue and priority the script stores at once


class RedisStorage:
    """Jobs on one server, shared by any number of machines.

    url   redis://, rediss:// or unix://, as redis-py reads it; redis+sentinel://host:port,host:port/service and
          redis+cluster://host:port,host:port, and both with rediss+ for TLS
    ns    which of the programs sharing the server; the keys begin with {treadle:<ns>}
    now   a clock for tests; None: the server's own
    shard, shards, hub   which shard of how many, and where all of them speak (`shards.py`)
    """

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
        # The second key is there for a cluster that moves our slot: one of the two is missing wherever one asks then,
        # and the script is refused before it runs, where it would otherwise see half of the keys.
        keys = (self._tag, f"{self._tag}:schema", f"{self._tag}:left")[: 2 if shards == 1 else 3]
        self._keys = (len(keys), *keys)
        self._scripts = load()
        self._waiters = waiters or TopicWaiters()
        self._place = place_of(url, self._tag)
        self._pool = Pool(self._place)
        self._notifier: Notifier | None = None
        self._tidied: Sequence[Any] = (0, 0, 0, 0)  # how far `prune` has looked at what says nothing any more

    @property
    def where(self) -> str:
        """The server, as it may be shown."""
        return self._pool.where

    async def open(self) -> None:
        """Connect. Raises StorageUnavailable, StorageDenied, SchemaTooNew."""
        if self._notifier is not None:
            return
        self._pool = Pool(self._place)
        own = SCHEMA if self._shards == 1 else f"{SCHEMA}/{self._shards}"  # as one word: who comes first says both
        stored = await self.read("GET", "schema")
        if stored is None:  # only then a write: a server that is full can be opened, and pruned
            await self._pool.command("SET", f"{self._tag}:schema", own, "NX")
            stored = await self.read("GET", "schema")
        found, _, shards = stored.decode().partition("/")
        if int(found) > SCHEMA:
            await self._pool.close()
            raise SchemaTooNew(int(found), SCHEMA)
        if int(shards or 1) != self._shards:
            await self._pool.close()
            raise BadUrl(
                f"{self._pool.where}: the namespace {self._ns!r} was made with shards={shards or 1}, found "
                f"shards={self._shards}; open it with that, or bring its jobs into another ns with `treadle move`"
            )
        if int(found) < SCHEMA:
            await self.call(
                "limits", "resume", "", "", "paused", ""
            )  # no change; takes over what a version before kept
            await self._pool.command("SET", f"{self._tag}:schema", own)
        self._notifier = Notifier(self._pool, self._tag, self._waiters)
        await self._notifier.open()
        try:
            await self._check_rights(self._notifier)
        except BaseException:
            await self.close()
            raise

    async def _check_rights(self, notifier: Notifier) -> None:
        """Raise StorageDenied if a script could fail in its middle: Lua does not roll back what it wrote before."""
        told = await self.call("rights")
        refused = [f"{told[at].decode()} ({told[at + 1].decode()})" for at in range(0, len(told), 2)]
        if notifier.refusal is not None:
            refused.append(f"SUBSCRIBE ({notifier.refusal})")
        if refused:
            prefix = f"{{treadle:{self._ns}*"
            raise StorageDenied(
                f"{self.where}: the server refuses this user {', '.join(refused)}; expected the rights of "
                f"`ACL SETUSER <user> ~{prefix} &{prefix} {RIGHTS}`"
            )

    async def close(self) -> None:
        """Let go of all connections."""
        notifier, self._notifier = self._notifier, None
        if notifier is not None:
            await notifier.close()
        await self._pool.close()

    # --- trips

    def _words(self, verb: str, words: Sequence[Any]) -> tuple[Script, Command]:
        now = "" if self._now is None else repr(self._now())
        return self._scripts[verb], (*self._keys, now, *words)

    async def call(self, verb: str, *words: Any) -> Any:
        """Run a script."""
        [answer] = await self._pool.run(self._words(verb, words))
        return answer

    async def calls(self, *calls: tuple[str, Sequence[Any]]) -> list[Any]:
        """Run several scripts in one trip."""
        return await self._pool.run(*(self._words(verb, words) for verb, words in calls))

    async def open_call(self, verb: str, *words: Any) -> Any:
        """Run a script that does nothing while the jobs are elsewhere, or on their way."""
        answer = await self.call(verb, *words)
        mark = transfer.away(answer)
        if mark is not None:
            raise refusal(mark, self._pool.where)
        return answer

    async def read(self, *words: Any) -> Any:
        """Run a command that changes nothing."""
        verb, key, *more = words
        return await self._pool.command(verb, f"{self._tag}:{key}", *more)

    async def write(self, *words: Any) -> Any:
        """Run a command that changes nothing when it is repeated."""
        return await self.read(*words)

    async def moment(self) -> float:
        """Now, by the clock that decides."""
        if self._now is not None:
            return self._now()
        seconds, micros = await self._pool.command("TIME")
        return int(seconds) + int(micros) / 1e6

    # --- the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        if not jobs:
            return []
        check_jobs(jobs)
        found = await self.store(jobs)
        assert found is not None  # this is no shard, or the first one
        return found

    async def store(
        self, jobs: Sequence[NewJob], call: str = "", until: float = 0.0, here: bool = False
    ) -> list[Record] | None:
        """`enqueue`, as a part of a call over several shards if `call` names one; stored once, and not after `until`.
        None: they belong elsewhere (not with `here`)."""
        part = (call, repr(until) if call else "here" if here else "")
        if all(map(is_bulk, jobs)) and len({job.id for job in jobs}) == len(jobs):
            answer = await self.open_call("enqueue", *part, *_groups(jobs))
            if self._belongs_home(answer):
                return None
            return stored(jobs, *answer)
        words: list[Any] = [*part]
        for job in jobs:
            words += (job.id, job_bytes(job, is_plain(job)))
        answer = await self.open_call("store", *words)
        if self._belongs_home(answer):
            return None
        if not answer[0]:
            raise _refusal(*answer[1:])
        found = answer[1]
        return [_row(job, found[2 * n], found[2 * n + 1], float(answer[0])) for n, job in enumerate(jobs)]

    def _belongs_home(self, answer: list[Any]) -> bool:
        if answer[0] == LATE:
            raise StorageUnavailable(f"{self._pool.where}: the call took too long; it will be carried out all the same")
        return bool(answer[0] == HOME)

    async def claim(self, ask: Claim, tended: bool = False, more: bool = False) -> Claimed:
        """`tended`: a moment ago, by `peek`; `more`: beside what the ticket has already."""
        check_ask(ask)
        words = {**asdict(ask), "tended": tended, "more": more} if tended else asdict(ask)
        packed = encode(words if tended else ask)
        while True:
            answer = await self.call("claim", packed)
            mark = transfer.away(answer)
            if mark is None:
                found = _claimed(answer, ask)
                if found is not None:
                    return found
                if len(answer) > 3:
                    packed = encode({**words, "passed": decode_any(answer[3])})
            elif mark.role == SETTLES:
                return Claimed()
            else:
                raise refusal(mark, self._pool.where)

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        check_beat(worker, holds, lease)
        words = encode([(hold.id, hold.version, hold.memo, hold.note, hold.reach) for hold in holds])
        leaves = "1" if worker.gone else ""
        lost = await self.call("heartbeat", worker.worker, leaves, encode(worker), repr(float(lease)), words)
        mark = transfer.away(lost)
        if mark is not None:
            if mark.role == "gone":
                return Held(lost=frozenset(hold.id for hold in holds))
            raise refusal(mark, self._pool.where)
        return Held(lost=frozenset(id.decode() for id in lost))

    @guarded_settle
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        if not outcomes:
            return []
        return self._told(await self.call("settle", *outcome_words(outcomes)), len(outcomes))

    def _told(self, answer: list[Any], count: int) -> list[Settled]:
        mark = transfer.away(answer)
        if mark is None:
            return settled(answer, count)
        if mark.role == "gone":
            return [gone(mark)] * count
        raise refusal(mark, self._pool.where)

    @guarded_settle_claim
    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]:
        """Both in one script: a trip of 8 jobs costs the server 120 us, as two scripts 141."""
        if not outcomes:
            return [], await self.claim(ask)
        words = self._words("settle_claim", (*outcome_words(outcomes), encode(ask)))
        [[count, *answer]] = await self._pool.run(words)
        settled, claimed = answer[:count], answer[count + 1 :]
        told = self._told(settled, len(outcomes))
        if transfer.away(claimed) is not None:
            return told, Claimed()
        return told, _claimed(claimed, ask) or await self.claim(ask)

    def post(self, take: Callable[[str, Record], None]) -> Mailbox | None:
        """Where a worker is handed jobs. None in a cluster, each of whose nodes knows only who listens to itself."""
        if self._notifier is None or isinstance(self._place, Clustered):
            return None
        return self._notifier.post(lambda data: take(*handed(data)))

    # --- looking

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        found = await self._rows(list(dict.fromkeys(ids)))
        return [found.get(id) for id in ids]

    async def _rows(self, ids: list[str]) -> dict[str, Record]:
        return await queries.by_ids(self, ids)

    async def find(self, query: Query) -> Page:
        return await queries.find([self], query, self._rows)

    async def stats(self) -> Stats:
        now = await self.moment()
        counts = await queries.counts(self, now)
        return Stats(counts=counts, workers=await queries.workers(self, now), limits=await queries.limits(self))

    async def health(self) -> list[Health]:
        """What the server says of itself."""
        return [await health(self._pool)]

    # --- tending

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        return await queries.limits(self, use)

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        check_changes(changes)
        if changes:
            await self.change_limits(*(word for change in changes for word in change_words(change)))

    async def change_limits(self, *words: Any) -> list[Any]:
        """Apply changes, or copy what another shard knows; answers what is known of the limits named. With none, wake
        everybody, and let those come back in line for whom there is room."""
        answer: list[Any] = await self.open_call("limits", *words)
        return answer

    async def prune(self, limit: int) -> int:
        went, past, more, first = 0, 0, True, "1"
        while more and (went < limit or first):
            gone, stay, again = await self.call("prune", max(limit, 0) - went, past, first)
            went, past, more, first = went + gone, past + stay, bool(again), ""
        tidied = "tidy", (TIDIED, *self._tidied)
        self._tidied, _ = await self.calls(tidied, ("recount", (RECOUNTED, repr(HOUR))))
        return went

    async def recount(self) -> list[tuple[str, int, int]]:
        """Count the slots in use from the rows, and correct counters: the limit, its slots before, and now."""
        told = await self.call("recount", RECOUNTED, "0")
        return [(told[at].decode(), told[at + 1], told[at + 2]) for at in range(0, len(told), 3)]

    # --- moving house

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
        """Somebody waits for these in the hub meanwhile."""
        return nullcontext() if self._notifier is None else self._notifier.listening(topics)


def change_words(change: LimitChange) -> tuple[Any, ...]:
    match change:
        case Limit(name, slots, rate):
            removes = slots is None and rate is None
            return "remove" if removes else "set", name, encode(change), "", ""
        case Declare(rule):
            return "declare", rule.name, encode(rule), "", ""
        case Pause(name, why, until):
            return "pause", name, "", why, until_bytes(until)
        case Resume(name, why, until):
            return "resume", name, "", why, until_bytes(until)


def _row(job: NewJob, body: bytes, row: bytes, now: float) -> Record:
    if not body and not row:  # a part of a call that was carried out long ago: it has ended, and is gone
        return new_record(job, now)
    return record(body, row, None if body else job)


def _groups(jobs: Sequence[NewJob]) -> list[Any]:
    """Runs of one queue and priority: queue, rank, how many, then id and bytes of each."""
    words: list[Any] = []
    at, count, last = 0, 0, None
    for job in jobs:
        group = job.queue, job.priority
        if group != last or count == GROUP:
            if count:
                words[at] = count
            words += (job.queue, rank(job), 0)
            at, count, last = len(words) - 1, 0, group
        words += (job.id, job_bytes(job, True))
        count += 1
    words[at] = count
    return words


def outcome_words(outcomes: Sequence[Outcome]) -> list[Any]:
    words: list[Any] = []
    for out in outcomes:
        words += (out.id, outcome_bytes(out), len(out.then))
        for job in out.then:
            words += (job.id, job_bytes(job, is_plain(job)))
    return words


def settled(answer: list[Any], count: int) -> list[Settled]:
    settled = [APPLIED] * count
    for at in range(0, len(answer), 4):
        number, status, *words = answer[at : at + 4]
        if status == b"stale":
            settled[number - 1] = Settled("stale", words[0].decode())
        else:
            settled[number - 1] = Settled("refused", str(_refusal(status, *words)))
    return settled


def _refusal(kind: bytes, one: bytes, other: bytes) -> KeyHeld | UnknownUpstream | IdTaken | CircularWait:
    if kind == b"circle":
        return CircularWait(one.decode(), *other.decode().split("\0"))
    if kind == b"taken":
        task, asked, differ = other.decode().split("\0")
        return IdTaken(one.decode(), task, asked, bool(differ))
    if kind == b"beyond":
        return IdTaken(one.decode(), None, other.decode(), False)
    made = KeyHeld if kind == b"held" else UnknownUpstream
    return made(one.decode(), other.decode())


def _claimed(answer: list[Any], ask: Claim) -> Claimed | None:
    """None: many have stepped aside and none was met who may start; there is more to look at."""
    now, moment, again = answer[:3]
    if again == 2 and len(answer) < 5:
        return None
    rows = pairs(answer, 3)
    if again == 1:
        rows = queries.repeated_order(rows, ask.queues)
    return Claimed(tuple(rows), max(0.0, moment_of(moment) - moment_of(now)) if moment else None)
