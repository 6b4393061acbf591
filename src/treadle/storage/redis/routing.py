"""Which shard a job belongs to, and whether it may be there: pure, from what was asked for.

Without it two processes could look for a job in two places. A shard beside the first one has whole workflows that
concern nobody else; whatever has to be counted or told apart over all jobs is in the first (decisions/shards.md).
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

MOST: Final = 64  # shards; each claim asks all of them

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_OLD = re.compile(r"[0-9a-f]{32}")  # derived ids were this until November 2026; a user may choose such an id


def is_random(id: str) -> bool:
    """A UUID version 7, as ids are where nobody chose one."""
    return _RANDOM.fullmatch(id) is not None


def roams(id: str) -> bool:
    """Whether a job of this id may be in any shard: with its workflow, whatever its own id says."""
    return is_derived(id) or _OLD.fullmatch(id) is not None


class Layout:
    """Where ids belong. Ids that somebody chose belong into the first shard: only there can it be said whether they are
    known. `spreads` says which do not."""

    def __init__(self, count: int, spreads: Callable[[str], bool] = is_random) -> None:
        self.count, self.spreads = count, spreads

    def of(self, id: str) -> int:
        """The shard of a workflow with this root, and of everything in it, unless it has gone to the first one."""
        return zlib.crc32(id.encode()) % self.count if self.spreads(id) else 0

    def parts(self, jobs: Sequence[NewJob]) -> dict[int, list[int]] | None:
        """The jobs of one call, as numbers, by their shards. None: the call concerns others."""
        roots = {job.id: job.root or job.id for job in jobs}
        found: dict[int, list[int]] = {}
        for number, job in enumerate(jobs):
            root = job.root or job.id
            if job.key is not None or job.limits or job.wait_timeout is not None or not self.spreads(root) or job.nonce:
                return None
            if job.id != root and not (is_derived(job.id) or self.spreads(job.id)):
                return None
            if roots[job.id] != root or any(roots.get(up) != root for up in job.after):
                return None
            found.setdefault(self.of(root), []).append(number)
        # A part of a call cannot be refused by itself once the others are stored.
        return None if len(found) > 1 and any(job.reach for job in jobs) else found


class Spot(Struct, frozen=True, gc=False, order=True):
    """A job in line, as far as its turn goes."""

    behind: int  # the rank, negative: first is least
    place: float
    id: str


def dealt(asked: Sequence[tuple[str, int]], limit: int, lines: Sequence[Sequence[Sequence[Spot]]]) -> list[list[int]]:
    """How many to claim of each queue in each shard, so that those are taken who would come first were it one line:
    each queue's share, then the rest as asked. `lines`: by shard, by queue."""
    taken = [[0] * len(asked) for _ in lines]
    turns = [
        sorted((spot, shard) for shard, own in enumerate(lines) for spot in own[queue]) for queue in range(len(asked))
    ]
    for whole in (False, True):
        for queue, (_, share) in enumerate(asked):
            most = limit if whole else min(share, limit)
            for _, shard in turns[queue][:most]:
                taken[shard][queue] += 1
                limit -= 1
            del turns[queue][:most]
    return taken


def in_order(rows: Sequence[Record], ask: Claim) -> tuple[Record, ...]:
    """Claimed in several shards, as one line would have handed them out."""
    queues: list[tuple[str, int]] = list(ask.queues)
    if ask.ids:
        of = {row.job.id: row.job.queue for row in rows}
        queues = [(queue, len(rows)) for queue in dict.fromkeys(of[id] for id in ask.ids if id in of)]
    lines: dict[str, list[Record]] = {queue: [] for queue, _ in queues}
    for row in sorted(rows, key=lambda row: (-rank(row.job), row.joined_at or 0.0, row.job.id)):
        lines.setdefault(row.job.queue, []).append(row)
    found: list[Record] = []
    for queue, share in (*queues, *((queue, len(rows)) for queue in lines)):
        found += lines[queue][:share]
        del lines[queue][:share]
    return tuple(found)
