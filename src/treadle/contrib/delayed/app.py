"""The delayed protocol: `POST /` stores a job with a payload and a due time.

Each job is a job of the task `delayed.job` whose row has a `delay`, so a due job can be claimed without a leader.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from treadle.contrib.delayed.ids import id_of, shown
from treadle.core import defaults
from treadle.core.errors import UNREADABLE, QueueFull, StorageError, TreadleError
from treadle.core.job import JobSpec
from treadle.core.long_numbers import has_long_number, unreadable
from treadle.core.model import NewJob, Record, State
from treadle.core.plain_json import read_json
from treadle.policy.retry import Policy, Retry
from treadle.server import SMALL, FullQueues, LongPoll, Refused, Settings, allowed, body, caller, json, users_row
from treadle.storage import whole, whole_row

if TYPE_CHECKING:
    from treadle.app.core import AppCore

PORT: Final = 8080
METHODS: Final = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]  # Starlette's default is GET alone
LATEST: Final = 100 * 365 * 86_400.0  # s from now; a later time is probably in milliseconds
COUNTED: Final = 100_000  # jobs of each kind that a request for the numbers counts
KEEP: Final = 86_400.0  # s that an ended job is kept, and that an Idempotency-Key returns the same job
_payload = msgspec.json.Decoder(list[msgspec.Raw]).decode
POLICY: Final = Policy(retry=Retry(attempts=25, base=1.0, factor=2.0, max=300.0, jitter=0.2))


LONGEST: Final = defaults.MAX_PAYLOAD + 2**10  # bytes of a request: a payload and a due time
NUMBER: Final = 100  # characters of a due time


class JobToStore(Struct, frozen=True, rename="camel"):
    """A job to store. Both fields stay undecoded until their size is checked."""

    payload: Raw | UnsetType = UNSET
    due_time: Raw | UnsetType = UNSET


class Message(Struct, frozen=True):
    message: str


class Stored(Struct, frozen=True, rename="camel"):
    job_id: str


class DelayedJob(Struct, frozen=True, rename="camel", kw_only=True):
    """The current state of a job. Times are seconds since 1970."""

    job_id: str
    state: str
    payload: Any
    due_time: float
    pickup_time: float | None
    attempts: int
    last_error: str | None


class Numbers(Struct, frozen=True, rename="camel", kw_only=True):
    """Counts of jobs. backlog: not due yet or blocked; due: queued; unacked: running."""

    backlog: int
    due: int
    unacked: int
    failed: int
    oldest_due_age_sec: float | None


def read(text: str) -> str:
    """The id that the 26 characters encode. Raises Refused (404) for any other text."""
    id = id_of(text)
    if id is None:
        raise Refused(404, "not_found", "not found")
    return id


def delayed_routes() -> Callable[[AppCore, Settings, LongPoll], list[BaseRoute]]:
    """The protocol as an argument of `make_site`."""
    return lambda core, settings, waiting: DelayedApi(core, settings).routes()


class DelayedApi:
    """`POST /`, and operations to show, count and cancel jobs."""

    def __init__(self, core: AppCore, settings: Settings) -> None:
        self._core, self._settings, self._full = core, settings, FullQueues(core)

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/", self._plainly(self.post), methods=["POST"]),
            Route("/jobs/{id}", self._plainly(self.get), methods=["GET"]),
            Route("/jobs/{id}", self._plainly(self.delete), methods=["DELETE"]),
            Route("/stats", self._plainly(self.stats), methods=["GET"]),
            Route("/{rest:path}", self._plainly(self.nothing), methods=METHODS),
        ]

    def _plainly(self, call: Callable[[Request], Any]) -> Callable[[Request], Any]:
        """Convert errors to this protocol: the body is {"message"}, and the status of a wrong body is 400."""

        async def endpoint(request: Request) -> Response:
            try:
                answer: Response = await call(request)
                return answer
            except Refused as error:
                status = 400 if error.status == 422 else error.status
                return json(Message(error.problem.message), status, error.headers)
            except QueueFull as error:
                full = await self._full.refused(error)
                return json(Message(full.problem.message), full.status, full.headers)
            except StorageError as error:
                return json(Message(f"the job was not stored: {error}"), 503, {"Retry-After": "1"})
            except TreadleError as error:
                return json(Message(str(error)), 400)

        return endpoint

    async def nothing(self, request: Request) -> Response:
        raise Refused(404, "not_found", "not found")

    async def post(self, request: Request) -> Response:
        """Store a job. The response is 200 once the job is durable."""
        allowed(caller(request, "enqueue"), (defaults.DELAYED_QUEUE,))
        job_to_store = await body(request, JobToStore, min(LONGEST, self._settings.max_body), raw=JobToStore)
        due, payload = self._due(job_to_store.due_time), _payload_of(job_to_store.payload)
        key = request.headers.get("idempotency-key")
        job = NewJob(
            id=self._core.new_id(),
            task=defaults.DELAYED_TASK,
            payload=payload,
            queue=defaults.DELAYED_QUEUE,
            delay=max(0.0, due - self._core.now()),
            run_at=due,
            keep=KEEP,
            retry=POLICY.text(),
            headers=(("dueTime", repr(due)),),
            key=None if key is None else f"{defaults.DELAYED_TASK} {caller(request).name} {key}",
            key_window=KEEP,
            reach=() if key is None else (defaults.DELAYED_QUEUE,),
        )
        [(row, created)] = await self._core.client.send_rows([JobSpec(users_row(job))])
        if not created and (await whole_row(self._core.storage, row)).job.payload != payload:
            raise Refused(422, "reused", "this Idempotency-Key belongs to another job")
        return json(Stored(shown(row.id)))

    def _due(self, raw: Raw | UnsetType) -> float:
        """The due time, which must be later than the current whole second."""
        text, now = memoryview(raw or b"null"), self._core.now()
        if len(text) > NUMBER:
            raise Refused(422, "wrong", f"dueTime: expected seconds since 1970 as a number, found {len(text):,} bytes")
        seconds = _read(text)
        try:
            due = (
                float(seconds) if isinstance(seconds, int | float | str) and not isinstance(seconds, bool) else math.nan
            )
        except (ValueError, OverflowError):
            due = math.nan
        if not math.isfinite(due):
            raise Refused(422, "wrong", f"dueTime: expected seconds since 1970 as a number, found {seconds!r:.100}")
        if due <= math.floor(now):
            raise Refused(422, "past", f"Job due time must be in future: {due:.15g} has passed, it is {now:.0f}")
        if due > now + LATEST:
            raise Refused(
                422, "far", f"dueTime {due:g} is more than a hundred years ahead: give seconds, not milliseconds"
            )
        return due

    async def get(self, request: Request) -> Response:
        caller(request, "read")
        return json(_view(await self._row(request)))

    async def delete(self, request: Request) -> Response:
        """Cancel and delete a job; 409 if it is running."""
        caller(request, "operate")
        row = await self._row(request)
        if row.state is State.RUNNING:
            raise Refused(409, "running", "the job is running")
        if not row.state.final:
            await self._core.jobs.within((defaults.DELAYED_QUEUE,)).cancel(row.id)
        await self._core.jobs.within((defaults.DELAYED_QUEUE,)).delete(row.id)
        return Response(status_code=204)

    async def stats(self, request: Request) -> Response:
        """Count the jobs of the queue, each kind up to COUNTED: monitors poll this."""
        allowed(caller(request, "read"), (defaults.DELAYED_QUEUE,))
        counts, oldest = {"backlog": 0, "due": 0, "unacked": 0, "failed": 0}, None
        for queue in (await self._core.storage.glance(COUNTED)).queues:
            if queue.name == defaults.DELAYED_QUEUE:
                counts["backlog"], counts["due"] = queue.scheduled + queue.blocked, queue.queued
                counts["unacked"], counts["failed"], oldest = queue.running, queue.failed, queue.oldest
        return json(Numbers(**counts, oldest_due_age_sec=oldest))

    async def _row(self, request: Request) -> Record:
        storage = self._core.storage
        [row] = await whole(storage, await storage.get([read(request.path_params["id"])]))
        # A cancelled job is unknown to this protocol. Its row stays for a while, for repeated calls.
        if row is None or not _is_ours(row) or row.state is State.CANCELLED or not caller(request).sees(row.job.queue):
            raise Refused(404, "not_found", "not found")
        return row


def _is_ours(row: Record) -> bool:
    """Whether the row has the form of this protocol: a program may have stored other rows of its task."""
    if (row.job.task, row.job.queue) != (defaults.DELAYED_TASK, defaults.DELAYED_QUEUE):
        return False
    try:
        return len(_payload(row.job.payload)) == 1 and math.isfinite(float(dict(row.job.headers)["dueTime"]))
    except (KeyError, *UNREADABLE):
        return False


def _payload_of(raw: Raw | UnsetType) -> str:
    """The stored form of the payload. A large payload is stored as sent, without decoding it."""
    text = memoryview(raw or b'""')
    if len(text) <= SMALL:
        return msgspec.json.encode([_read(text)]).decode()
    try:
        return f"[{bytes(text).decode()}]"
    except UnicodeDecodeError as error:
        raise Refused(400, "malformed", f"the body is not UTF-8: {error}") from None


def _read(text: memoryview) -> Any:
    try:
        return read_json(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(400, "malformed", f"the body is not JSON: {unreadable(error, text)}") from None


def _view(row: Record) -> DelayedJob:
    names = {State.RUNNING: "active", State.SUCCEEDED: "completed", State.WAITING: "scheduled"}
    state = names.get(row.state, str(row.state))
    if row.state is State.READY:
        state = "ready" if row.queue_position is not None else "scheduled"
    [payload] = _payload(row.job.payload)
    if has_long_number(row.job.payload):  # stored by an earlier version
        payload = Raw(msgspec.json.encode(bytes(payload).decode()))
    return DelayedJob(
        job_id=shown(row.id),
        state=state,
        payload=payload,
        due_time=float(dict(row.job.headers)["dueTime"]),
        pickup_time=row.started_at,
        attempts=row.attempt,
        last_error=row.error,
    )
