"""Implements operations over several shards: moving a workflow to the first one, and calls with jobs in several.

Each operation is a sequence of steps that any process may repeat, so a crash between two steps loses nothing.
Unfinished operations are found where they began (`leaving`, `calls`). Each receiver remembers what it has stored
(`done`) until no process can send it again.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from treadle.core.errors import StorageUnavailable
from treadle.core.model import NewJob, Record
from treadle.storage.redis.routing import Layout, roams
from treadle.storage.redis.storage import RedisStorage
from treadle.storage.redis.transfer import away
from treadle.storage.transfer import refusal

FRESH: Final = 5.0  # seconds before another process may finish a call over several shards
VALID: Final = 300.0  # seconds for which data read from one shard may be stored in another
REMEMBER: Final = 2 * VALID  # seconds for which a receiver remembers an operation that is finished
KEPT: Final = 300.0  # s to keep a moved workflow in its old shard, in case the first shard loses it; below REMEMBER
IDLE: Final = 86_400.0  # seconds after which a pointer may be dropped, if it leads to no job
SURE: Final = 120.0  # seconds between marking a pointer and dropping it; any use of the pointer removes the mark
SWEPT: Final = 500  # pointers checked in each shard by one sweep

T = TypeVar("T")
_jobs = msgspec.msgpack.Decoder(list[NewJob]).decode
_encode = msgspec.msgpack.Encoder().encode


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """Await all calls, then return their results or raise the first error."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers  # type: ignore[return-value]


