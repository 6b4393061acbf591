"""The tools that read. Each is a call of the HTTP API; its arguments and its answer have the API's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from treadle.admin import Graph, mermaid_of
from treadle.contrib.mcp import schemas
from treadle.contrib.mcp.bounds import decoded
from treadle.contrib.mcp.calls import CallRefused, Calls

PAGE: Final = 100  # rows of a page at most
DEFAULT_PAGE: Final = 20
LIMIT: Final = {
    "type": "integer",
    "minimum": 1,
    "maximum": PAGE,
    "default": DEFAULT_PAGE,
    "description": "rows of the page; `cursor` of the answer reads the next one",
}

DESCRIPTIONS: Final = {
    "id": "id of the job, or for a workflow of its first job",
    "status": "queued, scheduled or blocked, or one of waiting, running, succeeded, failed and cancelled",
    "q": "an id or its first 8 characters, or a text in task, arguments, error, labels or key",
    "name": "name of the queue",
    "workflow": "id of the first job of a workflow",
    "parent": "id of the job that enqueued it",
    "since": "created at this instant or later; seconds since 1970",
    "before": "created earlier than this instant; seconds since 1970",
    "scan": "rows to look at",
    "cursor": "the `cursor` of the page before",
    "from": "begin of the range; seconds since 1970. Default: an hour ago",
    "to": "end of the range; seconds since 1970. Default: now",
    "step": "seconds between two points, 60 at least",
    "fold": "more siblings of one task and state than this become one node",
    "open": "folded nodes to show job by job, separated by commas",
}


class Reading(Struct, frozen=True):
    """One tool.

    path      of the GET operation
    scope     that the operation needs
    left_out  parameters of the operation that the tool does not have
    keep      the only fields of the answer; (): all
    is_paged  whether `limit` has a default here
    shaped    makes the tool's answer of the operation's; then `gives` is its schema
    """

    name: str
    description: str
    path: str
    scope: str = "read"
    left_out: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    is_paged: bool = False
    shaped: Callable[[Any], dict[str, Any]] | None = None
    gives: Mapping[str, Any] | None = None

    def input_schema(self, document: Mapping[str, Any]) -> dict[str, Any]:
        tool_schema = schemas.inputs(document, "GET", self.path, self.left_out)
        for name, schema in tool_schema["properties"].items():
            if name in DESCRIPTIONS:
                schema.setdefault("description", DESCRIPTIONS[name])
        if self.is_paged:
            tool_schema["properties"]["limit"] = LIMIT
        return tool_schema

    def output_schema(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self.gives) if self.gives is not None else schemas.output(document, "GET", self.path, self.keep)

    async def run(self, calls: Calls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The answer. Raises CallRefused."""
        names = [name for name in arguments if f"{{{name}}}" in self.path]
        query = {name: value for name, value in arguments.items() if name not in names and value is not None}
        if "limit" in query and not (isinstance(query["limit"], int) and 1 <= query["limit"] <= PAGE):
            raise CallRefused(f"limit: expected 1 to {PAGE} rows, found {query['limit']!r:.50}")
        if self.is_paged:
            query.setdefault("limit", DEFAULT_PAGE)
        parts = {name: str(arguments[name]) for name in names}
        if self.shaped is not None:
            return self.shaped(await calls("GET", self.path, parts=parts, query=query, scope=self.scope))
        answer = await calls("GET", self.path, parts=parts, query=query, scope=self.scope, read=decoded)
        return {name: answer[name] for name in self.keep} if self.keep else dict(answer)


def _mermaid(answer: Any) -> dict[str, Any]:
    graph = msgspec.convert(answer, Graph)
    return {"mermaid": mermaid_of(graph), "total": graph.total, "shown": graph.shown, "capped": graph.capped}


MERMAID: Final = {
    "type": "object",
    "properties": {
        "mermaid": {"type": "string", "description": "a Mermaid flowchart"},
        "total": {"type": "integer", "description": "jobs of the workflow that were read"},
        "shown": {"type": "integer", "description": "jobs in the drawing, also inside folds"},
        "capped": {"type": "boolean", "description": "some jobs are not shown"},
        "truncated": schemas.TRUNCATED,
    },
    "required": ["mermaid", "total", "shown", "capped"],
}

TOOLS: Final = (
    Reading(
        "list_jobs",
        "List jobs by status, queue, task, label, text or time, one page at a time, the newest first.",
        "/v1/jobs",
        left_out=("count", "state"),
        is_paged=True,
    ),
    Reading("get_job", "Show one job: its state, arguments, result, error, attempts and times.", "/v1/jobs/{id}"),
    Reading(
        "explain_job",
        "Explain why a job is not running, or how it ended, and which command changes that.",
        "/v1/jobs/{id}/explain",
    ),
    Reading(
        "estimate_job", "Estimate when a job starts and ends, and what would let it start earlier.", "/v1/jobs/{id}/eta"
    ),
    Reading(
        "plan_queue",
        "Estimate when a queue is empty, what its jobs wait for most, and what would change that.",
        "/v1/queues/{name}/plan",
    ),
    Reading(
        "job_history",
        "Show the last attempts of a job with errors and log lines, its steps, signals and children.",
        "/v1/jobs/{id}/history",
    ),
    Reading(
        "list_queues",
        "Show the queues with their jobs by state, the rates of the last minute, and notices of problems.",
        "/v1/overview",
        keep=("at", "totals", "queues", "rates", "notices"),
    ),
    Reading(
        "list_workers",
        "List the workers with their queues, slots and last heartbeat, and which of them is the leader.",
        "/v1/overview",
        keep=("at", "workers", "leader"),
    ),
    Reading(
        "list_limits",
        "List the limits: slots in use, rates, pauses, and how many jobs each blocks.",
        "/v1/overview",
        keep=("at", "limits"),
    ),
    Reading(
        "list_failures",
        "Group the newest failed jobs by task, queue and error, the largest group first.",
        "/v1/failures",
    ),
    Reading(
        "list_workflows",
        "List workflows with the progress of their jobs, the newest first.",
        "/v1/workflows",
        is_paged=True,
    ),
    Reading(
        "workflow_graph",
        "Draw a workflow as a Mermaid flowchart. `id` is that of its first job.",
        "/v1/workflows/{id}/graph",
        shaped=_mermaid,
        gives=MERMAID,
    ),
    Reading(
        "list_approvals",
        "List the open requests for approval: what each shows, and who may decide it; the oldest first.",
        "/v1/approvals",
        left_out=("mine",),
        is_paged=True,
    ),
    Reading(
        "list_schedules",
        "List the schedules with their timing in words, the next times, and recent jobs.",
        "/v1/schedules",
    ),
    Reading("doctor", "Check the storage and its contents, with advice for each problem.", "/v1/doctor"),
    Reading("metrics", "Counts of ended jobs, and quantiles of run times and waiting times, over time.", "/v1/metrics"),
    Reading(
        "audit",
        "List who did what: the acts of operators, the newest first.",
        "/v1/audit",
        scope="operate",
        is_paged=True,
    ),
)
