"""The queue protocol: the HTTP queue of WASI jobs over any storage.

Each job is a job of the task `wasi.run` in the queue `wasi`. A job counts as abandoned when its lease expires, and its
former runner can no longer change it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from treadle.blobs import BadAddress, Blobs, address_of
from treadle.contrib.queuey.blobs import blob_response
from treadle.contrib.queuey.jobs import (
    UUID,
    ClaimAsked,
    Complete,
    Create,
    Ending,
    JobJson,
    Listing,
    Rules,
    Tickle,
    is_ours,
    is_runner,
    runner_of,
    view,
)
from treadle.core.job import JobSpec
from treadle.core.model import ABORTED, ERROR, LOST, Claim, LeaseRenewal, NewJob, Outcome, Presence, Record, State
from treadle.core.query_model import Query
from treadle.policy import judge
from treadle.server import (
    WAIT,
    LongPoll,
    Refused,
    RepeatedClaims,
    RunnerMetrics,
    Settings,
    allowed,
    body,
    caller,
    json,
    spelled,
    users_row,
)

if TYPE_CHECKING:
    from treadle.app.core import AppCore

QUEUE: Final = "wasi"
TASK: Final = "wasi.run"
KEEP: Final = 30 * 86_400.0  # s that an ended job is kept
KEY_WINDOW: Final = 86_400.0  # s that an Idempotency-Key returns the same job
PORT: Final = 1717
BODY: Final = 16 * 2**10  # bytes: two addresses and a few numbers
FOREIGN: Final = "expected a job of the queue protocol, with two addresses as its arguments"
TRIES: Final = 5  # attempts to change a job that changes between reading and writing
AGE: Final = "Treadle-Abandoned-After"  # header of claims: seconds without a tickle after which a job is abandoned


def queue_routes(rules: Rules, blobs: Blobs | None = None) -> Callable[[AppCore, Settings, LongPoll], list[BaseRoute]]:
    """The protocol as an argument of `make_site`. `blobs`: the blob store of this server, if it has one."""
    return lambda core, settings, waiting: QueueyApi(core, settings, rules, waiting, blobs).routes()


class QueueyApi:
    """The calls of the original protocol, and some to list, release and cancel jobs."""

    def __init__(self, core: AppCore, settings: Settings, rules: Rules, waiting: LongPoll, blobs: Blobs | None) -> None:
        self._core, self._settings, self._rules, self._waiting = core, settings, rules, waiting
        self._blobs, self._metrics = blobs, RunnerMetrics(core)
        self._most, self._repeats = min(BODY, settings.max_body), RepeatedClaims()

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/ping", self.ping),
            Route("/jobs/create", self.create, methods=["POST"]),
            Route("/jobs/claim", self.claim, methods=["POST"]),
            *[Route(f"/jobs/{word}", _only_post, methods=["GET"]) for word in ("create", "claim")],  # not ids
            Route("/jobs", self.list, methods=["GET"]),
            Route("/jobs/{id}", self.get, methods=["GET"]),
            Route("/jobs/{id}/tickle", self.tickle, methods=["POST"]),
            Route("/jobs/{id}/complete", self.complete, methods=["POST"]),
            Route("/jobs/{id}/output", self.output, methods=["GET", "HEAD"]),
            Route("/jobs/{id}/release", self.release, methods=["POST"]),
            Route("/jobs/{id}/cancel", self.cancel, methods=["POST"]),
        ]

    async def ping(self, request: Request) -> Response:
        return PlainTextResponse("pong")

    # --- the calls

    async def create(self, request: Request) -> Response:
        """Store a job. A repeated Idempotency-Key returns the same job."""
        allowed(caller(request, "enqueue"), (QUEUE,))
        create = await body(request, Create, self._most)
        await self._verify(create)
        payload = msgspec.json.encode([create.binary_addr, create.input_addr]).decode()
        key = request.headers.get("idempotency-key")
        job = NewJob(
            id=self._core.new_id(),
            task=TASK,
            payload=payload,
            queue=QUEUE,
            keep=KEEP,
            keep_failed=KEEP,
            lease=self._rules.abandoned_age,
            key_window=KEY_WINDOW,
            priority=create.priority,
            delay=create.delay,
            # The id is not derived from the key: UUIDs of version 7 keep the order of jobs of one millisecond.
            key=None if key is None else f"{TASK} {caller(request).name} {key}",
            reach=() if key is None else (QUEUE,),
        )
        [(row, created)] = await self._core.client.send_rows([JobSpec(users_row(job))])
        if not created and row.job.payload != payload:
            raise Refused(422, "idempotency_key_reused", "this Idempotency-Key belongs to another job")
        return json(self._view(row))

    async def _verify(self, create: Create) -> None:
        """Raise Refused (422) if the rules require the blobs to be here and one is missing."""
        if not self._rules.verify_addresses or self._blobs is None:
            return
        for name in ("binary_addr", "input_addr"):
            address = getattr(create, name)
            try:
                is_here = address is None or await self._blobs.size(address_of(address)) is not None
            except BadAddress as error:
                raise Refused(422, "wrong_shape", f"{name}: {error}") from None
            if not is_here:
                raise Refused(422, "no_blob", f"{name}: there is no blob {address}")

    async def claim(self, request: Request) -> Response:
        """Claim the oldest pending job, or return 204. `?wait=20` waits for one.

        A repeated Idempotency-Key returns the same job. An earlier request with this key that still waits then returns
        204, because its client no longer waits for it.
        """
        allowed(caller(request, "work"), (QUEUE,))
        runner = (await body(request, ClaimAsked, self._most)).runner_id
        key = request.headers.get("idempotency-key")
        claim_id = f"{runner}#{uuid.uuid4().hex}" if key is None else f"{runner.lower()}#{key}"
        wait = min(_number(request.query_params.get("wait", "0")), self._settings.max_wait, WAIT)

        with self._repeats.of(claim_id) as same:
            number = same.enter()

            async def look() -> tuple[Record | None, bool, float | None]:
                async with same.turn:
                    if not same.is_newest(number):
                        return None, True, None  # ends the wait, and wakes the next runner
                    row, next_in = await self._claim(claim_id)
                    if row is not None and runner_of(row) != runner:
                        row = await self._spelled(row, runner)
                return row, row is not None, next_in

            async def back(row: Record | None) -> None:
                await same.unless_repeated(number, partial(self._hand_back, row))

            row = await self._waiting.until_found([QUEUE], wait, request, look, back)
        return self._claimed(row)

    async def _spelled(self, row: Record, runner: str) -> Record:
        """Store the runner as this request spells it: a repeated claim has the same id in each spelling."""
        note = msgspec.json.encode(Ending(runner)).decode()
        renewal = LeaseRenewal(row.id, row.version, note=note)
        await self._core.storage.heartbeat(Presence(worker=runner), [renewal], self._rules.abandoned_age)
        return replace(row, note=note)

    async def _hand_back(self, row: Record | None) -> None:
        """Release the job of a client that has disconnected; it keeps its position, and the claim does not count."""
        if row is not None:
            await self._core.storage.settle([judge.released(row)])

    def _claimed(self, row: Record | None) -> Response:
        """The response to a claim, with the age of abandonment in a header."""
        headers = {AGE: f"{self._rules.abandoned_age:g}"}
        if row is None:
            return Response(status_code=204, headers=headers)
        return json(self._view(row), headers=headers)

    async def _claim(self, claim_id: str) -> tuple[Record | None, float | None]:
        """Claim the next job. Fail jobs that have used up their attempts."""
        ask = Claim(worker=claim_id, queues=((QUEUE, 1),), tasks={TASK: (None, self._rules.abandoned_age)}, limit=1)
        while True:
            claimed = await self._core.storage.claim(ask)
            if not claimed.records:
                return None, claimed.next_in
            [row] = claimed.records
            if not is_ours(row):
                await self._fail(row, ABORTED, FOREIGN)
            elif not (row.lost and self._rules.spent(row)):
                return row, None
            else:
                await self._give_up(row)

    async def get(self, request: Request) -> Response:
        caller(request, "read")
        return json(self._view(await self._row(request)))

    async def list(self, request: Request) -> Response:
        allowed(caller(request, "read"), (QUEUE,))
        try:
            listing = msgspec.convert(query := dict(request.query_params), Listing, strict=False)
        except msgspec.ValidationError as error:
            raise Refused(422, "wrong_query", spelled(error, query)) from None
        states: dict[str | None, Sequence[State]] = {
            None: (),
            "pending": (State.READY, State.WAITING),
            "active": (State.RUNNING,),
            "completed": (State.SUCCEEDED,),
            "failed": (State.FAILED, State.CANCELLED),
        }
        await self._core.storage.prune(0)
        page = await self._core.storage.find(
            Query(
                queue=QUEUE,
                task=TASK,
                state=tuple(states[listing.status]),
                limit=listing.limit,
                cursor=listing.after,
                order="oldest",
            )
        )
        return json({"jobs": [self._view(row) for row in page.records if is_ours(row)], "after": page.cursor})

    async def tickle(self, request: Request) -> Response:
        """Renew the lease of a runner's job."""
        caller(request, "work")
        runner = (await body(request, Tickle, self._most, empty=b"{}")).runner_id
        for _ in range(TRIES):
            row = self._owned(await self._row(request), runner)
            worker = Presence(worker=runner_of(row) or "")
            held = await self._core.storage.heartbeat(
                worker, [LeaseRenewal(row.id, row.version)], self._rules.abandoned_age
            )
            if not held.lost:
                return json(self._view(await self._row(request)))
        raise Refused(409, "moved_on", "the state of the job keeps changing during this call; try again")

    async def complete(self, request: Request) -> Response:
        """Settle a job. A repetition by the same runner returns 200."""
        caller(request, "work")
        complete = await body(request, Complete, self._most)
        status = complete.status.lower()
        if status not in ("completed", "failed"):
            raise Refused(422, "wrong_shape", f"status: expected completed or failed, found {complete.status!r}")
        done = State.SUCCEEDED if status == "completed" else State.FAILED
        result = msgspec.json.encode(complete.output_addr).decode()
        for _ in range(TRIES):
            row = await self._row(request)
            same = row.state is done and row.result == result and complete.runner_id is not None
            if same and is_runner(row, complete.runner_id or ""):
                return json(self._view(row))
            row = self._owned(row, complete.runner_id)
            note = msgspec.json.encode(Ending(runner_of(row), self._rules.heard(row))).decode()
            outcome = Outcome(
                id=row.id,
                version=row.version,
                state=done,
                attempt=row.attempt + 1,
                result=result,
                note=note,
                reason=None if done is State.SUCCEEDED else ERROR,
                error=None if done is State.SUCCEEDED else "the runner reported that it failed",
            )
            [settled] = await self._core.storage.settle([outcome])
            if settled.status == "applied":
                self._metrics.settled(row, outcome)
                return json(self._view(await self._row(request)))
        raise Refused(409, "moved_on", "the state of the job keeps changing during this call; try again")

    async def output(self, request: Request) -> Response:
        """Stream the output of a job from this server's blobs; 404 while there is none."""
        caller(request, "read")
        row = await self._row(request)
        address = self._view(row).output_addr
        if address is None:
            raise Refused(404, "no_output", f"the job is {self._view(row).status} and has no output")
        if self._blobs is None:
            raise Refused(404, "no_blobs", f"this server stores no blobs; the output is blob {address}")
        return await blob_response(self._blobs, address, request.method)

    async def release(self, request: Request) -> Response:
        """Release the job of a runner that stops: it is queued again, and the claim does not count."""
        caller(request, "work")
        runner = (await body(request, Tickle, self._most, empty=b"{}")).runner_id
        for _ in range(TRIES):
            row = self._owned(await self._row(request), runner)
            outcome = Outcome(id=row.id, version=row.version, state=State.READY, attempt=row.attempt, error=row.error)
            [settled] = await self._core.storage.settle([outcome])
            if settled.status == "applied":
                return json(self._view(await self._row(request)))
        raise Refused(409, "moved_on", "the state of the job keeps changing during this call; try again")

    async def cancel(self, request: Request) -> Response:
        caller(request, "operate")
        row = await self._row(request)
        if not row.state.final:
            await self._core.jobs.within((QUEUE,)).cancel(row.id)
        return json(self._view(await self._row(request)))

    # --- rows

    async def _row(self, request: Request) -> Record:
        """The job of the path, after due rows are advanced. Raises Refused: 400 not an id, 404 unknown."""
        id = request.path_params["id"]
        if not UUID.fullmatch(id):
            raise Refused(400, "malformed_id", f"expected a UUID, found {id!r}")
        await self._core.storage.prune(0)  # queue abandoned jobs now, not at the next claim
        [row] = await self._core.storage.get([id.lower()])
        if (
            row is None
            or row.job.task != TASK
            or row.job.queue != QUEUE
            or not is_ours(row)
            or not caller(request).sees(QUEUE)
        ):
            raise Refused(404, "not_found", f"there is no job {id}")
        if row.state is State.READY and row.lost and self._rules.spent(row):
            await self._give_up(row)
            [row] = await self._core.storage.get([row.id])
            assert row is not None
        return row

    def _owned(self, row: Record, runner: str | None) -> Record:
        """Raise Refused unless a runner has the job, and it is this one if the request names it -> the row."""
        if row.state is not State.RUNNING:
            status = self._view(row).status
            raise Refused(400, "not_active", f"the job is {status}, not active")
        if runner is not None and not is_runner(row, runner):
            raise Refused(409, "not_owner", f"the job is running on {runner_of(row)}")
        return row

    async def _fail(self, row: Record, reason: str, error: str) -> None:
        outcome = Outcome(
            id=row.id, version=row.version, state=State.FAILED, attempt=row.attempt, reason=reason, error=error
        )
        await self._core.storage.settle([outcome])

    async def _give_up(self, row: Record) -> None:
        """Fail a job that was abandoned too often."""
        await self._fail(row, LOST, f"abandoned by {row.lost} runners")

    def _view(self, row: Record) -> JobJson:
        return view(row, self._rules)


async def _only_post(request: Request) -> Response:
    raise Refused(405, "wrong_method", f"{request.url.path} does not support {request.method}", {"Allow": "POST"})


def _number(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise Refused(422, "wrong_query", f"wait: expected seconds, found {text!r}")
    return seconds
