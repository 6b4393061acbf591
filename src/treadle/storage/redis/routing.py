"""Decides to which shard a job belongs, from the job alone. Pure, so all processes agree.

The shards after the first have only whole workflows that involve no other workflow. Everything that must be counted or
compared over all jobs is in the first (decisions/shards.md).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from treadle.core.ids import is_derived
from treadle.core.model import Claim, NewJob, Record
from treadle.storage.row_rules import rank

MOST: Final = 64  # shards; each claim makes a trip to all of them

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_OLD = re.compile(r"[0-9a-f]{32}")  # the form of derived ids until November 2026; users may choose such ids


def is_random(id: str) -> bool:
    """Whether this is a UUID version 7, the form of ids that no user chose."""
    return _RANDOM.fullmatch(id) is not None


def roams(id: str) -> bool:
    """Whether a job with this id is in the shard of its workflow, which may be any shard."""
    return is_derived(id) or _OLD.fullmatch(id) is not None


class Layout:
    """Maps ids to shards. Ids that a user chose belong to the first shard, the only one that can tell whether they are
    known. `spreads` returns whether an id may be in another shard."""

    def __init__(self, count: int, spreads: Callable[[str], bool] = is_random) -> None:
        self.count, self.spreads = count, spreads

    def of(self, id: str) -> int:
        """The shard of the workflow with this root, unless the workflow has moved to the first one."""
        return zlib.crc32(id.encode()) % self.count if self.spreads(id) else 0

    def parts(self, jobs: Sequence[NewJob]) -> dict[int, list[int]] | None:
        """The indexes of the jobs of one call, by shard. None: the call may involve other jobs, so it belongs to the
        first shard."""
        roots = {job.id: job.root or job.id for job in jobs}
        by_shard: dict[int, list[int]] = {}
        for number, job in enumerate(jobs):
            root = job.root or job.id
            if job.key is not None or job.limits or job.wait_timeout is not None or not self.spreads(root) or job.nonce:
                return None
            if job.id != root and not (is_derived(job.id) or self.spreads(job.id)):
                return None
            if roots[job.id] != root or any(roots.get(up) != root for up in job.after):
                return None
            by_shard.setdefault(self.of(root), []).append(number)
        # A job with a reach may be refused, and one part of a call cannot be refused once others are stored.
        return None if len(by_shard) > 1 and any(job.reach for job in jobs) else by_shard


class Spot(Struct, frozen=True, gc=False, order=True):
    """The part of a queued job that decides its order."""

    behind: int  # the rank, negative, so that the first job is the least
    position: float
    id: str


def dealt(queues: Sequence[tuple[str, int]], limit: int, lines: Sequence[Sequence[Sequence[Spot]]]) -> list[list[int]]:
    """How many jobs to claim in each shard from each queue, so that the claim takes the jobs that a single shard would
    return: each queue's share, then the rest in the order of the queues. `lines`: queued jobs by shard and queue."""
    taken = [[0] * len(queues) for _ in lines]
    turns = [
        sorted((spot, shard) for shard, own in enumerate(lines) for spot in own[queue]) for queue in range(len(queues))
    ]
    for whole in (False, True):
        for queue, (_, share) in enumerate(queues):
            most = limit if whole else min(share, limit)
            for _, shard in turns[queue][:most]:
                taken[shard][queue] += 1
                limit -= 1
            del turns[queue][:most]
    return taken


def in_order(rows: Sequence[Record], ask: Claim) -> tuple[Record, ...]:
    """Jobs claimed in several shards, in the order in which one shard would have returned them."""
    queues: list[tuple[str, int]] = list(ask.queues)
    if ask.ids:
        of = {row.job.id: row.job.queue for row in rows}
        queues = [(queue, len(rows)) for queue in dict.fromkeys(of[id] for id in ask.ids if id in of)]
    lines: dict[str, list[Record]] = {queue: [] for queue, _ in queues}
    for row in sorted(rows, key=lambda row: (-rank(row.job), row.return_position or 0.0, row.job.id)):
        lines.setdefault(row.job.queue, []).append(row)
    ordered: list[Record] = []
    for queue, share in (*queues, *((queue, len(rows)) for queue in lines)):
        ordered += lines[queue][:share]
        del lines[queue][:share]
    return tuple(ordered)


def is_of_queues(limit: str) -> bool:
    """Whether this limit holds for whole queues."""
    return limit == "queue" or limit.startswith("queue:")


def numbers_by_shard(where: Sequence[int], numbers: Sequence[int]) -> dict[int, list[int]]:
    """The numbers grouped by shard."""
    parts: dict[int, list[int]] = {}
    for number, shard in zip(numbers, where, strict=True):
        parts.setdefault(shard, []).append(number)
    return parts
