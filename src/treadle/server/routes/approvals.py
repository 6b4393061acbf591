"""The operations on requests for approval: the list, one request, its decision, and a signed link to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from treadle.admin import ApprovalRequest
from treadle.admin.approval_links import Link, link_to, named
from treadle.core.errors import MayNotDecide
from treadle.server.operation import Call, Operation
from treadle.server.routes.shown import jobs_of, value_shown
from treadle.server.settings import Settings
from treadle.storage.messages import Nothing
from treadle.tasks.json_options import Name
from treadle.workflow.approvals import LONGEST_REASON, Decided, may_decide

if TYPE_CHECKING:
    from treadle.app.core import AppCore


class ApprovalsAsked(Struct, frozen=True, kw_only=True):
    """The page of open requests to read.

    by    only the requests that this group or user may decide, such as "group:finance"
    job   only those of this job
    mine  only those that the caller may decide. The page may be short, or empty, and still have a cursor
    """

    by: str | None = None
    queue: Name | None = None
    job: str | None = None
    mine: bool = False
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 50


class RequestShown(Struct, frozen=True, kw_only=True):
    """A request for approval. Times are in seconds since 1970.

    by          who may decide: "group:NAME", "user:NAME", or "": every operator
    show        the data that the decision is about
    state       open, decided, expired or withdrawn
    until       when its time is over; null: it has no end
    may_decide  whether the caller may decide it
    """

    id: str
    job: str
    name: str
    task: str
    queue: str
    by: str
    show: Any
    asked_at: float
    until: float | None
    state: str
    decision: Decided | None
    may_decide: bool


class ApprovalsShown(Struct, frozen=True):
    """One page of open requests, the oldest first. cursor: of the next page; null: this was the last one."""

    requests: Sequence[RequestShown]
    cursor: str | None


class DecisionMade(Struct, frozen=True, forbid_unknown_fields=True):
    """A decision about a request, with its reason."""

    approved: bool
    reason: Annotated[str, Meta(max_length=LONGEST_REASON)] = ""


class LinkAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """A link for this person, which is valid for so many seconds."""

    to: Annotated[str, Meta(min_length=1, max_length=100)]
    expires: Annotated[float, Meta(gt=0, le=366 * 86_400)] = 7 * 86_400.0


class LinkMade(Struct, frozen=True):
    """The URL of a link, and when it expires."""

    url: str
    expires_at: float


class ApprovalRoutes:
    """The operations on the requests of one app's jobs."""

    def __init__(self, core: AppCore, settings: Settings) -> None:
        self._core, self._settings = core, settings

    @Operation("GET /v1/approvals", tag="approvals", scope="read")
    async def approvals(self, call: Call[None, ApprovalsAsked]) -> ApprovalsShown:
        """List the open requests for approval, the oldest first."""
        query = call.query
        page = await jobs_of(self._core, call).approvals(
            by=query.by, queue=query.queue, job=query.job, limit=query.limit, cursor=query.cursor
        )
        shown = [self._shown(call, request) for request in page.requests]
        return ApprovalsShown([one for one in shown if one.may_decide or not query.mine], page.cursor)

    @Operation("GET /v1/approvals/{id}", tag="approvals", scope="read", others=(404,))
    async def approval(self, call: Call[None, Nothing]) -> RequestShown:
        """Show a request for approval, also one that has ended, as long as its row is kept."""
        return self._shown(call, await jobs_of(self._core, call).approval(call.part("id")))

    @Operation("POST /v1/approvals/{id}/decide", tag="approvals", scope="operate", others=(403, 404, 409))
    async def decide(self, call: Call[DecisionMade, Nothing]) -> Decided:
        """Approve or reject a request.

        A decision is made once. The answer is 409 if the request is decided, with the decision that counts, or if its
        time is over, and 403 for a caller whom the request does not name. The audit log keeps the decision.
        """
        answer = await jobs_of(self._core, call).decide(
            call.part("id"),
            approved=call.body.approved,
            reason=call.body.reason,
            by=call.by,
            groups=call.token.groups,
            source=call.source,
        )
        return Decided(answer.approved, answer.by, answer.reason, answer.at.timestamp())

    @Operation(
        "POST /v1/approvals/{id}/link",
        tag="approvals",
        scope="operate",
        others=(403, 404),
        audit="approval.link",
        details=("to", "expires"),
    )
    async def link(self, call: Call[LinkAsked, Nothing]) -> LinkMade:
        """Make a link whose bearer may decide this request once, without a token.

        Only a caller who may decide the request makes one.
        """
        request = await jobs_of(self._core, call).approval(call.part("id"))
        if not may_decide(request.by, call.by, call.token.groups):
            raise MayNotDecide(request.id, request.name, request.by, call.by)
        link = Link(request.id, named(call.body.to), self._core.now() + call.body.expires)
        request_url = call.request.url
        server = f"{request_url.scheme}://{request_url.netloc}{call.request.scope.get('root_path', '')}"
        return LinkMade(link_to(server, link, self._settings.session_secret()), link.expires)

    @staticmethod
    def _shown(call: Call[Any, Any], request: ApprovalRequest) -> RequestShown:
        redaction = call.redaction if call.redaction.rows is None else call.redaction.rows.of(request.task)
        decision = request.decision
        if decision is not None and not call.token.payloads:
            decision = Decided(decision.approved, decision.by, "", decision.at)
        return RequestShown(
            id=request.id,
            job=request.job,
            name=request.name,
            task=request.task,
            queue=request.queue,
            by=request.by,
            show=value_shown(request.name, request.show, redaction),
            asked_at=request.asked_at,
            until=request.until,
            state=request.state,
            decision=decision,
            may_decide=may_decide(request.by, call.by, call.token.groups),
        )
