"""The evidence of the checker: a history by job and by run, the rows at the end, and the story of each job."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from functools import cached_property
from math import inf

from msgspec import Struct

from treadle.core.limit_model import LimitUse
from treadle.core.model import Record
from treadle.testing.history.entries import Entry, ordered

TOLERANCE = 0.005  # seconds; processes and the storage round their times
EPSILON = 1e-6  # seconds; the storage's times are sums of floats, so nearer ones may be equal
TURN = 0.02  # seconds; claims that count limits take turns, so only a longer one overlaps with another
FIRST, LAST = 15, 45  # lines that are shown of a story's beginning and end


class Violation(Struct, frozen=True):
    """A broken promise.

    rule   acknowledged | unfinished | unknown | value | fence | overlap | step | signal | after | key | slots | rate |
           left | delay | order | priority | lane | tick | bound | shed | counts | labels | resources | asked |
           expected | lost | guilt | attempts | wait | cancel | upstream
    text   what was found and what was expected, in one line
    ids    the jobs concerned; `story` lists everything known about them, ordered by time
    """

    rule: str
    text: str
    ids: tuple[str, ...] = ()
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((f"{self.rule}: {self.text}", *(f"    {line}" for line in self.story)))


class Run(Struct):
    """One run of a job, as its process recorded it.

    held_from, held_to  the period in which it certainly held its lease
    """

    id: str
    version: int
    actor: str
    began: float
    task: str
    ended: Entry | None = None
    held_from: float = 0.0
    held_to: float = 0.0


class _Calls(Struct):
    """The recorded calls of claims.

    answered    by name, when the first try was called and the last one answered
    unanswered  when each try without an answer was called
    """

    answered: dict[str, tuple[float, float]]
    unanswered: list[float]


class Evidence:
    """A history by job, and the rows at the end.

    entries  of all actors, in any order
    rows     every row of the storage, once the faults are over and the fleet is idle
    limits   `storage.limits()` at the same time
    lease    seconds that a claim of these workers holds without a heartbeat
    """

    def __init__(
        self, entries: Iterable[Entry], rows: Iterable[Record], limits: Sequence[LimitUse] = (), lease: float = 0.0
    ) -> None:
        self.entries = ordered(entries)
        self.rows = {row.job.id: row for row in rows}
        self.limits, self.lease = limits, lease
        self.by_id: dict[str, list[Entry]] = {}
        for entry in self.entries:
            if entry.id:
                self.by_id.setdefault(entry.id, []).append(entry)
        self.steps_of_clock = [entry for entry in self.entries if entry.what == "clock"]
        # by workflow, when acts on its jobs began and were answered; "": acts on all jobs
        self.acts: dict[str, list[tuple[float, float]]] = {}
        answered: dict[tuple[str, str, str], float] = {}
        for entry in reversed(self.entries):
            key = entry.actor, entry.id, entry.name
            if entry.what == "acted":
                answered[key] = entry.at
            elif entry.what == "act" and not entry.facts.get("limit"):
                self.acts.setdefault(self.workflow(entry.id), []).append((entry.at, answered.pop(key, inf)))
        self.asked = {entry.id: entry for entry in reversed(self.entries) if entry.what == "asked"}

    @cached_property
    def claimed(self) -> dict[tuple[str, int], Entry]:
        """The first entry of the claim of each version."""
        first: dict[tuple[str, int], Entry] = {}
        for entry in self.entries:
            if entry.what == "claimed":
                first.setdefault((entry.id, entry.version), entry)
        return first

    @cached_property
    def claims(self) -> dict[tuple[str, int], float]:
        """When each version was claimed."""
        return {key: entry.at for key, entry in self.claimed.items()}

    @cached_property
    def spent(self) -> dict[tuple[str, int], dict[str, int]]:
        """The real costs that each run reports, by limit."""
        ended = [entry for entry in self.entries if entry.what == "ended" and "spent" in entry.facts]
        return {(entry.id, entry.version): entry.facts["spent"] for entry in ended}

    def call(self, id: str, version: int) -> tuple[float, float]:
        """When the claim of this version was called, at its first try, and when it was answered. Where calls are not
        recorded, both are the moment of the claim: there claims do not overlap."""
        entry = self.claimed[id, version]
        began, answered = self._calls.answered.get(entry.name, (entry.at, entry.at))
        return min(began, entry.at), max(answered, entry.at)

    def disturbed(self, id: str, version: int) -> bool:
        """Whether another claim may have kept rows locked without taking them while this version was claimed: one that
        had no answer, or one that took longer than a turn."""
        own, (since, until) = self.claimed[id, version].name, self.call(id, version)
        long = (call for name, call in self._calls.answered.items() if name != own and call[1] - call[0] > TURN)
        lost = ((began, began + self.lease) for began in self._calls.unanswered)
        return any(began < until and since < ended for began, ended in (*lost, *long))

    @cached_property
    def _calls(self) -> _Calls:
        calls, tries = _Calls({}, []), dict[str, list[float]]()
        for entry in self.entries:
            if entry.what == "claiming":
                tries.setdefault(entry.name, []).append(entry.at)
            elif entry.what == "answered" and (began := tries.get(entry.name)):
                calls.answered[entry.name] = began[0], entry.at
                began.pop()
        calls.unanswered += [began for times in tries.values() for began in times]
        return calls

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, ordered by their beginning."""
        open_runs: dict[tuple[str, str, int], Run] = {}
        runs: list[Run] = []
        for entry in self.entries:
            key = entry.actor, entry.id, entry.version
            if entry.what == "began":
                run = Run(entry.id, entry.version, entry.actor, entry.at, entry.name)
                runs.append(run)
                open_runs[key] = run
            elif entry.what == "ended" and key in open_runs:
                open_runs.pop(key).ended = entry
        for run in runs:
            self._note_hold(run)
        return runs

    def _note_hold(self, run: Run) -> None:
        claimed = self.claims.get((run.id, run.version), run.began)
        ahead = sum(max(0.0, step.seconds) for step in self.steps_of_clock if step.at >= claimed - self.lease)
        # An act may have ended the run at any time between its call, if that came after the claim, and its answer.
        ends = [claimed + self.lease - ahead]
        ends += [max(began, claimed) for began, answered in self.acts_on(run.id) if answered >= claimed]
        if run.ended is not None:
            ends.append(run.ended.at)
        run.held_from, run.held_to = run.began, min(ends)

    def workflow(self, id: str) -> str:
        """The id of the first job of its workflow."""
        row = self.rows.get(id)
        return id if row is None else row.job.root or id

    def acts_on(self, id: str) -> list[tuple[float, float]]:
        """When acts on the job or on another job of its workflow began and were answered; inf: they were not."""
        return self.acts.get(self.workflow(id), []) + self.acts.get("", [])

    def story(self, *ids: str) -> tuple[str, ...]:
        """Everything known about these jobs: their entries, the crashes and stalls of their actors, then their rows."""
        entries = [entry for entry in self.entries if entry.id in ids]
        actors = {entry.actor for entry in entries}
        claims = {entry.name for entry in entries if entry.what == "claimed"}
        began = entries[0].at if entries else 0.0
        for entry in self.entries:
            if entry.what in ("claiming", "answered"):
                belongs = entry.name in claims
            else:
                belongs = not entry.id and entry.at >= began and (entry.actor in actors or entry.what == "clock")
            entries += [entry] * belongs
        lines = [str(entry) for entry in ordered(entries)]
        for id in ids:
            row = self.rows.get(id)
            lines.append(f"{id}: no row" if row is None else _shown(row))
        return brief(lines)

    def violation(self, rule: str, text: str, *ids: str) -> Violation:
        return Violation(rule, text, ids, self.story(*ids))


