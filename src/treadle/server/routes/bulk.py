"""The groups of failed jobs, and the operations that act on many jobs in the background: begin, show, stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.json import encode
from msgspec.structs import replace

from treadle.admin import (
    AT_ONCE,
    ENDED,
    UNFINISHED,
    KeyReused,
    RequestKey,
    Search,
    Selection,
    TooManyOperations,
    Verb,
    failure_groups,
    near_id,
    query_of,
    signature,
    text_of,
)
from treadle.admin import Operation as Progress
from treadle.admin.failure_groups import FailureGroup, FailureGroups, read_key
from treadle.core.model import Record, State
from treadle.core.payload_redaction import Redaction
from treadle.core.query_model import Query
from treadle.core.redaction import without_secrets
from treadle.server.errors import Refused, json
from treadle.server.operation import Call, Operation
from treadle.server.routes.job_messages import JobFilter
from treadle.server.routes.shown import hidden_by, only_one, queue_of
from treadle.server.views import JobView, view
from treadle.storage import messages
from treadle.tasks.json_options import Id, Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore

MOST_IDS: Final = 1_000
NAMED: Final = 3  # unknown ids for which a similar one is looked for
STATES: Final[dict[Verb, tuple[State, ...]]] = {
    "retry": (State.FAILED,),
    "cancel": UNFINISHED,
    "run_now": (State.READY,),
    "delete": ENDED,
}


class FilterAsked(JobFilter, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The filter of an operation; the same names as in GET /v1/jobs."""


class GroupAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """A group of GET /v1/failures."""

    key: Annotated[str, Meta(min_length=1, max_length=2_000)]


