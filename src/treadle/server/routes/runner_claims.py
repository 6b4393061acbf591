"""The claims of the worker protocol: leases jobs for runners, and ends those that only need ending."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from treadle.core import defaults
from treadle.core.errors import BadOption
from treadle.core.model import Claim, Claimed, Outcome, Record
from treadle.core.placement import Needs, amounts, check_needs, labels_of, needs_of, runs_of_any
from treadle.core.ranges import a_span
from treadle.core.rare_log import RareLog
from treadle.durable import open_children_of
from treadle.policy import judge
from treadle.policy.cleanups import cleanup_id, ends_alone, nothing_to_do
from treadle.policy.parts import is_part, step_of
from treadle.server import runner_outcomes
from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.longpoll import LongPoll
from treadle.server.operation import Call
from treadle.server.row_checks import check_claim
from treadle.server.runner_trials import RunnerTrials
from treadle.server.settings import Settings
from treadle.server.time_slices import TimeSlices
from treadle.storage import messages, whole
from treadle.storage.contract import Storage
from treadle.storage.messages import AllSettled
from treadle.workflow import WorkflowFinisher, cancel_subtree, failure, rows_of

if TYPE_CHECKING:
    from treadle.app.core import AppCore

log = logging.getLogger("treadle.server")

OF_PYTHON: Final = 60.0  # s until a job that only a worker in Python can run is claimed again
ROUNDS: Final = 20  # claims of one call that return only jobs to be ended here


class RunnerClaims:
    """The claims of runners over the storage of one app."""

    def __init__(self, app: AppCore, waiting: LongPoll, settings: Settings) -> None:
        self._app, self._waiting, self._settings = app, waiting, settings
        self._repeats, self._closed = RepeatedClaims(), RareLog(log)
        self._trials = RunnerTrials(lambda: app.storage)

    async def claim(self, call: Call[messages.ClaimCall, messages.Nothing]) -> Claimed:
        """Lease jobs; with `wait`, wait for the first of them."""
        body, token = call.body, call.token
        # A claim by ids may name other queues, without effect.
        queues = [name for name, _ in body.queues if token.sees(name)]
        placed_claim = placed(body, self._app.tasks)
        wanted = None if placed_claim.tasks is None else frozenset(placed_claim.tasks), body.ids
        claim, wait = rights.to_claim(token, placed_claim), min(body.wait, self._settings.max_wait)
        check_claim(claim)
        a_span("wait", body.wait)

        with self._repeats.of(claim.worker) as repeats:
            number = repeats.enter()

            async def look() -> tuple[Claimed, bool, float | None]:
                async with repeats.turn:
                    claimed = await self._claim(token, claim, body.max_lost, body.most)
                return claimed, bool(claimed.records), claimed.next_in

            async def release(claimed: Claimed) -> None:
                await repeats.unless_repeated(number, partial(self._hand_back, claimed))

            return await self._waiting.until_found(queues, wait, call.request, look, release, wanted)

    async def _hand_back(self, claimed: Claimed) -> None:
        """Release claimed jobs whose client has disconnected: they keep their order and attempts."""
        await self._app.storage.settle([judge.released(row) for row in claimed.records])

    async def _claim(self, token: Token, claim: Claim, max_lost: int | None, most: int | None) -> Claimed:
        """Claim jobs. For a runner that leaves judging to the server, jobs that only need ending are ended here."""
        if max_lost is not None and await self._trials.occupies(claim.worker):
            return Claimed()
        for _ in range(ROUNDS):
            claimed = await self._app.storage.claim(claim)
            if max_lost is None:
                return await self.readable(token, claimed, most)
            claimed = await fitting(self._app.storage, await self._whole(claimed), most)
            cleaning = [row for row in claimed.records if is_part(row.job)]
            if not cleaning and not any(row.lost or row.function_done for row in claimed.records):
                return claimed
            running = [row for row in claimed.records if not row.function_done and row not in cleaning]
            ended = runner_outcomes.lost_too_often(running, self._app.retry, max_lost)
            ended += [await self._cleaned(row) for row in cleaning]
            ended += [await self._ender().end(row, max_lost) for row in claimed.records if row.function_done]
            await self._app.storage.settle(ended)
            ended_ids = {outcome.id for outcome in ended}
            kept = await self._trials.chosen(claim, [row for row in claimed.records if row.id not in ended_ids])
            if kept or not ended or claim.ids:
                break
        return Claimed(kept, claimed.next_in)

    async def _cleaned(self, row: Record) -> Outcome:
        """End a cleanup job. A runner cannot run a function over the history of another job, so that only cancels the
        children of the job. The try of a step is left to the workers of the job, which are in Python."""
        if step_of(row.job):
            return judge.released(row, OF_PYTHON)
        storage = self._app.storage
        [ended] = await storage.get([row.job.parent or ""])
        if ended is not None and ended.state.final and row.id == cleanup_id(ended.id, ended.reopenings):
            ids = () if ends_alone(ended) else open_children_of(ended)
            children = [child for child in await rows_of(storage.get, ids) if child.job.parent == ended.id]
            await cancel_subtree(storage, children, f"job {ended.id} has ended before it")
        return nothing_to_do(row)

    async def readable(
        self, token: Token, claimed: Claimed, most: int | None, beside: messages.AllSettled | None = None
    ) -> Claimed:
        """The claimed jobs with their large texts, as many as fit into the response, without those that only this
        server may end. `beside`: the rest of the response."""
        whole = await self._whole(claimed)
        return await self._without_foreign(token, await fitting(self._app.storage, whole, most, beside))

    async def _without_foreign(self, token: Token, claimed: Claimed) -> Claimed:
        """End jobs that waited for jobs of other queues, which the worker of a bound token cannot read."""
        ran = [row for row in claimed.records if row.function_done and row.after] if token.queues else []
        if not ran:
            return claimed
        ups = await self._app.storage.get(list(dict.fromkeys(up for row in ran for up in row.after)))
        foreign = {row.id for row in ups if row is not None and not token.sees(row.job.queue)}
        over = {row.id: row for row in ran if not foreign.isdisjoint(row.after)}
        if not over:
            return claimed
        await self._app.storage.settle([await self._ender().end(row, defaults.MAX_LOST) for row in over.values()])
        return Claimed(tuple(row for row in claimed.records if row.id not in over), claimed.next_in)

    async def _whole(self, claimed: Claimed) -> Claimed:
        """The claimed jobs with their large texts, if this server has the blob store."""
        return replace(claimed, records=tuple([row for row in await whole(self._app.storage, claimed.records) if row]))

    def _ender(self) -> WorkflowFinisher:
        app = self._app
        return WorkflowFinisher(app.storage, app.tasks, app.reducers, app.sizes.result, self._closed)


def placed(call: messages.ClaimCall, tasks: Mapping[str, Any]) -> Claim:
    """The claim of a request, limited so that all jobs that it leases fit together. Raises BadOption.

    tasks  of the server's app. They may declare needs, but needs in the request take precedence
    """
    ask = call.ask()
    if call.labels is None and call.resources is None and not call.needs:
        return ask
    labels, free = labels_of(call.labels or {}), amounts(call.resources or {}, "resources")
    if ask.tasks is None:
        raise BadOption("tasks", "labels, resources and needs are of the tasks that a claim names; name them")
    own = {name: _needs(name, need) for name, need in call.needs.items()}
    able: dict[str, tuple[int | None, float | None]] = {}
    uses = []
    for name, room in ask.tasks.items():
        needs: Needs | None = own[name] if name in own else getattr(tasks.get(name), "needs", None)
        if needs is None:
            able[name] = room
        elif needs.unmet(labels) is None and needs.excess(free) is None:
            able[name] = room
            uses.append(needs.uses)
    return replace(ask, tasks=able, limit=min(ask.limit, runs_of_any(uses, free)))


def _needs(task: str, sent: messages.TaskNeeds) -> Needs | None:
    """The needs that a request names, checked. Raises BadOption."""
    check_needs(Needs(task, tuple(sent.requires.items())))
    named = {name: values for name, values in sent.requires.items() if values}
    listed = needs_of(task, named, sent.uses)
    anything = needs_of(task, [name for name, values in sent.requires.items() if not values], None)
    if anything is None:
        return listed
    return anything if listed is None else Needs(task, anything.requires + listed.requires, listed.uses)


# --- repeated claims
#
# Requests that repeat a claim under the same claim id while the first request is still in progress.
#
# Only the newest request has a client that waits for the response. The server may notice late, or never, that the
# connection of an older one has closed.


class SameClaim:
    """The requests in progress with one claim id.

    turn  held while a job is claimed or released, so that the newest request never gets a job that an older one is
          releasing
    """

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.here = 0  # requests in progress
        self._newest = 0

    def enter(self) -> int:
        """The number of a new request, which is now the newest."""
        self._newest += 1
        return self._newest

    def is_newest(self, number: int) -> bool:
        return number == self._newest

    async def unless_repeated(self, number: int, release: Callable[[], Awaitable[None]]) -> None:
        """Release what this request has claimed, unless a newer one returns it."""
        async with self.turn:
            if self.is_newest(number):
                await release()


class RepeatedClaims:
    """The requests in progress of all claims."""

    def __init__(self) -> None:
        self._claims: dict[str, SameClaim] = {}

    @contextmanager
    def of(self, claim_id: str) -> Iterator[SameClaim]:
        """Count a request of this claim as in progress inside the block."""
        same = self._claims.setdefault(claim_id, SameClaim())
        same.here += 1
        try:
            yield same
        finally:
            same.here -= 1
            if not same.here:
                del self._claims[claim_id]


# --- the size of the answer
#
# Bounds the size of the response to a claim: a worker that cannot read the response cannot run the leased jobs.
#
# Jobs that do not fit return to their queue position at once, without a counted attempt, for a later claim.


FRAME: Final = 1_024  # bytes of a response apart from its rows and outcomes
SHORT: Final = 8_192  # characters of all other fields: names, keys, numbers
LARGE: Final = "too large for its worker"

_encode = msgspec.json.Encoder().encode


async def fitting(storage: Storage, claimed: Claimed, most: int | None, beside: AllSettled | None = None) -> Claimed:
    """The first claimed jobs that fit into a response of `most` bytes (None: all) next to `beside`, the
    rest of the response.

    A job that is too large on its own fails. Raises StorageError.
    """
    settled = 0 if beside is None else len(beside.settled)
    if most is None or sum(map(_longest, claimed.records)) + SHORT * settled < most:  # the usual case, without encoding
        return claimed
    room = most - FRAME - (0 if beside is None else len(_encode(beside)))
    alone, room_left = most - FRAME, room
    fit: list[Record] = []
    outcomes: list[Outcome] = []
    turns, is_full = TimeSlices(), False
    for row in claimed.records:
        await turns.step()
        if is_full:
            outcomes.append(judge.released(row))
            continue
        size = len(_encode(row)) + 1
        if size > alone:
            outcomes.append(_failed(row, size, most))
        elif size > room_left:
            is_full = True
            outcomes.append(judge.released(row))
        else:
            fit.append(row)
            room_left -= size
    if not outcomes:
        return claimed
    await storage.settle(outcomes)
    return replace(claimed, records=tuple(fit), next_in=0.0)


def _longest(row: Record) -> int:
    """An upper bound for the bytes of a row as JSON: a character takes at most six."""
    job, pairs = row.job, (*row.checkpoints, *row.job.headers)
    texts = (job.payload, job.retry, row.result, row.value, row.error, row.note)
    names = len(job.after) + len(row.after) + len(job.limits) + len(job.labels)
    return 6 * (
        SHORT + sum(len(text) for text in texts if text) + sum(len(a) + len(b) + 8 for a, b in pairs) + 600 * names
    )


def _failed(row: Record, size: int, most: int) -> Outcome:
    problem = (
        f"the row of this job has {size:,} bytes as JSON, and the worker that claimed it accepts responses of at most"
    )
    error = f"{problem} {most:,}: raise ?max_answer= in its storage URL, or pass a reference instead of the data"
    return failure(row, error) if row.function_done else judge.ended(row, LARGE, error)