class CrossShard:
    """Operations over the shards of one namespace."""

    def __init__(self, layout: Layout, shards: Sequence[RedisStorage]) -> None:
        self._layout, self._shards, self._first = layout, shards, shards[0]
        self._swept: dict[int, bytes] = {}

    # --- moving a workflow to the first shard

    async def move_to_first(self, shard: int, root: str) -> None:
        """Move this workflow to the first shard; later calls for any of its jobs go there too."""
        now = await self._first.moment()  # taken before reading: the data may be stored until `VALID` seconds later
        answer = await self._shards[shard].call("relocate_out", root, uuid.uuid4().hex)
        mark = away(answer)
        if mark is not None:
            raise refusal(mark, self._first.where)
        if answer:
            await self._relocate_in(shard, root.encode(), answer[0], answer[1], now)

    async def _relocate_in(self, shard: int, root: bytes, number: bytes, jobs: Sequence[Any], now: float) -> None:
        if not await self._first.call("relocate_in", number, repr(now + VALID), *jobs):
            raise StorageUnavailable("moving a workflow to the first shard took too long; repeat the call")
        await self._shards[shard].call("sent", repr(KEPT), root, number)
        await self._first.call("completed", repr(REMEMBER), number)

    async def restore_moved(self) -> None:
        """Store workflows again that were moved in the last `KEPT` seconds and that the first shard has lost, because
        its node failed over. Their jobs were acknowledged long before, so a fail-over must not lose them."""
        for storage in self._shards[1:]:
            await storage.call("sent", repr(KEPT), "", "")  # this call only deletes older entries
            numbers = await storage.read("ZRANGE", "sent:at", 0, -1)
            known = await self._first.read("ZMSCORE", "done", *numbers) if numbers else ()
            for number, score in zip(numbers, known, strict=True):
                answer = await storage.call("sent", repr(KEPT), "", number) if score is None else ()
                if answer:
                    await self._first.call("relocate_in", number, repr(await self._first.moment() + VALID), *answer[1])
                    await self._first.call("completed", repr(REMEMBER), number)

    async def finish(self, fresh: float = FRESH) -> None:
        """Finish operations that another process began: all moves, and calls that began `fresh` seconds ago or
        earlier."""
        now = await self._first.moment()
        for shard, storage in enumerate(self._shards[1:], 1):
            for root in await storage.read("HKEYS", "leaving"):
                answer = await storage.call("relocate_out", root, "")
                if answer:
                    await self._relocate_in(shard, root, answer[0], answer[1], now)
        for shard, storage in enumerate(self._shards):
            moment = await storage.moment()
            for call in await storage.read("ZRANGEBYSCORE", "calls:at", "-inf", repr(moment - fresh)):
                stored = await storage.read("HGET", "calls", call)
                if stored is not None:
                    await self._carry_out(call.decode(), _jobs(stored), now)
                await self._forget(shard, call.decode())

    # --- calls over several shards

    async def enqueue(self, jobs: Sequence[NewJob], parts: Mapping[int, Sequence[int]]) -> list[Record]:
        """Store all jobs or none. The whole call is first written to one shard and then carried out; if this process
        dies, another one carries it out."""
        call, where = uuid.uuid4().hex, next(iter(parts))
        now = await self._first.moment()
        await self._shards[where].open_call("intend", call, _encode(list(jobs)))
        rows = await self._carry_out(call, jobs, now)
        await self._forget(where, call)
        return rows

    async def _carry_out(self, call: str, jobs: Sequence[NewJob], now: float) -> list[Record]:
        parts = self._layout.parts(jobs)
        assert parts is not None

        async def store(shard: int, numbers: Sequence[int]) -> list[Record]:
            own_jobs = [jobs[number] for number in numbers]
            if shard:
                rows_of_part = await self._shards[shard].store(own_jobs, call, now + VALID)
                if rows_of_part is not None:
                    return rows_of_part
            return await self.enqueue_in_first(own_jobs, f"{call}/{shard}", now + VALID)

        rows: dict[int, Record] = {}
        stored = await together(store(shard, numbers) for shard, numbers in parts.items())
        for numbers, rows_of_part in zip(parts.values(), stored, strict=True):
            rows.update(zip(numbers, rows_of_part, strict=True))
        return [rows[number] for number in range(len(jobs))]

    async def _forget(self, shard: int, call: str) -> None:
        await self._shards[shard].write("HDEL", "calls", call)
        await self._shards[shard].write("ZREM", "calls:at", call)
        await self._first.call(
            "completed", repr(REMEMBER), *(f"{call}/{number}" for number in range(len(self._shards)))
        )
        await together(storage.call("completed", repr(REMEMBER), call) for storage in self._shards[1:])

    # --- jobs that belong to the first shard

    async def enqueue_in_first(self, jobs: Sequence[NewJob], call: str = "", until: float = 0.0) -> list[Record]:
        """Store jobs in the first shard, after moving there all workflows that they refer to."""
        here = {job.id for job in jobs}
        roots = [job.root for job in jobs if job.root is not None]
        ups = {up: job.wait_timeout is not None for job in jobs for up in job.after if up not in here}
        await self.gather_in_first([*here, *roots], ups)
        rows = await self._first.store(jobs, call, until, here=True)
        assert rows is not None
        return rows

    async def gather_in_first(self, own: Sequence[str], ups: Mapping[str, bool]) -> None:
        """Prepare the first shard for jobs that refer to others. `own`: ids of jobs that will be stored there and in no
        other shard. `ups`: ids that jobs there will wait for; an id whose value is True may still be unknown."""
        wanted: dict[int, dict[str, str]] = {}
        for id in own:
            if self._layout.spreads(id):
                wanted.setdefault(self._layout.of(id), {})[id] = "0"
            elif roams(id):
                for shard in range(1, len(self._shards)):
                    wanted.setdefault(shard, {})[id] = "0"
        for id, unknown in ups.items():
            for shard in range(1, len(self._shards)):
                anywhere = not self._layout.spreads(id) or self._layout.of(id) == shard
                wanted.setdefault(shard, {}).setdefault(id, "0" if unknown and anywhere else "")
        to = {id: word for some in wanted.values() for id, word in some.items()}
        wanted[0] = dict.fromkeys(wanted.get(0, ()), "")  # a pointer there leads to the workflow of the id
        await self._move_all(wanted, to)

    async def point(self, jobs: Sequence[NewJob]) -> bool:
        """If the workflow of one of these jobs is in another shard than the job's id says, set a pointer, so that no
        call stores the job by its id. Returns False if one of them is already stored elsewhere."""
        wanted: dict[int, dict[str, str]] = {}
        for job in jobs:
            if job.root is not None and job.root != job.id and self._layout.spreads(job.id):
                own, there = self._layout.of(job.id), self._layout.of(job.root)
                if own != there:
                    wanted.setdefault(own, {})[job.id] = str(there)
        if not wanted:
            return True
        known = await self._pointers(wanted)
        return not any(word and word != f"@{wanted[shard][id]}" for shard, id, word in known)

    async def _pointers(self, wanted: Mapping[int, Mapping[str, str]]) -> list[tuple[int, str, str]]:
        """Look up ids in shards and set the given pointers for unknown ones. Returns shard, id, and the root of its
        workflow if the id is there, "@<n>" if a pointer was found, or ""."""
        shards = [shard for shard in wanted if wanted[shard]]
        answers = await together(
            self._shards[shard].call("pointers", *(word for pair in wanted[shard].items() for word in pair))
            for shard in shards
        )
        if any(answer[0] for answer in answers):
            await self.finish()
        return [
            (shard, id, word.decode())
            for shard, answer in zip(shards, answers, strict=True)
            for id, word in zip(wanted[shard], answer[1:], strict=True)
        ]

    async def _move_all(self, wanted: Mapping[int, Mapping[str, str]], to: Mapping[str, str]) -> None:
        leaving: set[tuple[int, str]] = set()
        further: dict[int, dict[str, str]] = {}
        for shard, id, word in await self._pointers(wanted):
            if word.startswith("@"):
                further.setdefault(int(word[1:]), {})[id] = to[id]  # refuses a concurrent store in that shard
            elif word and shard:
                leaving.add((shard, word))
        further.pop(0, None)
        if further:
            leaving.update((shard, word) for shard, _, word in await self._pointers(further) if word and word[0] != "@")
        for shard, root in sorted(leaving):
            await self.move_to_first(shard, root)

    async def where(self, ids: Sequence[str]) -> dict[str, int]:
        """The shard of each id; unknown ids are left out."""
        shards: dict[str, int] = {}
        others = {shard: dict.fromkeys(ids, "") for shard in range(1, len(self._shards))}
        for wanted in (others, {0: dict.fromkeys(ids, "")}):  # the first shard last, because workflows move there
            known = await self._pointers(wanted)
            shards.update({id: shard for shard, id, word in known if word and word[0] != "@"})
        return shards

    # --- obsolete pointers

    async def sweep(self) -> None:
        """Check up to about `SWEPT` pointers of each shard; mark, and later drop, those that lead to no job."""
        for shard, storage in enumerate(self._shards[1:], 1):
            cursor, entries = await storage.read("HSCAN", "left", self._swept.get(shard, b"0"), "COUNT", SWEPT)
            self._swept[shard] = cursor
            now = await storage.moment()
            old = {
                entries[k].decode(): entries[k + 1] for k in range(0, len(entries), 2) if _is_old(entries[k + 1], now)
            }
            if not old:
                continue
            known = await self.where(list(old))
            known.update(dict.fromkeys(await self._awaited(list(old)), 0))
            arguments = [
                word
                for id, pointer in old.items()
                if id not in known
                for word in (id, pointer, b"" if pointer[:1] == b"x" else f"x{now!r}".encode() + _target(pointer))
            ]
            if arguments:
                await storage.call("sweep", *arguments)

    async def _awaited(self, ids: Sequence[str]) -> list[str]:
        flags = await self._first.read("SMISMEMBER", "parents", *ids)
        return [id for id, is_parent in zip(ids, flags, strict=True) if is_parent]


def _target(pointer: bytes) -> bytes:
    _, mark, shard = pointer.partition(b"@")
    return mark + shard


def _is_old(pointer: bytes, now: float) -> bool:
    marked = pointer[:1] == b"x"
    since = float(pointer.lstrip(b"x").partition(b"@")[0])
    return now - since > (SURE if marked else IDLE)
