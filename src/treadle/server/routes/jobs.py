"""The operations on jobs: send, list, show, wait, cancel, retry, delete."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace
from starlette.requests import Request

from treadle.admin import JobHistory, audit, stored_values, typed_call
from treadle.core import defaults, ids
from treadle.core.clock import wall
from treadle.core.errors import IdTaken, StorageError, UnknownJob
from treadle.core.model import Record
from treadle.core.payload_redaction import Redaction
from treadle.server.auth import rights
from treadle.server.errors import Refused, json
from treadle.server.incoming_rows import users_row
from treadle.server.longpoll import BEAT, EventStream, LongPoll
from treadle.server.middleware import allowed, unchanged
from treadle.server.operation import Call, Operation
from treadle.server.path_parts import path_part
from treadle.server.routes.job_messages import Acted, Cancel, Explained, Fork, Listing, Patience, Rerun
from treadle.server.routes.shown import hidden_by, jobs_of, one_queue, value_shown
from treadle.server.row_checks import check_together
from treadle.server.settings import Settings
from treadle.server.time_slices import in_turns
from treadle.server.views import (
    CallAsked,
    JobAsked,
    JobsAsked,
    JobView,
    JobViews,
    PageView,
    check_call,
    spec_of,
    view,
    view_of_one,
)
from treadle.storage import messages, whole_row

if TYPE_CHECKING:
    from treadle.app.core import AppCore
    from treadle.core.job import JobSpec

ONE: Final = defaults.MAX_PAYLOAD + 2**20  # bytes of a request with the arguments of one job

operate = partial(Operation, tag="jobs", scope="operate", others=(404, 409))  # on one job


class JobRoutes:
    """The operations on the jobs of one app."""

    def __init__(self, core: AppCore, settings: Settings, waiting: LongPoll) -> None:
        self._core, self._settings, self._waiting = core, settings, waiting

    # --- sending

    @Operation(
        "POST /v1/jobs",
        tag="jobs",
        scope="enqueue",
        most=ONE,
        raw=CallAsked,
        gives=JobView,
        status=201,
        others=(200, 409),
        audit="job.enqueue",
    )
    async def send(self, call: Call[JobAsked, messages.Nothing]) -> object:
        """Enqueue one job.

        The status is 200 instead of 201 if a row with its id or key already existed.
        """
        with call.heard() as warnings:
            [(row, is_new)] = await self._send(call, [call.body])
        shown = view(row, call.redaction)
        if warnings.words:
            shown = replace(shown, warning=warnings.text)
        return json(shown, 201 if is_new else 200, {"Location": f"/v1/jobs/{path_part(row.id)}"})

    @Operation(
        "POST /v1/jobs/batch", tag="jobs", scope="enqueue", most=None, status=201, others=(409,), audit="job.enqueue"
    )
    async def send_many(self, call: Call[JobsAsked, messages.Nothing]) -> JobViews:
        """Enqueue many jobs, all or none."""
        with call.heard() as warnings:
            rows = await self._send(call, call.body.jobs) if call.body.jobs else []
        return JobViews(await in_turns(lambda pair: view(pair[0], call.redaction), rows), warnings.text)

    async def _send(self, call: Call[Any, Any], jobs: Sequence[JobAsked]) -> list[tuple[Record, bool]]:
        check_together([0 if job.after is msgspec.UNSET else len(job.after) for job in jobs])
        names = self._ids(call, len(jobs))
        for job in jobs:
            await check_call(self._core, job)
        specs = await in_turns(self._spec, zip(jobs, names, strict=True))
        allowed(call.token, [spec.new.queue for spec in specs])
        if call.token.queues:
            specs = await in_turns(lambda spec: spec.changed(reach=call.token.queues), specs)
        chosen = [spec.new for spec, name in zip(specs, names, strict=True) if spec.id != name]
        await rights.refuse_known(call.token, chosen, self._core.storage.get)
        await self._core.jobs.names.warn_of_new([spec.new for spec in specs])
        try:
            stored = zip(await self._core.client.send_rows(specs), specs, strict=True)
            return await in_turns(lambda pair: (rights.shown(call.token, pair[0][0], pair[1].new), pair[0][1]), stored)
        except IdTaken as error:
            if error.id not in names:
                raise rights.without_row(call.token, error) from None
            message = "this Idempotency-Key belongs to another request"
            raise Refused(422, "idempotency_key_reused", message, id=error.id) from None

    def _spec(self, pair: tuple[JobAsked, str | None]) -> JobSpec[Any]:
        job, name = pair
        spec = spec_of(self._core, job, name)
        users_row(spec.new, derived=name is not None and spec.id == name)
        return spec

    def _ids(self, call: Call[Any, Any], count: int) -> list[str | None]:
        """Ids derived from the Idempotency-Key, so that a repeated request stores no job twice; None without a key."""
        if (key := call.idempotency_key) is None:
            return [None] * count
        stem = ids.derived("idempotency", call.token.name, key, count)
        return [f"{stem}-{number:06d}" for number in range(count)]

    # --- reading

    @Operation("GET /v1/jobs", tag="jobs", scope="read")
    async def list(self, call: Call[None, Listing]) -> PageView:
        """List jobs, page by page."""
        listing = replace(call.query, queue=one_queue(call, call.query.queue, "name one with queue="))
        scan = listing.scan
        if scan is None and not listing.count:
            scan = self._core.storage.capabilities.scan
        with call.heard() as warnings:
            page = await self._core.jobs.showing(
                hidden_by(call.redaction), not call.redaction.shapes, call.redaction.row
            ).list(
                cursor=listing.cursor,
                limit=listing.limit,
                count=listing.count,
                order=listing.order,
                scan=scan,
                worker=listing.worker,
                **listing.filters(),
            )
        rows = [row for row in page.records if rights.sees(call.token, row)]
        views = await in_turns(lambda row: view(row, call.redaction), rows)
        return PageView(views, page.cursor, page.total, page.scanned, page.scanned_to, warnings.text)

    @Operation("GET /v1/jobs/{id}", tag="jobs", scope="read", others=(404,))
    async def get(self, call: Call[None, messages.Nothing]) -> JobView:
        """Show a job."""
        return view_of_one(await self._whole(await self._row(call)), call.redaction)

    async def _whole(self, row: Record, before: tuple[Record, Record] | None = None) -> Record:
        """The row with its large texts; while the blob store is away, with the sizes of these texts. `before`: the row
        at an earlier time, without and with these texts. Arguments do not change, so they are read only once."""
        if before is not None and before[0].job == row.job:
            row = replace(row, job=before[1].job)
        try:
            return await whole_row(self._core.storage, row, "payload", "result")
        except StorageError:
            return row

    @Operation("GET /v1/jobs/{id}/explain", tag="jobs", scope="read", others=(404,))
    async def explain(self, call: Call[None, messages.Nothing]) -> Explained:
        """Explain in one sentence why a job is not running."""
        row = await self._row(call)
        jobs = jobs_of(self._core, call)
        text = call.redaction.about(row, call.redaction.within(await jobs.explain(row.id), row.error)) or ""
        return Explained(text, await jobs.position(row.id))

    async def _row(self, call: Call[Any, Any]) -> Record:
        """The row that the path names. For a token without a right to it the job is unknown."""
        row = await jobs_of(self._core, call).get(call.part("id"))
        if not rights.sees(call.token, row):
            raise UnknownJob(row.id)
        return row

    # --- waiting

    @Operation("GET /v1/jobs/{id}/wait", tag="jobs", scope="read", others=(404,))
    async def wait(self, call: Call[None, Patience]) -> JobView:
        """Wait until a job ends, and return it in its present state."""
        row = await self._row(call)
        until = asyncio.get_running_loop().time() + min(call.query.timeout, self._settings.max_wait)
        async for current in self._follow(row, until, call.request):
            row = current
        await unchanged(call.request)
        return view_of_one(await self._whole(row), call.redaction)

    @Operation(
        "GET /v1/jobs/{id}/events", tag="jobs", scope="read", gives=JobView, others=(404,), media="text/event-stream"
    )
    async def events(self, call: Call[None, messages.Nothing]) -> EventStream:
        """Follow a job until it ends, as server-sent events.

        One event is sent at once, one at each change, and one at the end of the job, which closes the stream.
        """
        row = await self._row(call)

        async def stream() -> AsyncGenerator[bytes, None]:
            last: tuple[Any, ...] | None = None
            before: tuple[Record, Record] | None = None
            async for current in self._follow(row, None):
                if call.token.ended(wall()):
                    return
                mark = (current.version, current.state, current.note)
                if mark == last:
                    yield b": still here\n\n"
                    continue
                last = mark
                whole = await self._whole(current, before)
                before = current, whole
                shown = msgspec.json.encode(view_of_one(whole, call.redaction))
                yield b"event: %s\ndata: %s\n\n" % (b"ended" if current.state.final else b"changed", shown)

        return EventStream(stream())

    async def _follow(self, row: Record, until: float | None, waits: Request | None = None) -> AsyncIterator[Record]:
        """Yield the row now, at each notification, at least every 15 s, and last when the job has ended, or when the
        client of this request has disconnected."""
        loop, id, stopping = asyncio.get_running_loop(), row.id, self._waiting.stopping
        while True:
            pause = BEAT if until is None else max(0.0, min(BEAT, until - loop.time()))
            hints = self._core.storage.watch((f"job:{id}",), pause)
            heard = asyncio.ensure_future(self._waiting.unless_stopped(hints, None if waits is None else waits.receive))
            try:
                await asyncio.sleep(0)  # listen before reading, so that no change in between is missed
                [current] = await self._core.storage.get([id])
                if current is not None and current.job.queue != row.job.queue:
                    current = None  # the row was pruned, and another queue has reused the id
                row = current or row
                yield row
                is_late = until is not None and loop.time() >= until
                if row.state.final or current is None or is_late or stopping.is_set():
                    return
                if waits is not None and await waits.is_disconnected():
                    return
                await heard  # raises if the storage is unreachable
            finally:
                heard.cancel()
                await asyncio.wait([heard])
                hints.close()  # it never began if this was cancelled at once

    # --- changing

    @operate("POST /v1/jobs/{id}/cancel", empty=b"{}", others=(404,), audit="job.cancel", details=("tree", "force"))
    async def cancel(self, call: Call[Cancel, messages.Nothing]) -> Acted:
        """Cancel a job and its children."""
        jobs, body = jobs_of(self._core, call), call.body
        return Acted(await jobs.cancel(call.part("id"), tree=body.tree, force=body.force))

    @operate("POST /v1/jobs/{id}/retry", audit="job.retry")
    async def retry(self, call: Call[None, messages.Nothing]) -> Acted:
        """Reopen a failed or cancelled job."""
        return Acted(await jobs_of(self._core, call).retry(call.part("id")))

    @operate("POST /v1/jobs/{id}/run_now", audit="job.run_now")
    async def run_now(self, call: Call[None, messages.Nothing]) -> Acted:
        """Queue a scheduled job now."""
        return Acted(await jobs_of(self._core, call).run_now(call.part("id")))

    @operate("DELETE /v1/jobs/{id}", audit="job.delete")
    async def delete(self, call: Call[None, messages.Nothing]) -> Acted:
        """Delete an ended job."""
        return Acted(await jobs_of(self._core, call).delete(call.part("id")))

    @Operation("GET /v1/jobs/{id}/history", tag="jobs", scope="read", others=(404,))
    async def history(self, call: Call[None, messages.Nothing]) -> JobHistory:
        """Show the last runs of a job, its steps and signals, and the states of its children."""
        id = call.part("id")
        if audit.is_id(id) and not call.token.may("operate"):
            raise UnknownJob(id)
        history = await jobs_of(self._core, call).history(id, hide=call.redaction.row, value=stored_values.as_json)
        return _shown(history, call.redaction.rest)

    @operate("POST /v1/jobs/{id}/pause", audit="job.pause")
    async def pause(self, call: Call[None, messages.Nothing]) -> Acted:
        """Pause an unfinished job until it is resumed. A running one is stopped."""
        return Acted(await jobs_of(self._core, call).pause(call.part("id")))

    @operate("POST /v1/jobs/{id}/resume", audit="job.resume")
    async def resume(self, call: Call[None, messages.Nothing]) -> Acted:
        """Resume a paused job."""
        return Acted(await jobs_of(self._core, call).resume(call.part("id")))

    @operate("POST /v1/jobs/{id}/rerun", empty=b"{}", audit="job.rerun", details=("from_step",))
    async def rerun(self, call: Call[Rerun, messages.Nothing]) -> Acted:
        """Run a job again from one of its stored steps. Later steps are deleted."""
        await jobs_of(self._core, call).rerun(call.part("id"), from_step=call.body.from_step)
        return Acted(1)

    @operate("POST /v1/jobs/{id}/fork", most=None, empty=b"{}", status=201, audit="job.fork", details=("from_step",))
    async def fork(self, call: Call[Fork, messages.Nothing]) -> JobView:
        """Enqueue a new job that continues from a stored step of this one.

        The token also needs the scope `enqueue`. Without a right to read jobs, the answer has no arguments.
        """
        rights.need(call.token, "enqueue")
        row, body = await jobs_of(self._core, call).get(call.part("id")), call.body
        positional, named = body.args, body.kwargs
        if positional is not None or named is not None:
            typed = typed_call(self._core.tasks, row.job.task, positional or [], named or {})
            positional, named = list(typed[0]), dict(typed[1])
        job = await jobs_of(self._core, call).fork(row.id, from_step=body.from_step, args=positional, kwargs=named)
        new = rights.shown(call.token, await jobs_of(self._core, call).whole(job), None)
        return view_of_one(new, call.redaction)


def _shown(history: JobHistory, redaction: Redaction) -> JobHistory:
    """The history without secrets."""
    attempts = [replace(attempt, error=redaction.error(attempt.error)) for attempt in history.attempts]
    return replace(
        history,
        attempts=tuple(attempts),
        steps=tuple(replace(step, value=value_shown(step.name, step.value, redaction)) for step in history.steps),
        values={name: value_shown(name, value, redaction) for name, value in history.values.items()},
        signals=tuple(replace(one, value=value_shown(one.name, one.value, redaction)) for one in history.signals),
    )
