"""Runs a job again from one of its steps: the same job in a new round, or a new job with a part of its history."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from treadle.admin.acts import TRIES, Acts
from treadle.admin.audit import is_entry
from treadle.core import ids
from treadle.core.defaults import MAX_DELAY, SYSTEM_QUEUE
from treadle.core.errors import Stale
from treadle.core.job import JobSpec
from treadle.core.model import OURS, Outcome, Record, State
from treadle.durable import forked, open_children_of, rewound, turns_given_up
from treadle.policy import attempts
from treadle.policy.judge import upstreams
from treadle.policy.parts import is_part
from treadle.policy.pauses import is_paused, paused
from treadle.policy.retry import read_policy
from treadle.policy.rounds import present, round_of
from treadle.producer import Client
from treadle.serialization import call_codec
from treadle.storage import check_stays
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within
from treadle.tasks.core import TaskCore
from treadle.tasks.when import HasId
from treadle.workflow import after_cleanup, rows_of
from treadle.workflow.locks import given_up


class Looks(Protocol):
    """The attributes of `app.jobs` that this uses."""

    @property
    def reach(self) -> tuple[str, ...]: ...
    async def whole(self, job: HasId | str) -> Record: ...


def _check(row: Record) -> None:
    """Raise Stale for a row that cannot run again as it is."""
    if not row.job.task or row.job.queue == SYSTEM_QUEUE or is_entry(row) or is_part(row.job):
        raise Stale(row.id, f"{row.state}: a row of Treadle's own, which runs no function of yours")
    if not _has_begun(row):
        raise Stale(row.id, f"{row.state}: it has not begun: there is nothing to run again")


def _has_begun(row: Record) -> bool:
    """Whether the job has run. A row that is queued again has no start, but a round, an attempt or a step."""
    return (
        row.started_at is not None
        or row.attempt > 0
        or round_of(row.checkpoints).number > 0
        or bool(attempts.stored(row))
        or any(not name.startswith(OURS) for name, _ in row.checkpoints)
    )


class Again:
    """Implements `rerun` and `fork` of `app.jobs`."""

    def __init__(self, jobs: Looks, acts: Acts, client: Client, storage: Callable[[], Awaitable[Storage]]) -> None:
        self._jobs, self._acts, self._client, self._storage = jobs, acts, client, storage

    async def rerun(self, id: str, step: str | None) -> None:
        """See `Jobs.rerun`. Open children are cancelled first. An unfinished job is paused meanwhile, so their endings
        do not continue it; if this process dies in between, the job stays paused."""
        for _ in range(TRIES):
            row = await self._read(id, step)
            if row.state is State.RUNNING:
                raise Stale(row.id, "running: pause or cancel it first")
            if row.function_done and not row.state.final:
                raise Stale(row.id, f"{row.state}: its function has run; cancel it first")
            outcome = rewound(row, step)
            children, turns = await self._open_children(row), await self._turns(row, step)
            self._check_reach(row, [*children, *turns])
            is_still = row.state.final or is_paused(row)
            if (children or turns) and not is_still:
                await self._acts.settle([row], paused)
                continue
            if children:
                await self._acts.cancel(children, tree=True)
                continue

            def fits(now: Record, version: int = row.version, outcome: Outcome = outcome) -> Outcome | None:
                if now.id != outcome.id:
                    return given_up(now)
                return outcome if now.version == version else None

            if await self._acts.settle([row], fits, raising=True):
                if turns:
                    await self._acts.settle(turns, fits)
                return
        raise Stale(id, f"it changed {TRIES} times during this call; repeat the call")

    async def _read(self, id: str, step: str | None) -> Record:
        """The row of a job that may run again from this step. Raises Stale, and StorageMoved if the rows are old."""
        row = await self._jobs.whole(id)
        try:
            _check(row)
            if row.state.final:
                await self._check_cleanup(row, step)
        except Stale:
            await check_stays(await self._storage())
            raise
        return row

    async def _check_cleanup(self, row: Record, step: str | None) -> None:
        """Raise Stale for an ended job whose cleanup is not over, or has undone the steps that would stay."""
        why = (await after_cleanup(partial(rows_of, self._client.get), [row])).get(row.id)
        if why == "" and step is not None:
            why = "its cleanup has undone its steps: leave out from_step, or retry it"
        if why:
            raise Stale(row.id, f"{row.state}: {why}")

    async def _open_children(self, row: Record) -> Sequence[Record]:
        """The unfinished jobs that this one has created."""
        ids = [*(row.after if row.function_done else ()), *open_children_of(row)]
        children = [one for one in await rows_of(self._client.get, ids) if one.job.parent == row.id]
        return [one for one in children if one.job.task and not one.state.final]

    async def _turns(self, row: Record, step: str | None) -> Sequence[Record]:
        """The open turns of locks of which the job keeps no entry."""
        turns = await rows_of(self._client.get, turns_given_up(row, step))
        return [turn for turn in turns if not turn.state.final and row.id in turn.after]

    def _check_reach(self, row: Record, children: Sequence[Record]) -> None:
        """Raise Stale if the caller may not cancel all of these children, before anything is changed."""
        if not all(within(self._jobs.reach, child.job.queue) for child in children):
            why = "an unfinished child of it is in a queue that this caller has no right to; that child must end first"
            raise Stale(row.id, f"{row.state}: {why}")

    async def fork(self, id: str, step: str | None, encode: Callable[[Record], str] | None) -> Record:
        """See `Jobs.fork`. The new row is stored as not due for 100 years, and becomes due together with its history:
        if this process dies in between, the new job never runs.

        encode  encodes the new arguments of this row; None: it has those of the job
        """
        source = await self._read(id, step)
        history, job = forked(source, step, encode is None), present(source).job
        takes_result = bool(read_policy(job.retry).pass_result)
        new = replace(
            job,
            id=f"{ids.UuidV7()()}",
            payload=job.payload if encode is None else encode(source),
            delay=MAX_DELAY,
            run_at=None,
            deadline_at=None,
            key=None,
            key_window=None,
            after=upstreams(source) if takes_result else (),
            root=None,
            parent=None,
            nonce=ids.nonce(),
            reach=self._jobs.reach,
        )
        [(row, _)] = await self._client.send_rows([JobSpec(new)])
        begin = Outcome(id=row.id, version=row.version, state=State.READY, checkpoints=history)
        [settled] = await (await self._storage()).settle([begin])
        if settled.status != "applied":
            raise Stale(row.id, settled.reason or settled.status)
        return row


def typed_call(
    tasks: Mapping[str, TaskCore], task: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """JSON values as the arguments of this task, if the app has it. Raises BadArgument."""
    core = tasks.get(task)
    if core is None:
        return args, kwargs
    return core.signature.decode_call(call_codec.encode_foreign_call(args, kwargs, task))
