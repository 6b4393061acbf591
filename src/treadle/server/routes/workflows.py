"""The operations on workflows: list them, and draw one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from treadle.admin import FOLD, MOST, Graph, WorkflowPage
from treadle.core.model import State
from treadle.server.operation import Call, Operation
from treadle.server.routes.shown import names_of, queue_of
from treadle.tasks.json_options import Name

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class WorkflowsAsked(Struct, frozen=True, kw_only=True):
    """Which workflows to list. `state`: of the first job, one or several, separated by commas.

    `scan`: the jobs to look at; 10,000 by default. The page may be short, or empty, and still have a cursor.
    """

    state: str | None = None
    queue: Name | None = None
    scan: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MOST)] = 20


class GraphAsked(Struct, frozen=True):
    """How to draw. `fold`: more siblings of one task and state than this become one node. `open`: folded nodes to show
    job by job, separated by commas."""

    fold: Annotated[int, Meta(ge=1, le=1_000)] = FOLD
    open: str | None = None


class WorkflowRoutes:
    """The operations on the workflows of one app."""

    def __init__(self, core: AppCore) -> None:
        self._core = core

    @Operation("GET /v1/workflows", tag="workflows", scope="read")
    async def list(self, call: Call[None, WorkflowsAsked]) -> WorkflowPage:
        """List workflows, the newest first."""
        query = call.query
        return await self._core.workflows.within(call.token.queues).list(
            cursor=query.cursor,
            limit=query.limit,
            state=names_of(query.state) or None,
            queue=queue_of(call, query.queue),
            scan=query.scan,
        )

    @Operation("GET /v1/workflows/{id}/graph", tag="workflows", scope="read", others=(404,))
    async def graph(self, call: Call[None, GraphAsked]) -> Graph:
        """Draw the workflow of a job, with positions of all nodes."""
        graph = await self._core.workflows.within(call.token.queues).graph(
            call.part("id"), fold=call.query.fold, open=names_of(call.query.open), hide=call.redaction.row
        )
        rest = call.redaction.rest
        nodes = [
            replace(
                node,
                note=rest.error(node.note) if node.state is State.FAILED else rest.text(node.note),
            )
            for node in graph.nodes
        ]
        return replace(graph, nodes=nodes)
