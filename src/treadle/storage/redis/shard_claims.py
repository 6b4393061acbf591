"""Claims from several shards: reads the heads of all queues, then claims from each shard its share of the first jobs.

This keeps the queue order over all shards; claiming from one shard after the other would not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.core.model import Claim, Claimed, Record, State
from treadle.storage import row_rules
from treadle.storage.redis import transfer
from treadle.storage.redis.cross_shard import FRESH, CrossShard, together
from treadle.storage.redis.routing import Spot, dealt, in_order
from treadle.storage.redis.rows import encode
from treadle.storage.redis.storage import RedisStorage
from treadle.storage.transfer import SETTLES, refusal


class ShardClaims:
    """Claims over several shards. `note` is called with rows and the shard in which they were found."""

    def __init__(
        self, shards: Sequence[RedisStorage], cross_shard: CrossShard, note: Callable[[Sequence[Record], int], None]
    ) -> None:
        self._shards, self._cross_shard, self._note = shards, cross_shard, note

    async def claim(self, ask: Claim) -> Claimed:
        while True:
            claimed = await self.claim_peeked(
                ask, [answer for [answer] in await together(s.calls(peek(ask)) for s in self._shards)]
            )
            if claimed is not None:
                return claimed

    async def claim_peeked(self, ask: Claim, answers: Sequence[Any]) -> Claimed | None:
        """Claim, given the answers of all shards to `peek`. None: an unfinished operation was found and finished; the
        caller must peek again."""
        for answer in answers:
            mark = transfer.away(answer)
            if mark is not None:
                if mark.role == SETTLES:
                    return Claimed()
                raise refusal(mark, self._shards[0].where)
        if any(answer[2] for answer in answers):
            await self._cross_shard.finish()
            return None
        if any(answer[1] for answer in answers):
            return await self._claimed_before(ask, [bool(answer[1]) for answer in answers])
        moments = [max(0.0, float(answer[3]) - float(answer[0])) if answer[3] else None for answer in answers]
        if ask.ids:
            rows = await self._claim_ids(ask, moments)
        else:
            rows = await self._claim_lines(ask, [_lines(answer[4], ask) for answer in answers], moments)
        known = [moment for moment in moments if moment is not None]
        return Claimed(in_order(rows, ask), min(known) if known else None)

    async def _claimed_before(self, ask: Claim, has_jobs: Sequence[bool]) -> Claimed:
        shards = [shard for shard, is_there in zip(self._shards, has_jobs, strict=True) if is_there]
        claimed = await together(shard.claim(ask) for shard in shards)
        rows = [row for part in claimed for row in part.records]
        moments = [part.next_in for part in claimed if part.next_in is not None]
        running = (row for row in rows if row.state is State.RUNNING)
        return Claimed(tuple(row_rules.in_order(running, ask.queues)), min(moments) if moments else None)

    async def _claim_lines(
        self, ask: Claim, lines: Sequence[Sequence[Sequence[Spot]]], moments: list[float | None]
    ) -> list[Record]:
        dealing = dealt(ask.queues, ask.limit, lines)
        first = {
            shard: replace(ask, queues=tuple(zip((queue for queue, _ in ask.queues), counts, strict=True)), limit=total)
            for shard, counts in enumerate(dealing)
            if (total := sum(counts))
        }
        rows: list[Record] = []
        if any(room is not None for room, _ in (ask.tasks or {}).values()):
            answers = []
            for shard, part in first.items():  # one after the other, because all shards share the room of a task
                answers.append(await self._claim_in(shard, _less(part, ask, rows), moments))
                rows += answers[-1]
        else:
            answers = await together(self._claim_in(shard, part, moments) for shard, part in first.items())
            rows += [row for claimed in answers for row in claimed]
        if len(rows) == ask.limit:
            return rows
        # a shard that returned fewer jobs than requested has no more to give
        exhausted = {
            shard for (shard, part), claimed in zip(first.items(), answers, strict=True) if len(claimed) < part.limit
        }
        taken = {row.job.id for row in rows}
        unclaimed = [[spot for line in own for spot in line if spot.id not in taken] for own in lines]
        for shard in sorted(
            (n for n, own in enumerate(unclaimed) if own and n not in exhausted), key=lambda n: min(unclaimed[n])
        ):
            rest = replace(ask, limit=ask.limit - len(rows))
            rows += await self._claim_in(shard, _less(rest, ask, rows), moments, more=True)
        return rows

    async def _claim_ids(self, ask: Claim, moments: list[float | None]) -> list[Record]:
        where, rows = await self._cross_shard.where(ask.ids), list[Record]()
        for shard in sorted(set(where.values())):
            ids = tuple(id for id in ask.ids if where.get(id) == shard)
            part = replace(ask, ids=ids, limit=ask.limit - len(rows))
            rows += await self._claim_in(shard, _less(part, ask, rows), moments)
        return rows

    async def _claim_in(
        self, shard: int, ask: Claim, moments: list[float | None], more: bool = False
    ) -> Sequence[Record]:
        if ask.limit <= 0:
            return ()
        claimed = await self._shards[shard].claim(ask, advanced=True, more=more)
        moments[shard] = claimed.next_in
        self._note(claimed.records, shard)
        return claimed.records


def peek(ask: Claim) -> tuple[str, tuple[Any, ...]]:
    """The call of the script that advances due rows and returns the heads of the queues."""
    return "peek", (encode(ask), repr(FRESH))


def _less(part: Claim, ask: Claim, rows: Sequence[Record]) -> Claim:
    """The claim with the room of its tasks reduced by these rows."""
    if ask.tasks is None:
        return part
    taken: dict[str, int] = {}
    for row in rows:
        taken[row.job.task] = taken.get(row.job.task, 0) + 1
    return replace(
        part,
        tasks={
            task: (None if room is None else room - taken.get(task, 0), lease)
            for task, (room, lease) in ask.tasks.items()
        },
    )


def _lines(entries: Sequence[Any], ask: Claim) -> list[list[Spot]]:
    lines: list[list[Spot]] = [[] for _ in ask.queues]
    for k in range(0, len(entries), 4):
        queue, rank, position, id = entries[k : k + 4]
        lines[queue - 1].append(Spot(-int(rank), float(position), id.decode()))
    return lines