def first_excess(periods: Iterable[tuple[float, float, int, str]], most: int) -> tuple[int, list[str]]:
    """The first time at which more than `most` was in use: how much, and by which ids; 0: never.

    periods  (from, to, how much, id), sorted
    """
    used, inside = 0, list[tuple[float, int, str]]()
    for since, until, amount, id in periods:
        while inside and inside[0][0] <= since:
            used -= heapq.heappop(inside)[1]
        used += amount
        heapq.heappush(inside, (until, amount, id))
        if used > most:
            return used, sorted({id for _, _, id in inside})
    return 0, []


def brief(lines: Sequence[str]) -> tuple[str, ...]:
    """The beginning and the end of a long story."""
    if len(lines) <= FIRST + LAST:
        return tuple(lines)
    return (*lines[:FIRST], f"... {len(lines) - FIRST - LAST} more lines ...", *lines[-LAST:])


def _shown(row: Record) -> str:
    texts = ((name, getattr(row, name)) for name in ("result", "value", "error", "reason", "worker", "blocked_on"))
    details = " ".join(f"{name}={text:.120}" for name, text in texts if text is not None)
    details += f" pending={row.pending}" if row.pending else ""
    return f"{row.job.id}: {row.state} v{row.version} attempt {row.attempt} lost {row.lost} {details}".rstrip()
