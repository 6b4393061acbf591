"""From waiting to released, and from running to ended: edges, keys, and the counting down in between.

Without it an ending would be one row's affair, and whoever waits for it would wait for ever.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from msgspec.structs import replace

from treadle.core.model import SUPERSEDED, UPSTREAM, NewJob, Record, State
from treadle.storage.memory.tables import Tables
from treadle.storage.row_rules import expires_at, first_moment, keeps_key

RUNNING, READY, WAITING = State.RUNNING, State.READY, State.WAITING


class Edge:
    """One job waits for another. `open` until the ending has counted; `soft`: any ending counts as a success.

    `version` is that of the job as it began to wait: a later wait is another one, for other jobs.
    """

    __slots__ = ("open", "soft", "version")

    def __init__(self, version: int, soft: bool = False) -> None:
        self.open, self.version, self.soft = True, version, soft


class Endings:
    """Who waits for whom and who holds which key. What has ended is counted down before the call is over."""

    def __init__(self, tables: Tables) -> None:
        self.tables, self.jobs = tables, tables.jobs
        self.down: dict[str, dict[str, Edge]] = defaultdict(dict)  # upstream -> who waits for it
        self.keys: dict[str, str] = {}
        self.behind: dict[str, str] = {}  # who took a key -> the holder that gave it away
        self.pending: list[tuple[str, State]] = []  # endings still to be counted

    # --- keys

    def holder(self, key: str, now: float, leaving: str = "") -> str | None:
        row = self.jobs.get(self.keys.get(key, ""))
        if row is None or ((row.state.final or row.job.id == leaving) and not keeps_key(row, now)):
            return None
        return row.job.id

    def take_key(self, new: NewJob, now: float, parent: str = "") -> str | None:
        """Hold the key from now on. Answers whom to wait for: the running holder that gave the key away, or the one
        that the superseded holder waited for itself. Never `parent`, which may be waiting for this very job, and no
        job that waits for `parent`."""
        assert new.key is not None
        holder = self.holder(new.key, now)
        self.keys[new.key] = new.id
        if holder is None or holder == parent:
            return None
        row = self.jobs[holder]
        if row.state.final:  # since this call began: it came with it, doomed, and its window holds the key
            return None
        if row.function_done or row.state is RUNNING or (row.state is WAITING and row.started_at is not None):
            if parent and holder in self.waiting_for(parent):
                return None
            self.behind[new.id] = holder
            return holder
        self.end(row, State.CANCELLED, now, SUPERSEDED, f"superseded by {new.id}")
        self.count_endings(now)
        first = self.behind.get(holder)
        if first is None or first not in self.jobs or self.jobs[first].state.final:
            return None
        if parent and first in self.waiting_for(parent):  # which is one of them
            return None
        self.behind[new.id] = first
        return first

    def drop_key(self, row: Record) -> None:
        if row.job.key is not None and self.keys.get(row.job.key) == row.job.id:
            del self.keys[row.job.key]

    # --- waiting

    def watch_ups(self, id: str, after: Iterable[str], now: float) -> None:
        """Wait for these; those that have ended count at once."""
        for up in after:
            self.down[up][id] = Edge(self.jobs[id].version)
        for up in after:
            if up in self.jobs and self.jobs[up].state.final:
                self.count(up, id, self.jobs[up].state, now)
        self.count_endings(now)
        row = self.jobs[id]
        if row.state is WAITING and row.pending <= 0:
            self.release(row, now)

    def waiting_for(self, id: str) -> set[str]:
        """This job, and all that cannot end before it has."""
        found, look = {id}, [id]
        while look:
            for down, edge in self.down.get(look.pop(), {}).items():
                row = self.jobs.get(down)
                if down in found or row is None or not edge.open or row.version != edge.version:
                    continue
                if row.state is WAITING:
                    found.add(down)
                    look.append(down)
        return found

    def release(self, row: Record, now: float) -> None:
        """It waits no longer: in line now, or when its delay is over. A promise waits on, for its settlement."""
        run_at = row.created_at + row.job.delay
        if not row.job.task:
            self.tables.put(row)
        elif row.started_at is None and not row.function_done and row.job.delay > 0 and run_at > now:
            self.schedule(row, run_at)
        else:
            self.tables.join(replace(row, pending=0), now)

    def schedule(self, row: Record, run_at: float) -> None:
        due = first_moment(run_at, None if row.function_done else row.deadline_at)
        self.tables.put(
            replace(row, state=READY, pending=0, queue_position=None, blocked_on=None, return_position=None, due_at=due)
        )
        self.tables.topics.add(f"queue:{row.job.queue}")

    # --- ending

    def end(
        self, row: Record, state: State, now: float, reason: str | None, error: str | None, keep: float | None = None
    ) -> None:
        """The ending of a job. Whoever waits for it is counted down by `_count_endings`, before the call is over."""
        if not keeps_key(row, now):
            self.drop_key(row)
        self.tables.put(
            replace(
                row,
                version=row.version + 1,
                state=state,
                reason=reason,
                error=error,
                queue_position=None,
                blocked_on=None,
                pending=0,
                due_at=None,
                updated_at=now,
                ended_at=now,
                expires_at=expires_at(row, state, now, keep),
            )
        )
        self.pending.append((row.job.id, state))
        self.tables.unblock(row, now)

    def count_endings(self, now: float) -> None:
        while self.pending:
            up, state = self.pending.pop()
            for down in list(self.down.get(up, ())):
                self.count(up, down, state, now)

    def count(self, up: str, down: str, state: State, now: float) -> None:
        edge, row = self.down[up][down], self.jobs.get(down)
        if not edge.open:
            return
        edge.open = False
        if row is None or row.state is not WAITING or row.version != edge.version:
            return
        if edge.soft or row.failures_allowed is None or state is State.SUCCEEDED:
            row = replace(row, pending=row.pending - 1)
        else:
            row = replace(row, failures_allowed=row.failures_allowed - 1)
        if row.pending <= 0:
            self.release(row, now)
        elif row.failures_allowed is None or row.failures_allowed >= 0:
            self.tables.put(row)
        elif row.started_at is None and not row.function_done:
            self.end(row, State.CANCELLED, now, UPSTREAM, f"{up}, which it waited for, ended as {state}")
        else:
            self.tables.join(row, now)

    def forget(self, row: Record) -> None:
        """A row that is gone waits for nobody and holds nothing."""
        self.drop_key(row)
        self.behind.pop(row.job.id, None)
        for up in row.after:
            self.down[up].pop(row.job.id, None)
            if not self.down[up]:
                del self.down[up]
