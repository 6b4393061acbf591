"""The rows and the views of them that must stay true: the line, who stands aside, what is due, which slots are taken.

Without it each verb would have to remember them all. A view is never counted up or down: `put` takes the old row
out and the new one in.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from treadle.core.model import Limit, LimitFacts, NewJob, Record, State
from treadle.storage.admission import Admission, Asker, Usage, is_over, opens_behind, rule_for
from treadle.storage.limit_facts import acting, is_empty
from treadle.storage.memory.ordered import Ordered, Spot
from treadle.storage.row_rules import costs, named_costs, rank, turn


def spot_of(row: Record) -> Spot:
    position = row.queue_position if row.queue_position is not None else row.return_position
    return -rank(row.job), position if position is not None else 0.0, row.job.id


class Tables:
    """Rows by id, and what is derived from them."""

    def __init__(self) -> None:
        self.jobs: dict[str, Record] = {}
        self.line: dict[str, Ordered] = defaultdict(Ordered)  # queue -> who is in line
        self.lanes: dict[tuple[str, float, str], list[float]] = defaultdict(list)  # queue, -rank, lane -> places
        self.aside: dict[str, dict[str, list[Spot]]] = defaultdict(dict)  # limit -> queue -> who stepped aside
        self.returned: dict[tuple[str, str], set[str]] = defaultdict(set)  # limit, queue -> who is back in that line
        self.held: dict[str, set[str]] = defaultdict(set)  # claim id -> what runs under it
        self.started: dict[str, dict[str, int]] = defaultdict(dict)  # limit -> claimed, unfinished jobs: cost
        self.due: list[tuple[float, str]] = []  # a heap; entries may be out of date
        self.facts: dict[str, LimitFacts] = {}  # limit -> what is stored of it
        self.rules: dict[str, Limit] = {}  # limit -> the rule that acts
        self.rates: dict[str, Usage] = {}  # limit -> its starts or tokens
        self.opens: dict[str, float] = {}  # limit -> when its rate lets the next in
        self.topics: set[str] = set()  # what to speak once the call is done

    def put(self, row: Record) -> None:
        """Store a row in place of the one with its id."""
        job = row.job
        old = self.jobs.get(job.id)
        if old is not None:
            self.take_out(old)
        self.jobs[job.id] = row
        if row.queue_position is not None:
            spot = spot_of(row)
            self.line[job.queue].add(spot)
            if job.lane is not None:
                insort(self.lanes[job.queue, spot[0], job.lane], row.queue_position)
            if row.blocked_on is not None:
                self.returned[row.blocked_on, job.queue].add(job.id)
            self.topics.add(f"queue:{job.queue}")
        elif row.blocked_on is not None:
            insort(self.aside[row.blocked_on].setdefault(job.queue, []), spot_of(row))
        if row.state is State.RUNNING and row.worker is not None:
            self.held[row.worker].add(job.id)
        if row.due_at is not None:
            heapq.heappush(self.due, (row.due_at, job.id))
        if row.state.final:
            self.topics.add(f"job:{job.id}")
        elif row.started_at is not None:
            for key, cost in costs(job):
                self.started[key][job.id] = cost

    def take_out(self, row: Record) -> None:
        """Forget a row in every view; `jobs` still has it."""
        job = row.job
        if row.queue_position is not None:
            spot = spot_of(row)
            self.line[job.queue].remove(spot)
            if job.lane is not None:
                _drop(self.lanes[job.queue, spot[0], job.lane], row.queue_position)
            if row.blocked_on is not None:
                self.returned[row.blocked_on, job.queue].discard(job.id)
        elif row.blocked_on is not None:
            aside = self.aside[row.blocked_on]
            _drop(aside[job.queue], spot_of(row))
            if not aside[job.queue]:
                del aside[job.queue]
        if row.state is State.RUNNING and row.worker is not None:
            self.held[row.worker].discard(job.id)
            if not self.held[row.worker]:
                del self.held[row.worker]
        if row.started_at is not None:
            for key, _ in costs(job):
                self.started[key].pop(job.id, None)

    # --- joining the line

    def join(self, row: Record, when: float) -> None:
        """In line: at the turn it had, or at a new one as of `when`."""
        position = row.return_position if row.return_position is not None else self.position(row.job, when)
        due = None if row.function_done else row.deadline_at
        self.put(
            replace(
                row, state=State.READY, queue_position=position, return_position=position, blocked_on=None, due_at=due
            )
        )

    def position(self, job: NewJob, when: float) -> float:
        position = turn(job, when)
        if job.lane is None:
            return position
        lane = self.lanes[job.queue, -rank(job), job.lane]
        if lane:
            return lane[-1] + job.stride
        head = self.line[job.queue].first_from((-rank(job), float("-inf"), ""))
        return min(position, head[1]) if head is not None and head[0] == -rank(job) else position

    def next_moment(self) -> float | None:
        """The earliest moment anything here is due."""
        while self.due and ((row := self.jobs.get(self.due[0][1])) is None or row.due_at != self.due[0][0]):
            heapq.heappop(self.due)
        return min((*self.opens.values(), *(at for at, _ in self.due[:1])), default=None)

    # --- limits

    def set_facts(self, facts: LimitFacts) -> bool:
        """Put these facts in place of those of that limit; whether anything has changed."""
        name = facts.name
        if facts == self.facts.get(name, LimitFacts(name=name)):
            return False
        self.facts[name] = facts
        if is_empty(facts):
            del self.facts[name]
        rule = acting(facts)
        if rule is not None:
            self.rules[name] = rule
        else:
            self.rules.pop(name, None)
        return True

    def used(self, key: str) -> Usage:
        """Slots are counted from the rows, never kept: a counter can leak."""
        rule = rule_for(self.rules, key)
        until_ended = rule is not None and rule.hold == "ended"
        usage = self.rates.setdefault(key, Usage())
        usage.used = 0
        for id, cost in self.started[key].items():
            row = self.jobs[id]
            if until_ended or (row.state is State.RUNNING and not row.function_done):
                usage.used += cost
        return usage

    def drop_unused(self, now: float) -> None:
        """Forget the rates that remember nothing that still counts, and every view that has become empty."""
        for key, usage in list(self.rates.items()):
            if is_over(rule_for(self.rules, key), usage, now):
                del self.rates[key]
        views: tuple[dict[Any, Any], ...] = (self.line, self.lanes, self.aside, self.returned, self.started)
        for view in views:
            for key in [key for key, held in view.items() if not held]:
                del view[key]

    def kept(self, row: Record) -> list[str]:
        """The limits whose slot it has kept since an earlier claim."""
        return [
            key
            for key, _ in costs(row.job)
            if (rule := rule_for(self.rules, key)) and rule.hold == "ended" and row.job.id in self.started[key]
        ]

    def unblock(self, row: Record, now: float) -> None:
        """A slot this row had may be free, or it was let back in line and went away: let others back instead."""
        for key, _ in row.job.limits:
            self.call_in_for(key, now)

    def call_in_for(self, key: str, now: float) -> None:
        """Let back in line those there is room for, beside those that came back before and stand in front of them."""
        self.opens.pop(key, None)
        gate = Admission(self.rules, self.used, now)
        for queue in sorted(self.aside.get(key, ())):
            # By queue: one who is back in a line that is paused, or that nobody serves, keeps no other line waiting.
            for id in gate.back(key, self._askers(key, queue, True), self._askers(key, queue, False)):
                row = self.jobs[id]
                self.put(replace(row, queue_position=row.return_position))
        self.set_opening(gate, key)

    def _keepers(self, key: str) -> Mapping[str, int]:
        """The jobs that keep the slot of this limit until they have ended."""
        rule = rule_for(self.rules, key)
        return self.started[key] if rule is not None and rule.hold == "ended" else {}

    def _askers(self, key: str, queue: str, kept: bool) -> Iterator[Asker]:
        """The jobs of a queue that ask for room in a limit, in turn: those that have kept their slot, or the others."""
        keepers = self._keepers(key)
        if kept and not keepers:
            return iter(())
        back = self._back(key, queue)
        return heapq.merge(
            (self._asker(spot, key, kept, aside=False) for spot in sorted(back) if (spot[2] in keepers) is kept),
            (
                self._asker(spot, key, kept, aside=True)
                for spot in self.aside[key].get(queue, ())
                if (spot[2] in keepers) is kept
            ),
        )

    def _back(self, key: str, queue: str) -> list[Spot]:
        """The jobs of a queue that came back in line for a limit and are not claimed yet, in no order."""
        return [spot_of(self.jobs[id]) for id in self.returned[key, queue]] if (key, queue) in self.returned else []

    def _asker(self, spot: Spot, key: str, kept: bool, aside: bool) -> Asker:
        return Asker(spot, dict(named_costs(self.jobs[spot[2]].job))[key], kept, aside)

    def set_opening(self, gate: Admission, key: str) -> None:
        """Note when the rate will let in the first of some queue who stands aside."""
        self.opens.pop(key, None)
        rule = rule_for(self.rules, key)
        if rule is None or rule.rate is None:
            return
        for queue in self.aside.get(key, ()):
            back = [self._asker(spot, key, kept=False, aside=False) for spot in self._back(key, queue)]
            for kept in (True, False):
                first = next((each for each in self._askers(key, queue, kept) if each.aside), None)
                if first is not None:
                    moment = opens_behind(rule, gate.of(key), first, back, gate.now)
                    if moment is not None:
                        self.opens[key] = min(moment, self.opens.get(key, moment))


def _drop(ordered: list[Any], entry: Any) -> None:
    del ordered[bisect_left(ordered, entry)]
