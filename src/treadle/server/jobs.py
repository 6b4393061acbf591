"""The room of jobs: send them, look at them, wait for them, act on them.

Without it a service in another language could not send a job, nor learn what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct
from starlette.responses import StreamingResponse

from treadle import ids, wire
from treadle.errors import JobUnknown
from treadle.model import Record
from treadle.server.faults import Refused, json
from treadle.server.guard import allowed
from treadle.server.operations import Call, Operation
from treadle.server.settings import Settings
from treadle.server.views import Id, JobAsked, JobsAsked, JobView, JobViews, Name, PageView, moment_of, spec_of, view
from treadle.server.waiting import Waiting

if TYPE_CHECKING:
    from treadle.app import App

BEAT: Final = 15.0  # s between signs of life on a silent stream: below what proxies cut
LONGEST_KEY: Final = 255  # characters of an Idempotency-Key


class Listing(Struct, frozen=True, kw_only=True):
    """Which jobs. `state` may name several, with commas; `before` is seconds since 1970."""

    state: str | None = None
    task: Name | None = None
    queue: Name | None = None
    workflow: Id | None = None
    parent: Id | None = None
    label: Name | None = None
    before: float | None = None
    order: Literal["newest", "oldest", "ended", "line"] = "newest"
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 50
    count: bool = False

    def filters(self) -> dict[str, Any]:
        """As `app.jobs.list` takes them."""
        found: dict[str, Any] = {
            "task": self.task, "queue": self.queue, "workflow": self.workflow, "parent": self.parent,
            "label": self.label,
        }  # fmt: skip
        if self.state is not None:
            found["state"] = tuple(each.strip() for each in self.state.split(","))
        if self.before is not None:
            found["before"] = moment_of(self.before)
        return {name: value for name, value in found.items() if value is not None}


class Patience(Struct, frozen=True):
    timeout: Annotated[float, Meta(ge=0, description="Seconds.")] = 20.0


class Cancel(Struct, frozen=True, forbid_unknown_fields=True):
    tree: bool = True


class Acted(Struct, frozen=True):
    """How many jobs it acted on."""

    jobs: int


class Explained(Struct, frozen=True):
    """In one sentence: why it is not running, or what became of it."""

    text: str
    position: int | None


class JobRoom:
    """Jobs of one app, for people and services."""

    def __init__(self, app: App, settings: Settings, waiting: Waiting) -> None:
        self._app, self._settings, self._waiting = app, settings, waiting

    def operations(self) -> list[Operation]:
        made = Operation
        return [
            made(method="POST", path="/v1/jobs", run=self.send, summary="Send one job", tag="jobs", scope="enqueue",
                 takes=JobAsked, gives=JobView, status=201, others=(200, 409)),
            made(method="GET", path="/v1/jobs", run=self.list, summary="Find jobs, page by page", tag="jobs",
                 scope="read", query=Listing, gives=PageView),
            made(method="POST", path="/v1/jobs/batch", run=self.send_many, summary="Send many jobs, all or none",
                 tag="jobs", scope="enqueue", takes=JobsAsked, gives=JobViews, status=201, others=(409,)),
            made(method="GET", path="/v1/jobs/{id}", run=self.get, summary="Look at a job", tag="jobs", scope="read",
                 gives=JobView, others=(404,)),
            made(method="DELETE", path="/v1/jobs/{id}", run=self.delete, summary="Let an ended job go", tag="jobs",
                 scope="operate", gives=Acted, others=(404, 409)),
            made(method="GET", path="/v1/jobs/{id}/wait", run=self.wait, tag="jobs", scope="read", query=Patience,
                 summary="Wait for its ending; answers the job as it stands then", gives=JobView, others=(404,)),
            made(method="GET", path="/v1/jobs/{id}/events", run=self.events, tag="jobs", scope="read",
                 summary="Follow it to its ending, as server-sent events", gives=JobView, others=(404,),
                 media="text/event-stream"),
            made(method="GET", path="/v1/jobs/{id}/explain", run=self.explain, tag="jobs", scope="read",
                 summary="Why it is not running, in a sentence", gives=Explained, others=(404,)),
            made(method="POST", path="/v1/jobs/{id}/cancel", run=self.cancel, tag="jobs", scope="operate",
                 summary="Cancel it, with its children", takes=Cancel, empty=b"{}", gives=Acted, others=(404,)),
            made(method="POST", path="/v1/jobs/{id}/retry", run=self.retry, tag="jobs", scope="operate",
                 summary="Reopen a failed or cancelled job", gives=Acted, others=(404, 409)),
            made(method="POST", path="/v1/jobs/{id}/run_now", run=self.run_now, tag="jobs", scope="operate",
                 summary="Bring a scheduled job into line at once", gives=Acted, others=(404, 409)),
        ]  # fmt: skip

    # --- sending

    async def send(self, call: Call[JobAsked, wire.Nothing]) -> object:
        """One job; 200 instead of 201 where another row answered (its id or key was known)."""
        [(row, is_new)] = await self._send(call, [call.body])
        return json(view(row), 201 if is_new else 200, {"Location": f"/v1/jobs/{row.id}"})

    async def send_many(self, call: Call[JobsAsked, wire.Nothing]) -> JobViews:
        rows = await self._send(call, call.body.jobs) if call.body.jobs else []
        return JobViews([view(row) for row, _ in rows])

    async def _send(self, call: Call[Any, Any], asked: Sequence[JobAsked]) -> list[tuple[Record, bool]]:
        names = self._ids(call, len(asked))
        specs = [spec_of(self._app, each, name) for each, name in zip(asked, names, strict=True)]
        allowed(call.token, [spec.new.queue for spec in specs])
        may_be_known = [spec.id for spec, each, name in zip(specs, asked, names, strict=True) if name or each.id]
        found = await self._app.client.get(may_be_known) if may_be_known else ()
        stored = {row.id: row for row in found if row is not None}
        before = [stored.get(spec.id) for spec in specs]
        for name, spec, known in zip(names, specs, before, strict=True):
            if name and known is not None and (known.job.task, known.job.payload) != (spec.new.task, spec.new.payload):
                words = "this Idempotency-Key was used for another request"
                raise Refused(422, "idempotency_key_reused", words, id=known.id)
        rows = await self._app.client.send_rows(specs)
        return [
            (row, row.id == spec.id and known is None) for spec, known, row in zip(specs, before, rows, strict=True)
        ]

    def _ids(self, call: Call[Any, Any], count: int) -> list[str | None]:
        """With an Idempotency-Key the same request has the same ids, so that repeating it stores nothing again."""
        key = call.request.headers.get("idempotency-key")
        if key is None:
            return [None] * count
        if not 0 < len(key) <= LONGEST_KEY:
            raise Refused(422, "wrong_header", f"Idempotency-Key: expected 1 to {LONGEST_KEY} characters")
        return [ids.derived("idempotency", call.token.name, key, count, number) for number in range(count)]

    # --- looking

    async def list(self, call: Call[None, Listing]) -> PageView:
        asked = call.query
        if call.token.queues:
            if asked.queue is None:
                words = (
                    f"the token {call.token.name!r} may look into {', '.join(call.token.queues)}: name one with queue="
                )
                raise Refused(403, "forbidden", words)
            call.allowed([asked.queue])
        page = await self._app.jobs.list(
            cursor=asked.cursor, limit=asked.limit, count=asked.count, order=asked.order, **asked.filters()
        )
        return PageView([view(row) for row in page.records], page.cursor, page.total)

    async def get(self, call: Call[None, wire.Nothing]) -> JobView:
        return view(await self._row(call))

    async def explain(self, call: Call[None, wire.Nothing]) -> Explained:
        row = await self._row(call)
        return Explained(await self._app.jobs.explain(row.id), await self._app.jobs.position(row.id))

    async def _row(self, call: Call[Any, Any]) -> Record:
        """The row the path names. A token without a right to its queue does not learn that it is there."""
        row = await self._app.jobs.get(call.part("id"))
        if call.token.serves([row.job.queue]) is not None:
            raise JobUnknown(row.id)
        return row

    # --- waiting

    async def wait(self, call: Call[None, Patience]) -> JobView:
        row = await self._row(call)
        until = asyncio.get_running_loop().time() + min(call.query.timeout, self._settings.max_wait)
        async for found in self._follow(row, until):
            row = found
        return view(row)

    async def events(self, call: Call[None, wire.Nothing]) -> StreamingResponse:
        """One event at once, one at each change, one at the ending, which closes the stream."""
        row = await self._row(call)

        async def stream() -> AsyncIterator[bytes]:
            last: tuple[Any, ...] | None = None
            async for found in self._follow(row, None):
                mark = (found.version, found.state, found.note)
                if mark == last:
                    yield b": still here\n\n"
                    continue
                last = mark
                name = "ended" if found.state.final else "changed"
                yield b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(view(found)))

        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(stream(), media_type="text/event-stream", headers=headers)

    async def _follow(self, row: Record, until: float | None) -> AsyncIterator[Record]:
        """The row now, at each hint or sign of life, and at its ending, which is the last."""
        loop, id, home = asyncio.get_running_loop(), row.id, self._waiting.home
        while True:
            heard = asyncio.ensure_future(self._app.storage.watch((f"job:{id}",), self._pause(until)))
            stopped = asyncio.ensure_future(home.wait())
            try:
                await asyncio.sleep(0)  # listening first, then looking: a change in between is heard
                [found] = await self._app.storage.get([id])
                row = found or row
                yield row
                if row.state.final or found is None or (until is not None and loop.time() >= until) or home.is_set():
                    return
                await asyncio.wait([heard, stopped], return_when=asyncio.FIRST_COMPLETED)
                if heard.done():
                    await heard  # a storage that is away is said
            finally:
                for each in (heard, stopped):
                    each.cancel()
                await asyncio.wait([heard, stopped])

    def _pause(self, until: float | None) -> float:
        if until is None:
            return BEAT
        return max(0.0, min(BEAT, until - asyncio.get_running_loop().time()))

    # --- acting

    async def cancel(self, call: Call[Cancel, wire.Nothing]) -> Acted:
        row = await self._row(call)
        return Acted(await self._app.jobs.cancel(row.id, tree=call.body.tree))

    async def retry(self, call: Call[None, wire.Nothing]) -> Acted:
        return Acted(await self._app.jobs.retry((await self._row(call)).id))

    async def run_now(self, call: Call[None, wire.Nothing]) -> Acted:
        return Acted(await self._app.jobs.run_now((await self._row(call)).id))

    async def delete(self, call: Call[None, wire.Nothing]) -> Acted:
        return Acted(await self._app.jobs.delete((await self._row(call)).id))
