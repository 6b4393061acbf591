"""What the checker looks at: a history by job and by run, the rows at the end, and the story of a job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from msgspec import Struct

from treadle.core.model import LimitUse, Record
from treadle.testing.history.entries import Entry, ordered

FIRST, LAST = 15, 45  # lines of a story that are shown


class Violation(Struct, frozen=True):
    """A promise that was not kept.

    rule   acknowledged | unfinished | unknown | value | fence | overlap | step | signal | after | key | slots | rate |
           order | left | expected
    text   what was found and what was expected, in one line
    ids    the jobs concerned; `story` tells all that is known of them, in the order of time
    """

    rule: str
    text: str
    ids: tuple[str, ...] = ()
    story: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join((f"{self.rule}: {self.text}", *(f"    {line}" for line in self.story)))


class Run(Struct):
    """One run of a job: what its process wrote.

    held_from, held_to  the time in which its lease certainly held: no other run may have been let in by its end
    """

    id: str
    version: int
    actor: str
    began: float
    task: str
    ended: Entry | None = None
    held_from: float = 0.0
    held_to: float = 0.0


class Evidence:
    """A history by job, and the rows at the end.

    entries  of all actors; any order
    rows     every row of the storage, after the fleet has healed and come to rest
    limits   `storage.limits()` at the same moment
    lease    s a claim of these workers holds without a heartbeat
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
        self.acts: dict[str, list[float]] = {}  # by workflow, when somebody began to act on a job of it; "": on all
        for entry in self.entries:
            if entry.what == "act" and not entry.facts.get("limit"):
                self.acts.setdefault(self.workflow(entry.id), []).append(entry.at)
        self.asked = {entry.id: entry for entry in reversed(self.entries) if entry.what == "asked"}

    @cached_property
    def claims(self) -> dict[tuple[str, int], float]:
        """When a version was claimed, by the first entry that says so."""
        found: dict[tuple[str, int], float] = {}
        for entry in self.entries:
            if entry.what == "claimed":
                found.setdefault((entry.id, entry.version), entry.at)
        return found

    @cached_property
    def runs(self) -> list[Run]:
        """All runs, in the order in which they began."""
        open_runs: dict[tuple[str, str, int], Run] = {}
        found: list[Run] = []
        for entry in self.entries:
            key = entry.actor, entry.id, entry.version
            if entry.what == "began":
                run = Run(entry.id, entry.version, entry.actor, entry.at, entry.name)
                found.append(run)
                open_runs[key] = run
            elif entry.what == "ended" and key in open_runs:
                open_runs.pop(key).ended = entry
        for run in found:
            self._note_hold(run)
        return found

    def _note_hold(self, run: Run) -> None:
        claimed = self.claims.get((run.id, run.version), run.began)
        ahead = sum(max(0.0, step.seconds) for step in self.steps_of_clock if step.at >= claimed - self.lease)
        ends = [claimed + self.lease - ahead, *(at for at in self.acts_on(run.id) if at >= claimed)]
        if run.ended is not None:
            ends.append(run.ended.at)
        run.held_from, run.held_to = run.began, min(ends)

    def workflow(self, id: str) -> str:
        """The id of the first job of its workflow."""
        row = self.rows.get(id)
        return id if row is None else row.job.root or id

    def acts_on(self, id: str) -> list[float]:
        """When somebody began to act on the job, or on another one of its workflow."""
        return self.acts.get(self.workflow(id), []) + self.acts.get("", [])

    def story(self, *ids: str) -> tuple[str, ...]:
        """What is known of these jobs: the entries of each and what befell its actors, then its row."""
        entries = [entry for entry in self.entries if entry.id in ids]
        actors = {entry.actor for entry in entries}
        began = entries[0].at if entries else 0.0
        entries += [
            each
            for each in self.entries
            if not each.id and each.at >= began and (each.actor in actors or each.what == "clock")
        ]
        lines = [str(entry) for entry in ordered(entries)]
        for id in ids:
            row = self.rows.get(id)
            lines.append(f"{id}: no row" if row is None else _shown(row))
        return brief(lines)

    def violation(self, rule: str, text: str, *ids: str) -> Violation:
        return Violation(rule, text, ids, self.story(*ids))


def brief(lines: Sequence[str]) -> tuple[str, ...]:
    """The beginning and the end of a long story."""
    if len(lines) <= FIRST + LAST:
        return tuple(lines)
    return (*lines[:FIRST], f"... {len(lines) - FIRST - LAST} more lines ...", *lines[-LAST:])


def _shown(row: Record) -> str:
    rest = {
        "result": row.result,
        "value": row.value,
        "error": row.error,
        "reason": row.reason,
        "worker": row.worker,
        "parked": row.parked,
        "pending": row.pending or None,
    }
    words = " ".join(f"{name}={text!s:.120}" for name, text in rest.items() if text is not None)
    return f"{row.job.id}: {row.state} v{row.version} attempt {row.attempt} lost {row.lost} {words}".rstrip()
