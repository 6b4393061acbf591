"""The rows and their indexes: queues, blocked jobs, due times, slots in use, keys and edges.

An index is never counted up or down: `put` takes the old row out and puts the new one in. Only the counts of `stats`
are numbers, which `put` and `forget` change.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from treadle.core.limit_model import Limit, LimitFacts
from treadle.core.model import OURS, NewJob, Record, State
from treadle.core.query_model import Kind
from treadle.storage.admission import Asker, Usage, is_over, keeps_slots, rule_for, settled_start
from treadle.storage.bounds import WAITING, Candidate, bounds_of, may_shed
from treadle.storage.limit_facts import acting, is_empty
from treadle.storage.machine.rows import Dependent
from treadle.storage.memory.ordered import Ordered, Spot
from treadle.storage.queries import kind_of
from treadle.storage.row_rules import costs, first_moment, order, rank


class Edge:
    """An edge: one job waits for another. `open`: the ending has not been counted. `soft`: any ending counts as
    success.

    `version` is the version of the job when the wait began; a later wait of the job has another one.
    """

    __slots__ = ("open", "soft", "version")

    def __init__(self, version: int, soft: bool = False) -> None:
        self.open, self.version, self.soft = True, version, soft


class Tables:
    """Rows by id, and what is derived from them. They are the `Rows` of the state machine: each call sets `now`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.jobs: dict[str, Record] = {}
        self.checkpoints: dict[str, dict[str, str]] = {}  # job -> its checkpoints, which its row in `jobs` has not
        self.kept: dict[tuple[str, str, Kind], int] = defaultdict(int)  # queue, task, kind -> jobs
        self.line: dict[str, Ordered] = defaultdict(Ordered)  # queue -> queued jobs
        self.lanes: dict[tuple[str, float, str], list[float]] = defaultdict(list)  # queue, -rank, lane -> positions
        self.aside: dict[str, dict[str, list[Spot]]] = defaultdict(dict)  # limit -> queue -> jobs that it blocks
        self.back: dict[tuple[str, str], set[str]] = defaultdict(set)  # limit, queue -> jobs that are queued again
        self.held: dict[str, set[str]] = defaultdict(set)  # claim id -> jobs that run under it
        self.started: dict[str, dict[str, int]] = defaultdict(dict)  # limit -> claimed, unfinished jobs: cost
        self.due: list[tuple[float, str]] = []  # a heap; entries may be out of date
        self.facts: dict[str, LimitFacts] = {}  # limit -> its stored facts
        self.rules: dict[str, Limit] = {}  # limit -> its acting rule
        self.bounds: dict[str, Limit] = {}  # limit -> the rule that bounds queues, pauses aside
        self.rates: dict[str, Usage] = {}  # limit -> its starts or tokens
        self.opens: dict[str, float] = {}  # limit -> when its rate admits the next blocked job
        self.down: dict[str, dict[str, Edge]] = defaultdict(dict)  # upstream -> the jobs that wait for it
        self.keys: dict[str, str] = {}
        self.former: dict[str, str] = {}  # a job that took a key -> the running holder that it waits for
        self.endings: list[tuple[str, State]] = []
        self.ended = set[str]()
        self.topics = set[str]()

    def begin(self, now: float) -> None:
        """Begin a call."""
        self.now = now
        self.ended.clear()

    # --- rows

    def get(self, id: str) -> Record | None:
        return self.jobs.get(id)

    def row(self, id: str) -> Record:
        return self.jobs[id]

    def read(self, ids: Iterable[str]) -> None:
        """Does nothing: all rows are in memory."""

    def sync(self) -> None:
        """Does nothing: `put` has written."""

    def whole(self, rows: Sequence[Record]) -> list[Record]:
        known = self.checkpoints
        return [
            replace(row, checkpoints=tuple(known[row.job.id].items())) if row.job.id in known else row for row in rows
        ]

    def listed(self, rows: Sequence[Record]) -> list[Record]:
        """The rows with those checkpoints whose names begin with `OURS`."""
        return [
            replace(row, checkpoints=tuple([pair for pair in row.checkpoints if pair[0].startswith(OURS)]))
            for row in self.whole(rows)
        ]

    def remember(self, id: str, checkpoints: Sequence[tuple[str, str]]) -> None:
        self.checkpoints.setdefault(id, {}).update(checkpoints)

    def forget_steps(self, id: str) -> None:
        known = self.checkpoints.get(id, {})
        self.checkpoints[id] = {name: text for name, text in known.items() if name.startswith(OURS)}

    def remembers(self, id: str, checkpoints: Mapping[str, str]) -> bool:
        return self.checkpoints.get(id, {}).items() >= checkpoints.items()

    def restore(self, row: Record) -> None:
        """Store a row that another storage or a snapshot has returned."""
        if row.checkpoints:
            self.remember(row.job.id, row.checkpoints)
            row = replace(row, checkpoints=())
        self.put(row)

    def stored(self, ids: Collection[str]) -> set[str]:
        return self.jobs.keys() & ids

    def finals(self, ids: Collection[str]) -> set[str]:
        return {id for id in ids if id in self.jobs and self.jobs[id].state.final}

    def put(self, row: Record) -> None:
        """Store a row in place of the one with its id."""
        job = row.job
        old = self.jobs.get(job.id)
        if old is not None:
            self.take_out(old)
            self._count(old, -1)
        self._count(row, 1)
        self.jobs[job.id] = row
        if row.queue_position is not None:
            spot = order(row)
            self.line[job.queue].add(spot)
            if job.lane is not None:
                insort(self.lanes[job.queue, spot[0], job.lane], row.queue_position)
            if row.blocked_on is not None:
                self.back[row.blocked_on, job.queue].add(job.id)
            self.topics.add(f"queue:{job.queue}")
        elif row.blocked_on is not None:
            insort(self.aside[row.blocked_on].setdefault(job.queue, []), order(row))
        if row.state is State.RUNNING and row.worker is not None:
            self.held[row.worker].add(job.id)
        if row.due_at is not None:
            heapq.heappush(self.due, (row.due_at, job.id))
        if row.state.final:
            self.topics.add(f"job:{job.id}")
        elif row.started_at is not None:
            for key, cost in costs(job):
                self.started[key][job.id] = cost

    def _count(self, row: Record, by: int) -> None:
        self.correct((row.job.queue, row.job.task, kind_of(row)), by)

    def correct(self, group: tuple[str, str, Kind], by: int) -> None:
        """Change a count."""
        self.kept[group] += by
        if not self.kept[group]:
            del self.kept[group]

    def heads(self) -> dict[str, float]:
        """The first position of each queue, of any priority."""
        first_positions: dict[str, float] = {}
        for queue, line in self.line.items():
            for first in self._ranks(line):
                position = next(line.alike(first))[1]
                first_positions[queue] = min(first_positions.get(queue, position), position)
        return first_positions

    def take_out(self, row: Record) -> None:
        """Forget a row in every index; `jobs` still has it."""
        job = row.job
        if row.queue_position is not None:
            spot = order(row)
            self.line[job.queue].remove(spot)
            if job.lane is not None:
                _drop(self.lanes[job.queue, spot[0], job.lane], row.queue_position)
            if row.blocked_on is not None:
                self.back[row.blocked_on, job.queue].discard(job.id)
        elif row.blocked_on is not None:
            blocked = self.aside[row.blocked_on]
            _drop(blocked[job.queue], order(row))
            if not blocked[job.queue]:
                del blocked[job.queue]
        if row.state is State.RUNNING and row.worker is not None:
            self.held[row.worker].discard(job.id)
            if not self.held[row.worker]:
                del self.held[row.worker]
        if row.started_at is not None:
            for key, _ in costs(job):
                self.started[key].pop(job.id, None)

    def forget(self, row: Record) -> None:
        """A row is pruned: it waits for no job and holds nothing."""
        self.take_out(row)
        self._count(row, -1)
        self.drop_key(row)
        self.former.pop(row.job.id, None)
        self.checkpoints.pop(row.job.id, None)
        self.drop_edges([(up, row.job.id) for up in row.after])
        for up in row.after:
            if up in self.down and not self.down[up]:
                del self.down[up]

    # --- new rows

    def inserts(self, fresh: Sequence[NewJob]) -> Tables:
        return self

    def add(self, row: Record, key: str | None) -> None:
        if key is not None:
            self.keys[key] = row.job.id
        for up in row.after:
            self.down[up][row.job.id] = Edge(row.version)
        self.put(row)

    def flush(self) -> tuple[()]:
        return ()

    def lane_last(self, job: NewJob) -> float | None:
        lane = self.lanes[job.queue, -rank(job), job.lane or ""]
        return lane[-1] if lane else None

    def queue_head(self, job: NewJob) -> float | None:
        head = self.line[job.queue].first_from((-rank(job), float("-inf"), ""))
        return head[1] if head is not None and head[0] == -rank(job) else None

    def queues_of(self, ids: Sequence[str]) -> list[str]:
        return [self.jobs[id].job.queue for id in ids if id in self.jobs]

    def any_queued(self, queue: str) -> bool:
        return bool(self.line[queue])

    def next_moment(self) -> float | None:
        """The earliest time at which any row or rate is due."""
        while self.due and ((row := self.jobs.get(self.due[0][1])) is None or row.due_at != self.due[0][0]):
            heapq.heappop(self.due)
        first = self.due[0][0] if self.due else None
        return first_moment(first, *self.opens.values())

    # --- keys and edges

    def holders(self, keys: Collection[str]) -> dict[str, str]:
        return {key: self.keys[key] for key in keys if key in self.keys}

    def give_key(self, key: str, id: str | None) -> None:
        if id is None:
            self.keys.pop(key, None)
        else:
            self.keys[key] = id

    def drop_key(self, row: Record) -> None:
        if row.job.key is not None and self.keys.get(row.job.key) == row.job.id:
            del self.keys[row.job.key]

    def behind(self, id: str) -> str | None:
        return self.former.get(id)

    def set_behind(self, id: str, first: str) -> None:
        self.former[id] = first

    def wait_for(self, edges: Sequence[tuple[str, str]], version: int, soft: bool = False) -> None:
        for up, down in edges:
            self.down[up][down] = Edge(version, soft)

    def dependents(self, up: str) -> Sequence[Dependent]:
        edges = self.down.get(up)
        return [(down, edge.version, edge.open, edge.soft) for down, edge in edges.items()] if edges else ()

    def edge(self, up: str, down: str) -> Dependent | None:
        edge = self.down.get(up, {}).get(down)
        return None if edge is None else (down, edge.version, edge.open, edge.soft)

    def set_edge(self, up: str, down: str, is_open: bool) -> None:
        self.down[up][down].open = is_open

    def drop_edges(self, edges: Sequence[tuple[str, str]]) -> None:
        for up, down in edges:
            self.down[up].pop(down, None)

    def unname(self, id: str) -> None:
        """Does nothing: `prune` reads `after` of the rows."""

    def waiting_for(self, id: str, among: Collection[str]) -> set[str]:
        waiting, unread = {id}, [id]
        while unread:
            for down, edge in self.down.get(unread.pop(), {}).items():
                row = self.jobs.get(down)
                if down in waiting or row is None or not edge.open or row.version != edge.version:
                    continue
                if row.state is State.WAITING:
                    waiting.add(down)
                    unread.append(down)
        return waiting.intersection(among)

    # --- limits

    def set_facts(self, facts: LimitFacts) -> None:
        """Replace the facts of a limit, and derive its acting rule from them."""
        name = facts.name
        self.facts[name] = facts
        if is_empty(facts):
            del self.facts[name]
        rule = acting(facts)
        if rule is not None:
            self.rules[name] = rule
        else:
            self.rules.pop(name, None)
        if name.partition(":")[0] == "queue":
            self.bounds = bounds_of(self.facts)

    def waiting(self, queue: str) -> int:
        return sum(jobs for (of, _, kind), jobs in self.kept.items() if of == queue and kind in WAITING)

    def outermost(self, queue: str, last: bool) -> Iterator[Candidate]:
        line = self.line[queue]
        spots = (
            line.backwards() if last else heapq.merge(*map(line.alike, self._ranks(line)), key=lambda spot: spot[1:])
        )
        for spot in spots:
            row = self.jobs[spot[2]]
            yield row.job.id, rank(row.job), may_shed(row)

    def _ranks(self, line: Ordered) -> Iterator[float]:
        """The first value of the positions in a queue, once for each priority."""
        spot = line[0] if line else None
        while spot is not None:
            yield spot[0]
            spot = line.first_from((spot[0] + 1, -math.inf, ""))

    def used(self, key: str) -> Usage:
        """Slots are counted from the rows, never stored: a counter can leak."""
        until_ended = keeps_slots(self.rules, key)
        usage = self.rates.setdefault(key, Usage())
        usage.used = 0
        for id, cost in self.started[key].items():
            row = self.jobs[id]
            if until_ended or (row.state is State.RUNNING and not row.function_done):
                usage.used += cost
        return usage

    def save_usage(self, key: str, usage: Usage) -> None:
        """Does nothing: `used` returned the stored object."""

    def settle_start(self, key: str, at: float, reserved: int, spent: int) -> None:
        starts = self.rates[key].starts if key in self.rates else []
        spot = bisect_left(starts, (at, 0))
        if spot < len(starts) and starts[spot][0] == at:
            starts[spot] = at, settled_start(starts[spot][1], reserved, spent)

    def drop_unused(self, now: float) -> None:
        """Forget the rates that no longer affect anything, and every empty index."""
        for key, usage in list(self.rates.items()):
            if is_over(rule_for(self.rules, key), usage, now):
                del self.rates[key]
        indexes: tuple[dict[Any, Any], ...] = (self.line, self.lanes, self.aside, self.back, self.started)
        for index in indexes:
            for key in [key for key, held in index.items() if not held]:
                del index[key]

    def blocked_limits(self) -> Sequence[str]:
        return list(self.aside)

    def blocked_queues(self, key: str) -> Sequence[str]:
        return sorted(self.aside.get(key, ()))

    def blocked(self, key: str, queue: str, kept: bool) -> Iterable[Asker]:
        keepers = self._keepers(key)
        if kept and not keepers:
            return ()
        spots = self.aside.get(key, {}).get(queue, ())
        return (self._asker(spot, key, kept, True) for spot in spots if (spot[2] in keepers) is kept)

    def returned(self, key: str, queue: str) -> Sequence[Asker]:
        if (key, queue) not in self.back:
            return ()
        keepers = self._keepers(key)
        spots = sorted(order(self.jobs[id]) for id in self.back[key, queue])
        return [self._asker(spot, key, spot[2] in keepers, False) for spot in spots]

    def _keepers(self, key: str) -> Collection[str]:
        """The jobs that keep a slot of this limit until they have ended."""
        return self.started[key] if keeps_slots(self.rules, key) else ()

    def _asker(self, spot: Spot, key: str, kept: bool, is_blocked: bool) -> Asker:
        return Asker(spot, dict(self.jobs[spot[2]].job.limits)[key], kept, is_blocked)

    def set_opening(self, key: str, moment: float | None) -> None:
        if moment is None:
            self.opens.pop(key, None)
        else:
            self.opens[key] = moment


def _drop(ordered: list[Any], entry: Any) -> None:
    del ordered[bisect_left(ordered, entry)]
