"""The operation on groups of failed jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from treadle.admin import failure_groups
from treadle.admin.failure_groups import FailureGroup, FailureGroups
from treadle.core.model import Record
from treadle.core.payload_redaction import Redaction
from treadle.server.operation import Call, Operation
from treadle.server.routes.shown import queue_of
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class FailuresAsked(Struct, frozen=True, kw_only=True):
    """Which failed jobs to group. `scan`: how many to look at, the newest first."""

    scan: Annotated[int, Meta(ge=1, le=failure_groups.MOST)] = failure_groups.SCAN
    queue: Name | None = None
    task: Name | None = None
    cursor: str | None = None


class FailureRoutes:
    """The operation on the failed jobs of one app."""

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
        return replace(page, groups=[shown(group, row, call.redaction) for group, row in pairs])


def shown(group: FailureGroup, row: Record | None, redaction: Redaction) -> FailureGroup:
    """The group without secrets; `row`: its newest job. Its key stays, because operations name it."""
    texts = group.signature, group.error
    signature, error = (
        [redaction.error(text) or "" for text in texts] if row is None else redaction.failure(row, *texts)
    )
    return replace(group, signature=signature, error=error)
