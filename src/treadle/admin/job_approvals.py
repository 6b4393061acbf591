"""The part of `app.jobs` that lists and decides requests for approval.

A decision ends the row of the request under the version that was read, so of two decisions at the same moment one
counts. The same call completes its entry of the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from treadle.admin import stored_values
from treadle.admin.approval_links import VARIABLE, Link, link_to, named, secret_in_environment, secret_of
from treadle.admin.audit import LONGEST, Audit, Source, whoami
from treadle.admin.job_filters import id_of
from treadle.admin.job_streams import JobStreams
from treadle.core.clock import moment_text
from treadle.core.errors import AlreadyDecided, BadOption, MayNotDecide, Stale, StorageError, TreadleError, UnknownJob
from treadle.core.model import ASKED, EXPIRED, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.policy.retry import seconds
from treadle.storage import whole
from treadle.storage.contract import Storage
from treadle.storage.row_rules import within
from treadle.tasks.when import HasId
from treadle.workflow.approvals import (
    LABEL,
    LONGEST_REASON,
    Approval,
    Decided,
    Decision,
    RequestHeader,
    check_by,
    decided,
    decision_of,
    header_of,
    label_of,
    may_decide,
)

LASTS: Final = 7 * 86_400.0  # s that a link is valid
SCAN: Final = 10_000  # open requests that one list looks at
ACT: Final = "approval.decide"

RequestState = Literal["open", "decided", "expired", "withdrawn"]


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A request for approval. Instants are seconds since 1970.

    id        of the request, which `decide` takes
    by        who may decide: "group:NAME", "user:NAME", or "": every operator
    show      what the decision is about
    asked_at  when the job asked; until: after which nobody can decide any more, None: no end
    decision  how it was decided; None: it was not
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
    state: RequestState
    decision: Decided | None


class ApprovalPage(Struct, frozen=True):
    """One page of open requests, the oldest first. `cursor` reads the next page; None: this was the last one."""

    requests: Sequence[ApprovalRequest]
    cursor: str | None


class JobApprovals(JobStreams):
    """`Jobs` without its acts on jobs."""

    async def approvals(
        self,
        *,
        by: str | None = None,
        queue: str | None = None,
        job: HasId | str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> ApprovalPage:
        """One page of the open requests for approval, the oldest first; only those that `by` may decide
        ("group:finance"), of one queue, or of one job. The page may be short and still have a cursor. Raises
        BadOption."""
        if not 1 <= limit <= 1_000:
            raise BadOption("limit", f"expected 1 to 1,000, found {limit!r}")
        query = Query(
            label=LABEL if by is None else label_of(check_by(by)),
            state=(State.WAITING,),
            queue=queue,
            parent=None if job is None else id_of(job),
            order="oldest",
            limit=limit,
            cursor=cursor,
            scan=SCAN,
        )
        storage = await self._storage()
        page = await storage.find(query)
        await self._moved.looked("app.jobs.approvals")
        rows = [row for row in page.records if within(self.reach, row.job.queue)]
        shown = [_request(row) for row in await whole(storage, rows, "payload") if row is not None]
        return ApprovalPage([request for request in shown if request is not None], page.cursor)

    async def approval(self, request: str) -> ApprovalRequest:
        """A request by its id, also one that has ended, as long as its row is kept. Raises UnknownJob."""
        storage = await self._storage()
        [stored] = await whole(storage, await storage.get([request]), "payload")
        shown = _request(await self._visible(request, stored))
        if shown is None:
            raise UnknownJob(request)
        return shown

    def approval_link(
        self,
        request: ApprovalRequest | str,
        *,
        to: str,
        url: str,
        expires: float | timedelta = LASTS,
        secret: str | None = None,
    ) -> str:
        """A link whose bearer may decide this request, and needs no token. It opens a page with two buttons; only these
        decide.

        to       the person for whom it is made, whose name the decision has
        url      of the server, such as "https://jobs.example.org"
        expires  seconds that it is valid, a week by default; the request itself may end before
        secret   that of the server; None: `TREADLE_SESSION_SECRET` of the environment

        Raises BadOption.
        """
        key = secret_in_environment() if secret is None else secret_of(secret)
        if key is None:
            raise BadOption("secret", f"expected the secret of the server: set {VARIABLE} here and at the server")
        id = request if isinstance(request, str) else request.id
        return link_to(url, Link(id, named(to), self._now() + seconds(expires, "expires")), key)

    async def decide(
        self,
        request: ApprovalRequest | str,
        *,
        approved: bool,
        reason: str = "",
        by: str | None = None,
        groups: Sequence[str] = ("*",),
        source: Source = "python",
    ) -> Approval:
        """Decide a request for approval, and record that in the audit log with what was shown. Its job continues.

        by      who decides; None: this user on this machine
        groups  of that person, as far as they matter: ("finance",). "*" may decide every request

        Returns the decision as the job gets it. Raises AlreadyDecided, which has the decision that counts;
        MayNotDecide; Stale if its time is over, or its job waits no longer; UnknownJob; BadOption.
        """
        if not isinstance(approved, bool):
            raise BadOption("approved", f"expected True or False, found {approved!r:.60}")
        if len(reason) > LONGEST_REASON:
            raise BadOption("reason", f"expected at most {LONGEST_REASON:,} characters, found {len(reason):,}")
        storage, decision = await self._storage(), Decision(approved, by or whoami(), reason)
        id = request if isinstance(request, str) else request.id
        [stored] = await whole(storage, await storage.get([id]), "payload")
        row = await self._visible(id, stored)
        header = header_of(row.job)
        if header is None:
            raise UnknownJob(id)
        if row.state.final:
            raise _over(row, header)
        if not may_decide(header.by, decision.by, tuple(groups)):
            raise MayNotDecide(id, header.name, header.by, decision.by)
        await self._check_waits(storage, row, header)
        details = f"{header.name}: {_words(decision)}; shown: {_shown_in_log(storage, row)}"
        record = Audit(self._storage, self._moved).record(
            ACT, header.job, filter=details, by=decision.by, source=source
        )
        async with record as receipt:
            [answer] = await receipt.settle(storage, [replace(decided(row, decision), reach=self.reach)])
            [row_then] = await storage.get([id])
            result = None if row_then is None else decision_of(row_then)
            if answer.status == "applied" and result is not None:
                receipt.done, receipt.ids = 1, [id]
            elif answer.status != "applied":
                if row_then is None or not row_then.state.final:
                    raise StorageError(f"the storage refused the decision: {answer.reason or answer.status}")
                raise _over(row_then, header)
        return Decided(approved, decision.by, reason, self._now()).shown() if result is None else result.shown()

    async def _check_waits(self, storage: Storage, row: Record, header: RequestHeader) -> None:
        """Raise Stale if nobody can decide this request any more. That of a job that has ended is withdrawn."""
        [job] = await storage.get([header.job])
        if job is None or job.state.final:
            error = f"job {header.job} has ended"
            await storage.settle(
                [Outcome(id=row.id, version=row.version, state=State.CANCELLED, reason=ASKED, error=error)]
            )
            raise Stale(header.job, f"{'gone' if job is None else job.state}; it waits for no decision any more")
        if row.deadline_at is not None and row.deadline_at <= (await storage.glance(1)).at:
            raise _too_late(row, header)


def _request(row: Record) -> ApprovalRequest | None:
    """The request of this row; None for another row."""
    header = header_of(row.job)
    if header is None:
        return None
    decision = decision_of(row)
    state: RequestState = "decided" if decision else "expired" if row.reason == EXPIRED else "withdrawn"
    return ApprovalRequest(
        id=row.id,
        job=header.job,
        name=header.name,
        task=header.task,
        queue=row.job.queue,
        by=header.by,
        show=stored_values.value(row.job.payload),
        asked_at=row.created_at,
        until=row.deadline_at,
        state=state if row.state.final else "open",
        decision=decision,
    )


def _over(row: Record, header: RequestHeader) -> TreadleError:
    """The error for a request that has ended."""
    decision = decision_of(row)
    if decision is not None:
        return AlreadyDecided(row.id, header.name, decision.approved, decision.by, decision.reason, decision.at)
    if row.reason == EXPIRED:
        return _too_late(row, header)
    return Stale(header.job, f"no longer waiting for {header.name!r}: the request was withdrawn")


def _too_late(row: Record, header: RequestHeader) -> Stale:
    ended = "" if row.deadline_at is None else f" at {moment_text(row.deadline_at)}"
    return Stale(header.job, f"no longer waiting for {header.name!r}: the time of the request was over{ended}")


def _words(decision: Decision) -> str:
    how = "approved" if decision.approved else "rejected"
    return f"{how} because {decision.reason!r}" if decision.reason else how


def _shown_in_log(storage: Storage, row: Record) -> str:
    """The shown data for the audit log, which is not encrypted."""
    return "(encrypted)" if storage.capabilities.keys else row.job.payload[:LONGEST]