class OperationAsked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An act, and the jobs to act on: exactly one of `ids`, `filter` and `group`.

    A filter without a state means failed jobs for "retry", unfinished ones for "cancel", ready ones for "run_now" and
    ended ones for "delete".

    tree            "cancel" includes the children
    at_most         jobs to act on, their children not counted: the number that a person has confirmed
    created_before  jobs created at this instant or later are left alone: the time at which the person saw the list
    dry             only show what it would do
    """

    act: Verb
    ids: Annotated[list[Id], Meta(min_length=1, max_length=MOST_IDS)] | UnsetType = UNSET
    filter: FilterAsked | UnsetType = UNSET
    group: GroupAsked | UnsetType = UNSET
    tree: bool = True
    at_most: Annotated[int, Meta(ge=1)] | None = None
    created_before: Annotated[float, Meta(ge=0)]
    dry: bool = False


class FailuresAsked(Struct, frozen=True, kw_only=True):
    """Which failed jobs to group. `scan`: how many to look at, the newest first."""

    scan: Annotated[int, Meta(ge=1, le=failure_groups.MOST)] = failure_groups.SCAN
    queue: Name | None = None
    task: Name | None = None
    cursor: str | None = None


class PreviewView(Struct, frozen=True, kw_only=True):
    """The jobs that an operation would act on now.

    matches  how many jobs; capped: there are at least this many
    samples  the first five; none for a token without the scope `read`
    words    the jobs in words
    """

    matches: int
    capped: bool
    samples: Sequence[JobView]
    words: str
    warning: str | UnsetType = UNSET


class ProgressList(Struct, frozen=True):
    """The operations that run, and those that ended within the last hour, the newest first."""

    operations: Sequence[Progress]


operate = partial(Operation, tag="operations", scope="operate")


class BulkRoutes:
    """The operations of one app. They run in this process, and a token sees those within its queues."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @Operation("GET /v1/failures", tag="jobs", scope="read")
    async def groups(self, call: Call[None, FailuresAsked]) -> FailureGroups:
        """Group the newest failed jobs by task, queue and error."""
        query = call.query
        page = await self._core.dead.within(call.token.queues, call.redaction.grouped).groups(
            scan=query.scan, queue=queue_of(call, query.queue), task=query.task, cursor=query.cursor
        )
        samples = await self._core.client.get([group.sample for group in page.groups])
        pairs = zip(page.groups, samples, strict=True)
        return replace(page, groups=[_shown(group, row, call.redaction) for group, row in pairs])

    @operate("POST /v1/operations", gives=Progress, instead=PreviewView, status=202, others=(200, 404))
    async def start(self, call: Call[OperationAsked, messages.Nothing]) -> object:
        """Retry, cancel, queue or delete many jobs in the background; or show which (`dry`).

        A request that is repeated with its Idempotency-Key within an hour begins no second operation in this process,
        unless 200 other operations have ended since.
        """
        operations, chosen = self._core.operations, self._selection(call)
        if call.body.dry:
            return json(await self._preview(call, await self._signed(call, chosen)))
        key = call.idempotency_key
        request = None if key is None else RequestKey(key, sha256(encode(call.body)).digest())
        try:
            if (known := operations.begun(call.by, request)) is not None:  # its group may be empty by now
                return known
            chosen = await self._signed(call, chosen)
            return await operations.start(
                call.body.act,
                chosen,
                tree=call.body.tree,
                by=call.by,
                source=call.source,
                at_most=call.body.at_most,
                request=request,
            )
        except KeyReused:
            message = "this Idempotency-Key belongs to another request"
            raise Refused(422, "idempotency_key_reused", message) from None
        except TooManyOperations:
            message = f"{AT_ONCE} or more operations run already, also one of yours: wait for one to end, or stop one"
            raise Refused(429, "too_many", message, {"Retry-After": "5"}) from None

    @operate("GET /v1/operations")
    async def list(self, call: Call[None, messages.Nothing]) -> ProgressList:
        """List the operations of this server process."""
        return ProgressList(self._core.operations.all(call.token.queues))

    @operate("GET /v1/operations/{id}", others=(404,))
    async def get(self, call: Call[None, messages.Nothing]) -> Progress:
        """Show the progress of an operation."""
        return self._known(call, self._core.operations.get(call.part("id"), call.token.queues))

    @operate("DELETE /v1/operations/{id}", others=(404,))
    async def stop(self, call: Call[None, messages.Nothing]) -> Progress:
        """Stop an operation; what it has done stays done."""
        return self._known(call, self._core.operations.stop(call.part("id"), call.token.queues))

    def _known(self, call: Call[Any, Any], progress: Progress | None) -> Progress:
        if progress is None:
            message = f"this server process has no operation {call.part('id')!r}; ended ones are listed for an hour"
            raise Refused(404, "unknown_operation", message)
        return progress

    # --- what to act on

    def _selection(self, call: Call[OperationAsked, messages.Nothing]) -> Selection:
        """The jobs that a request is about. Raises Refused and BadOption."""
        body, token = call.body, call.token
        only_one(ids=body.ids or None, filter=body.filter or None, group=body.group or None)
        # Without the scope `read`, the number of matches must not confirm a guess of an argument or an error.
        seen = call.redaction if token.may("read") else call.redaction.as_shapes()
        selection = Selection(query=Query(), before=body.created_before, queues=token.queues, shown=seen.grouped)
        if body.ids is not UNSET:
            return replace(selection, ids=tuple(dict.fromkeys(body.ids)))
        if body.group is not UNSET:
            key = read_key(body.group.key)
            if body.act not in ("retry", "delete"):
                raise Refused(422, "wrong_shape", f"failed jobs can be retried and deleted, found act {body.act!r}")
            if not token.sees(key.queue):
                raise Refused(404, "unknown_group", "there is no such group of failures")
            return replace(selection, group=key)
        filters = body.filter.filters() if body.filter is not UNSET else {}
        if not filters:
            raise Refused(422, "wrong_shape", "expected at least one field in the filter, such as state or queue")
        if (queue := filters.get("queue")) is not None:
            call.allowed([queue])
        query, text = query_of(filters), text_of(filters)
        if not query.state and query.ready is None:
            query = replace(query, state=STATES[body.act])
        search = None if text is None else Search(text, hidden_by(seen), not seen.shapes, seen.row)
        return replace(selection, query=query, search=search)

    async def _signed(self, call: Call[OperationAsked, messages.Nothing], chosen: Selection) -> Selection:
        """The selection with the error of its group, which describes it. Raises Refused (404).

        The words of an operation are also read by tokens without a right to payloads, so they name the class only.
        """
        if chosen.group is None:
            return chosen
        preview = await chosen.preview(self._core.storage)
        if not preview.samples:
            raise Refused(404, "unknown_group", "no job of this group is left, or there never was such a group")
        redaction = call.redaction if call.body.dry else call.redaction.as_shapes()
        return replace(chosen, signature=redaction.error(signature(preview.samples[0].error)))

    async def _preview(self, call: Call[OperationAsked, messages.Nothing], chosen: Selection) -> PreviewView:
        storage = self._core.storage
        preview = await chosen.preview(storage)
        with call.heard() as warnings:
            if not preview.matches and not chosen.ids:
                query = chosen.query
                await self._core.jobs.names.nothing_found(query.queue, query.task, query.label)
        unknown = [await near_id(storage, id, chosen.queues) for id in preview.unknown[:NAMED]]
        notes = [
            *warnings.words,
            *(f"there is no job {id!r}{like}" for id, like in zip(preview.unknown, unknown, strict=False)),
        ]
        if len(preview.unknown) > NAMED:
            notes.append(f"{len(preview.unknown) - NAMED:,} more ids are unknown")
        shown = [view(row, call.redaction) for row in preview.samples] if call.token.may("read") else []
        return PreviewView(
            matches=preview.matches,
            capped=preview.capped,
            samples=shown,
            words=without_secrets(chosen.words),
            warning="; ".join(notes) or UNSET,
        )


def _shown(group: FailureGroup, row: Record | None, redaction: Redaction) -> FailureGroup:
    """The group without secrets; `row`: its newest job. Its key stays, because operations name it."""
    texts = group.signature, group.error
    signature, error = (
        [redaction.error(text) or "" for text in texts] if row is None else redaction.failure(row, *texts)
    )
    return replace(group, signature=signature, error=error)
