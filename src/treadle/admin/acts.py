"""Cancels, reopens, runs and deletes many jobs: settles them from outside, one group of rows per call.

10,000 jobs take 40 calls, and only a few groups are in memory. Each call writes a nonce, so that a repeated call after
a lost response is recognised, and of two operators who change the same job the second gets an error.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from treadle.admin.audit import Receipt, is_entry
from treadle.core.errors import KeyHeld, Locked, Stale, TreadleError
from treadle.core.model import ACT, ASKED, CHILDREN, PAUSED, Outcome, Record, State
from treadle.core.query_model import Page
from treadle.durable import open_children_of
from treadle.policy.cleanups import cancelled_with_cleanup, cleanup_id, is_cleanup
from treadle.policy.pauses import is_paused, refusal
from treadle.producer import Client
from treadle.storage import Pages, check_stays
from treadle.storage.contract import Storage
from treadle.storage.row_rules import expires_at, within
from treadle.tasks.when import HasId
from treadle.workflow import (
    after_cleanup,
    causes,
    clean_late,
    fatal,
    is_below,
    may_have_children,
    reopened,
    rows_of,
    whole_rows,
    with_steps,
)
from treadle.workflow.plan import plan_of
from treadle.workflow.streams import delete_streams

# Jobs per call. A call blocks other calls of the storage while it settles each row.
GROUP: Final = 250
TRIES: Final = 5  # attempts to settle a job that changes between reading and settling

Chosen = Callable[[Record], Outcome | None]
"""Returns the outcome of the act for a job in its present state; None: the act does not fit it."""
Note = Callable[[Record, str | None], None]
"""Called with each job as it was before: None if it was changed, else the reason why it was not."""
UNFIT: Final = "unfit"  # the reason of a job for which `Chosen` returned None
CHANGED: Final = "changed meanwhile"
HELD: Final = "another open transaction holds it"


class Acts:
    """Implements the changes of `app.jobs` to rows that were read.

    note     called with every job that they change or pass over
    receipt  of the entry of the audit log for these acts
    """

    def __init__(
        self,
        client: Client,
        storage: Callable[[], Awaitable[Storage]],
        reach: tuple[str, ...] = (),
        note: Note = lambda row, reason: None,
        receipt: Receipt | None = None,
    ) -> None:
        self._client, self._storage, self._reach, self._note = client, storage, reach, note
        self._receipt = receipt

    async def settle(
        self, rows: Sequence[Record], chosen: Chosen, raising: bool = False, named: bool = False
    ) -> list[Record]:
        """Settle these rows with the outcome that `chosen` returns -> the settled rows, as they were before.

        A job that has changed is read again, and skipped if `chosen` returns None. `raising`: raise Stale or KeyHeld if
        the storage refuses. `named`: the caller has named the job; raise Locked if another transaction holds it for
        longer than TRIES s. Raises StorageMoved.
        """
        storage, nonce = await self._storage(), os.urandom(8).hex()
        acted: list[Record] = []
        pending, held = list(rows), set[str]()
        for _ in range(TRIES):
            changed, held = await self._try(storage, pending, chosen, nonce, raising, acted)
            if not changed:
                break
            pending = []
            for now in await storage.get(changed):
                if now is not None and dict(now.checkpoints).get(ACT) == nonce:
                    acted.append(now)  # a call whose response was lost has settled it; the job has changed since
                    self._note(now, None)
                elif now is not None:
                    pending.append(now)
        else:
            await self._give_up(storage, pending, held, raising, named or raising)
        if chosen is delete_now:
            await delete_streams(storage, acted)
        return acted

    async def _try(
        self, storage: Storage, rows: Sequence[Record], chosen: Chosen, nonce: str, raising: bool, acted: list[Record]
    ) -> tuple[list[str], set[str]]:
        """Settle these rows once, and add the settled ones to `acted` -> the jobs that have changed since they were
        read, or that another transaction holds; and the latter."""
        fitting, outcomes, changed, held = list[Record](), list[Outcome](), list[str](), set[str]()
        for row in rows:
            if (outcome := chosen(row)) is None:
                self._note(row, UNFIT)
            else:
                fitting.append(row)
                outcomes.append(replace(outcome, checkpoints=(*outcome.checkpoints, (ACT, nonce)), reach=self._reach))
        if not outcomes:
            return changed, held
        settle = storage.settle if self._receipt is None else partial(self._receipt.settle, storage)
        for row, outcome, answer in zip(fitting, outcomes, await settle(outcomes), strict=True):
            if answer.status == "applied":
                acted.append(row)
                self._tell(row, outcome)
            elif answer.status == "stale" or answer.again:
                changed.append(row.job.id)
                if answer.again:
                    held.add(row.job.id)
            elif raising:
                raise _refused(row, answer.reason or "refused")
            else:
                self._note(row, answer.reason or "refused")
        return changed, held

    async def _give_up(
        self, storage: Storage, changed: Sequence[Record], held: set[str], raising: bool, named: bool
    ) -> None:
        """Note the jobs that have changed, or were held by another transaction, at each try."""
        for row in changed:
            self._note(row, HELD if row.job.id in held else CHANGED)
        if changed:
            await check_stays(storage)
        if named and held:
            raise Locked(f"job {min(held)}", "its row or its key", sorted(held))
        if changed and raising:
            raise Stale(changed[0].job.id, f"it changed {TRIES} times during this call; repeat the call")

    def _tell(self, row: Record, out: Outcome) -> None:
        self._note(row, None)
        if out.reason == PAUSED:
            self._client.tell("paused", row)
        if out.state is State.CANCELLED and row.job.task:
            self._client.tell("cancelled", row, out.error)
            if row.job.root is None:
                self._client.tell("workflow.ended", replace(row, state=State.CANCELLED, reason=ASKED))

    async def apply(self, rows: Sequence[Record], chosen: Chosen, raising: bool = False) -> int:
        """Settle these rows -> how many were settled."""
        return len(await self.settle(rows, chosen, raising))

    async def cancel(self, rows: Sequence[Record], tree: bool, named: bool = False, force: bool = False) -> int:
        """Cancel these jobs, and with `tree` their children -> the number of cancelled jobs. `named`: see `settle`.

        A job is cancelled before its children. Otherwise they would end first, and the job would fail because of them.
        The cleanup job of each job that has begun is stored in the same change. `force`: without cleanup; a cleanup job
        that is stored already ends first, as the ending of its job would start it. It counts if its job has ended.
        """
        done, queue, seen = 0, list(rows), {row.job.id for row in rows}
        outcome = stopped if force else partial(cancelled, tree=tree)
        if named and not force and is_cleanup(rows[0].job) and not rows[0].state.final:
            raise Stale(rows[0].job.id, f"it cleans up after job {rows[0].job.parent}; only force=True cancels it")
        while queue:
            group, queue = queue[:GROUP], queue[GROUP:]
            group += await self._below(group, seen, tree)
            if force:
                ended = {cleanup_id(row.job.id, row.reopenings) for row in group if row.state.final}
                done += sum(row.job.id in ended for row in await self.settle(await self._cleanups(group), stopped))
            else:
                group = await with_steps(self._rows, group)
            acted = {row.job.id: row for row in await self.settle(group, outcome, named=named)}
            done += sum(1 for row in acted.values() if row.job.task)
            # Use the rows as of the cancellation: they may have got children since they were found.
            queue = await self._below([acted.get(row.job.id, row) for row in group], seen, tree) + queue
            if force and tree:  # without a cleanup, which would cancel them
                queue += await self._called(group, seen)
            if not force:
                await clean_late(await self._storage(), self._rows, acted.values())
        return done

    async def _cleanups(self, rows: Sequence[Record]) -> list[Record]:
        """Those cleanup jobs of these jobs that are stored."""
        return await self._rows([cleanup_id(row.job.id, row.reopenings) for row in rows if not is_cleanup(row.job)])

    async def _below(self, rows: Sequence[Record], seen: set[str], tree: bool) -> list[Record]:
        """The children of these jobs that are not in `seen`: jobs that a run created, and the signals that it waits
        for.

        Without `tree` it returns only the signals, because nothing else ends them.
        """
        parents = {row.job.id: row for row in rows if may_have_children(row)}
        ids = dict.fromkeys(up for row in rows if row.job.id in parents for up in row.after if up not in seen)
        children = [row for row in await self._rows(list(ids)) if is_below(row, parents) and (tree or not row.job.task)]
        seen.update(row.job.id for row in children)
        return children

    async def _called(self, rows: Sequence[Record], seen: set[str]) -> list[Record]:
        """The open children that these jobs have called, and that are not in `seen`: they may wait for none of them."""
        children, parents = list[str](), {row.job.id for row in rows}
        async for row in whole_rows(self._rows, [row.job.id for row in rows if may_have_children(row)]):
            children += [id for id in open_children_of(row) if id not in seen]
        seen.update(children)
        return [row for row in await self._rows(children) if row.job.parent in parents and not row.state.final]

    async def reopen(self, rows: Sequence[Record], raising: bool) -> int:
        """Reopen these jobs -> their number. For a job that failed because of its children, reopen the failed ones."""
        leaves, level, seen = dict[str, Record](), list(rows), set[str]()
        while level:
            parents = list[Record]()
            for row in level:
                seen.add(row.job.id)
                if row.reason == CHILDREN:
                    parents.append(row)
                else:
                    leaves[row.job.id] = row
            level = await self._failed_children(parents, leaves, seen) if parents else []
        done, rest = 0, list(leaves.values())
        while rest:
            group, rest = rest[:GROUP], rest[GROUP:]
            cleaned = await after_cleanup(self._rows, group)
            for row in group:
                if why := cleaned.get(row.job.id):
                    self._note(row, why)
                    if raising:
                        raise Stale(row.job.id, f"{why} ({cleanup_id(row.job.id, row.reopenings)})")
            group = [row for row in group if not cleaned.get(row.job.id)]
            done += len(await self.settle(group, partial(reopened, cleaned=cleaned), raising))
        return done

    async def _failed_children(
        self, parents: Sequence[Record], leaves: dict[str, Record], seen: set[str]
    ) -> list[Record]:
        """The children that made these jobs fail and are not in `seen` yet. A job without any is a leaf."""
        children = {row.job.id: row for row in await self._rows([id for row in parents for id in row.after])}
        below: dict[str, Record] = {}
        for parent in parents:
            own = [children[id] for id in dict.fromkeys(parent.after) if id in children]
            failed = [child for child in causes(fatal(own, plan_of(parent))) if child.state.final]
            below |= {child.job.id: child for child in failed}
            if not failed:
                leaves[parent.job.id] = parent
        return [child for id, child in below.items() if id not in seen]

    async def _rows(self, ids: Sequence[str]) -> list[Record]:
        return [row for row in await rows_of(self._client.get, ids) if within(self._reach, row.job.queue)]


def _refused(row: Record, reason: str) -> TreadleError:
    """The error for a refused reopening: KeyHeld if the storage's message names the job that holds the key, else
    Stale."""
    _, held, holder = reason.rpartition(" is held by ")
    if not held:
        return Stale(row.job.id, reason)
    return KeyHeld(
        (row.job.key or "").partition(" ")[2], holder.removeprefix("job ") if holder.startswith("job ") else ""
    )


# --- the outcomes


def cancelled(row: Record, tree: bool) -> Outcome | None:
    """The cancellation of a job, with its cleanup. None for a job that has ended, and for a cleanup itself."""
    outcome = None if is_cleanup(row.job) else stopped(row)
    return None if outcome is None else cancelled_with_cleanup(row, outcome, tree)


def stopped(row: Record) -> Outcome | None:
    if row.state.final:
        return None
    return Outcome(
        id=row.job.id,
        version=row.version,
        state=State.CANCELLED,
        attempt=row.attempt,
        reason=ASKED,
        error="cancelled by hand",
    )


def at_once(row: Record) -> Outcome | None:
    if row.state is not State.READY or row.queue_position is not None or row.blocked_on is not None or is_paused(row):
        return None
    return Outcome(id=row.job.id, version=row.version, state=State.READY, attempt=row.attempt, error=row.error)


def delete_now(row: Record) -> Outcome | None:
    if not row.state.final or row.ended_at is None or row.expires_at is None:
        return None
    if row.expires_at <= expires_at(row, row.state, row.ended_at, 0.0):
        return None  # already deleted
    return Outcome(id=row.job.id, version=row.version, state=row.state, keep=0.0)


class Condition(NamedTuple):
    """A condition that an act has for each job. `otherwise` says what to do with a job that does not meet it; "": the
    act passes over the job."""

    holds: Callable[[Record], bool]
    otherwise: str = ""


ANY: Final = Condition(lambda row: True)
OPEN: Final = Condition(lambda row: not row.state.final)
TO_REOPEN: Final = Condition(
    lambda row: row.state in (State.FAILED, State.CANCELLED), "only failed and cancelled jobs can be reopened"
)
TO_RUN: Final = Condition(
    lambda row: row.state is State.READY and not is_paused(row), "only ready jobs that are not paused can be run now"
)
TO_PAUSE: Final = Condition(lambda row: refusal(row) is None, "only unfinished jobs can be paused and resumed")
TO_DELETE: Final = Condition(lambda row: row.state.final, "cancel it first")


class Listed(Protocol):
    """The methods of `app.jobs` that find jobs."""

    async def get(self, job: HasId | str) -> Record: ...
    async def list(self, /, **words: Any) -> Page: ...


async def matching(
    jobs: Listed, filters: Mapping[str, Any], condition: Condition, progress: Callable[[int], object] | None
) -> AsyncIterator[Sequence[Record]]:
    """Yield the jobs that match the filters and meet the condition, in groups. `progress` is called after each group
    with the number of jobs examined."""
    examined = 0
    async for page in Pages(lambda cursor: jobs.list(cursor=cursor, limit=GROUP, order="oldest", **filters)):
        yield [row for row in page.records if row.job.task and condition.holds(row) and not is_entry(row)]
        examined += len(page.records)
        if progress is not None:
            progress(examined)


async def refuse(jobs: Listed, job: HasId | str, condition: Condition) -> None:
    """Raise Stale if the job does not meet the condition."""
    row = await jobs.get(job)
    if is_entry(row):
        raise Stale(row.job.id, "an entry of the audit log, which cannot be changed")
    if not condition.holds(row):
        raise Stale(row.job.id, f"{row.state}: {condition.otherwise}")
