"""What takes more than one shard: a workflow that goes to the first one, and a call whose jobs belong to several.

Without it a crash between two steps would leave a workflow nowhere, or half of a call stored. Each way is a row of
steps that anybody may take again: what is half done is found where it began (`leaving`, `calls`), and each receiver
remembers what it has taken (`done`) until nobody can bring it any more.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from treadle.core.model import NewJob, Record
from treadle.errors import StorageUnavailable
from treadle.storage.redis.routing import Layout, roams
from treadle.storage.redis.storage import RedisStorage
from treadle.storage.redis.transfer import away
from treadle.storage.transfer import refusal

FRESH: Final = 5.0  # s a call over several shards is its caller's affair
VALID: Final = 300.0  # s after it was read within which a part may be stored
REMEMBER: Final = 2 * VALID  # s a receiver knows what he took, after nobody can read it any more
KEPT: Final = (
    300.0  # s a workflow is kept where it left, for a first shard that fails over and loses it; below REMEMBER
)
IDLE: Final = 86_400.0  # s after which a pointer to the first shard may be dropped, if there is nothing there
SURE: Final = 120.0  # s between the intention to drop it, which any use of it ends, and doing so
SWEPT: Final = 500  # pointers looked at in one go

T = TypeVar("T")
_jobs = msgspec.msgpack.Decoder(list[NewJob]).decode
_encode = msgspec.msgpack.Encoder().encode


async def together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """All answers; the first error only when none is at work any more."""
    answers = await asyncio.gather(*calls, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return answers  # type: ignore[return-value]


class CrossShard:
    """Between the shards of one namespace. The first of them is home."""

    def __init__(self, layout: Layout, shards: Sequence[RedisStorage]) -> None:
        self._layout, self._shards, self._home = layout, shards, shards[0]
        self._swept: dict[int, bytes] = {}

    # --- a workflow goes home

    async def bring_home(self, shard: int, root: str) -> None:
        """All of this workflow is in the first shard then, and whatever will be asked for of it goes there."""
        now = await self._home.moment()  # before it is read: what is read then may be stored until `VALID` later
        answer = await self._shards[shard].call("leave", root, uuid.uuid4().hex)
        mark = away(answer)
        if mark is not None:
            raise refusal(mark, self._home.where)
        if answer:
            await self._take(shard, root.encode(), answer[0], answer[1], now)

    async def _take(self, shard: int, root: bytes, number: bytes, jobs: Sequence[Any], now: float) -> None:
        if not await self._home.call("take", number, repr(now + VALID), *jobs):
            raise StorageUnavailable("a workflow on its way to the first shard took too long; try again")
        await self._shards[shard].call("sent", repr(KEPT), root, number)
        await self._home.call("over", repr(REMEMBER), number)

    async def bring_again(self) -> None:
        """Workflows that the first shard took in the last minutes, and does not know: its node failed over, and the new
        primary never had them. They were acknowledged long before, so they must not go with that node's last moment."""
        for storage in self._shards[1:]:
            await storage.call("sent", repr(KEPT), "", "")  # those older than that go
            numbers = await storage.read("ZRANGE", "sent:at", 0, -1)
            known = await self._home.read("ZMSCORE", "done", *numbers) if numbers else ()
            for number, score in zip(numbers, known, strict=True):
                answer = await storage.call("sent", repr(KEPT), "", number) if score is None else ()
                if answer:
                    await self._home.call("take", number, repr(await self._home.moment() + VALID), *answer[1])
                    await self._home.call("over", repr(REMEMBER), number)

    async def finish(self, fresh: float = FRESH) -> None:
        """Do the rest of what somebody began and did not end: for calls, if that was `fresh` seconds ago."""
        now = await self._home.moment()
        for shard, storage in enumerate(self._shards[1:], 1):
            for root in await storage.read("HKEYS", "leaving"):
                answer = await storage.call("leave", root, "")
                if answer:
                    await self._take(shard, root, answer[0], answer[1], now)
        for shard, storage in enumerate(self._shards):
            moment = await storage.moment()
            for call in await storage.read("ZRANGEBYSCORE", "calls:at", "-inf", repr(moment - fresh)):
                found = await storage.read("HGET", "calls", call)
                if found is not None:
                    await self._carry_out(call.decode(), _jobs(found), now)
                await self._forget(shard, call.decode())

    # --- one call, several shards

    async def enqueue(self, jobs: Sequence[NewJob], parts: Mapping[int, Sequence[int]]) -> list[Record]:
        """All of them or none: written down whole in one shard first, then carried out, by others if we do not live."""
        call, where = uuid.uuid4().hex, next(iter(parts))
        now = await self._home.moment()
        await self._shards[where].open_call("intend", call, _encode(list(jobs)))
        rows = await self._carry_out(call, jobs, now)
        await self._forget(where, call)
        return rows

    async def _carry_out(self, call: str, jobs: Sequence[NewJob], now: float) -> list[Record]:
        parts = self._layout.parts(jobs)
        assert parts is not None

        async def store(shard: int, numbers: Sequence[int]) -> list[Record]:
            some = [jobs[number] for number in numbers]
            if shard:
                found = await self._shards[shard].store(some, call, now + VALID)
                if found is not None:
                    return found
            return await self.enqueue_home(some, f"{call}/{shard}", now + VALID)

        rows: dict[int, Record] = {}
        stored = await together(store(shard, numbers) for shard, numbers in parts.items())
        for numbers, found in zip(parts.values(), stored, strict=True):
            rows.update(zip(numbers, found, strict=True))
        return [rows[number] for number in range(len(jobs))]

    async def _forget(self, shard: int, call: str) -> None:
        await self._shards[shard].write("HDEL", "calls", call)
        await self._shards[shard].write("ZREM", "calls:at", call)
        await self._home.call("over", repr(REMEMBER), *(f"{call}/{number}" for number in range(len(self._shards))))
        await together(storage.call("over", repr(REMEMBER), call) for storage in self._shards[1:])

    # --- what belongs into the first shard, and may not be known elsewhere

    async def enqueue_home(self, jobs: Sequence[NewJob], call: str = "", until: float = 0.0) -> list[Record]:
        """In the first shard, with all workflows there that these jobs have to do with."""
        here = {job.id for job in jobs}
        roots = [job.root for job in jobs if job.root is not None]
        ups = {up: job.wait_timeout is not None for job in jobs for up in job.after if up not in here}
        await self.gather_home([*here, *roots], ups)
        found = await self._home.store(jobs, call, until, here=True)
        assert found is not None
        return found

    async def gather_home(self, own: Sequence[str], ups: Mapping[str, bool]) -> None:
        """`own` will be stored at home, and nowhere else; `ups` will be waited for there, also unknown ones if True."""
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
        wanted[0] = dict.fromkeys(wanted.get(0, ()), "")  # a pointer there leads to a workflow its id is a member of
        await self._go_home(wanted, to)

    async def point(self, jobs: Sequence[NewJob]) -> bool:
        """See to it that jobs which belong with their workflow are not stored by themselves where their own ids say.
        False: one of them is there already."""
        wanted: dict[int, dict[str, str]] = {}
        for job in jobs:
            if job.root is not None and job.root != job.id and self._layout.spreads(job.id):
                own, there = self._layout.of(job.id), self._layout.of(job.root)
                if own != there:
                    wanted.setdefault(own, {})[job.id] = str(there)
        if not wanted:
            return True
        known = await self._plant(wanted)
        return not any(word and word != f"@{wanted[shard][id]}" for shard, id, word in known)

    async def _plant(self, wanted: Mapping[int, Mapping[str, str]]) -> list[tuple[int, str, str]]:
        """What each shard says of these ids: shard, id, the root if it is there, or a pointer elsewhere."""
        shards = [shard for shard in wanted if wanted[shard]]
        answers = await together(
            self._shards[shard].call("plant", *(word for pair in wanted[shard].items() for word in pair))
            for shard in shards
        )
        if any(answer[0] for answer in answers):
            await self.finish()
        return [
            (shard, id, word.decode())
            for shard, answer in zip(shards, answers, strict=True)
            for id, word in zip(wanted[shard], answer[1:], strict=True)
        ]

    async def _go_home(self, wanted: Mapping[int, Mapping[str, str]], to: Mapping[str, str]) -> None:
        leaving: set[tuple[int, str]] = set()
        further: dict[int, dict[str, str]] = {}
        for shard, id, word in await self._plant(wanted):
            if word.startswith("@"):
                further.setdefault(int(word[1:]), {})[id] = to[id]  # who was about to store it there finds this
            elif word and shard:
                leaving.add((shard, word))
        further.pop(0, None)
        if further:
            leaving.update((shard, word) for shard, _, word in await self._plant(further) if word and word[0] != "@")
        for shard, root in sorted(leaving):
            await self.bring_home(shard, root)

    async def where(self, ids: Sequence[str]) -> dict[str, int]:
        """In which shard each of these is; those that nobody knows are left out."""
        found: dict[str, int] = {}
        others = {shard: dict.fromkeys(ids, "") for shard in range(1, len(self._shards))}
        for wanted in (others, {0: dict.fromkeys(ids, "")}):  # in the order in which a workflow may go
            told = await self._plant(wanted)
            found.update({id: shard for shard, id, word in told if word and word[0] != "@"})
        return found

    # --- pointers nobody needs

    async def sweep(self) -> None:
        """Look at some of the pointers of each shard, and drop those that lead to nothing any more."""
        for shard, storage in enumerate(self._shards[1:], 1):
            cursor, words = await storage.read("HSCAN", "left", self._swept.get(shard, b"0"), "COUNT", SWEPT)
            self._swept[shard] = cursor
            now = await storage.moment()
            old = {words[at].decode(): words[at + 1] for at in range(0, len(words), 2) if _is_old(words[at + 1], now)}
            if not old:
                continue
            known = await self.where(list(old))
            known.update(dict.fromkeys(await self._awaited(list(old)), 0))
            said = [
                word
                for id, pointer in old.items()
                if id not in known
                for word in (id, pointer, b"" if pointer[:1] == b"x" else f"x{now!r}".encode() + _target(pointer))
            ]
            if said:
                await storage.call("sweep", *said)

    async def _awaited(self, ids: Sequence[str]) -> list[str]:
        told = await self._home.read("SMISMEMBER", "parents", *ids)
        return [id for id, is_parent in zip(ids, told, strict=True) if is_parent]


def _target(pointer: bytes) -> bytes:
    _, mark, shard = pointer.partition(b"@")
    return mark + shard


def _is_old(pointer: bytes, now: float) -> bool:
    marked = pointer[:1] == b"x"
    since = float(pointer.lstrip(b"x").partition(b"@")[0])
    return now - since > (SURE if marked else IDLE)
