"""Checks every row and call that arrives over HTTP before anything is stored.

It checks names, numbers and sizes (`row_checks.py`), and the form of Treadle's own rows (`system_rows.py`). It does not
check a token's right to queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from treadle.admin import audit
from treadle.core.errors import BadOption, TreadleError
from treadle.core.model import LeaseRenewal, NewJob, Outcome, Presence, Settled
from treadle.core.ranges import a_span, check_presence
from treadle.core.stored_text import FORMS, offloaded, sealed
from treadle.policy.cleanups import is_cleanup
from treadle.server import request_rows, system_rows
from treadle.server.auth import rights
from treadle.server.auth.tokens import Token
from treadle.server.errors import Refused
from treadle.server.row_checks import (
    MOST_ROWS,
    at_most_in_call,
    check_job,
    check_outcome,
    check_renewal,
    check_together,
)
from treadle.server.time_slices import TimeSlices
from treadle.storage.contract import Storage
from treadle.workflow.approvals import is_request
from treadle.workflow.mailbox import ANSWER
from treadle.workflow.streams import PAGE, is_page


def users_row(job: NewJob, derived: bool = False) -> NewJob:
    """Check a job of a user. Raises BadOption for one that is out of range, or Treadle's own.

    `derived`: the server has derived its id.
    """
    check_job(job)
    system_rows.refuse_own(system_rows.plain_of(job) if derived else job)
    return job


class IncomingRows:
    """The checks of the worker protocol. For Treadle's own rows they read the jobs that the rows belong to.

    passes  whether arguments are stored that this server cannot read
    """

    def __init__(self, storage: Callable[[], Storage], passes: bool) -> None:
        self._storage, self._passes = storage, passes

    # --- jobs

    async def jobs(self, token: Token, jobs: Sequence[NewJob]) -> Sequence[NewJob]:
        """Check jobs that are enqueued. Raises BadOption, TooLarge; Refused (403) for a missing scope.

        Returns Treadle's own rows that only an operator may store, except entries of the audit log.
        """
        check_together([len(job.after) for job in jobs])
        ours: list[NewJob] = []
        turns = TimeSlices()
        for job in jobs:
            await turns.step()
            check_job(job)
            self._check_form(job)
            if system_rows.is_own(job):
                ours.append(job)
        if not ours:
            return ()
        call = {job.id: job.queue for job in jobs}
        parts = [(job, *system_rows.sent(job, call)) for job in ours]
        for job, scope, _ in parts:
            _check_scope(token, scope, f"Treadle's own job {job.id!r}")
        await self._belong(token, [(job, parent) for job, _, parent in parts if parent is not None])
        return [job for job, scope, _ in parts if scope == "operate" and job.task != audit.TASK]

    def _check_form(self, job: NewJob) -> None:
        """Raise BadOption for arguments that no worker of this storage could read."""
        if self._passes or not job.payload.startswith(FORMS):
            return
        able, closed = self._storage().capabilities, sealed(job.payload)
        if able.remote:  # the server behind this one decides
            return
        if offloaded(job.payload) is not None and not able.payloads:
            what, how = "they are in a blob store", "blobs="
        elif closed is not None and closed.key not in able.keys:
            what, how = f"they are encrypted with the key {closed.key[:64]!r}", "keys="
        else:
            return
        raise BadOption(
            "payload",
            f"the app of this server cannot read these arguments: {what}. Give it {how}, or start the server with "
            "--pass-texts if its workers can read them",
        )

    async def _belong(self, token: Token, pairs: Sequence[tuple[NewJob, str]]) -> None:
        """Raise Refused (409) for a row whose job does not exist, has ended, or is in another queue."""
        if not pairs:
            return
        rows = await self._storage().get([parent for _, parent in pairs])
        for (job, parent), row in zip(pairs, rows, strict=True):
            wrong, may_be_over = "", is_cleanup(job) or is_page(job)
            if row is None or (row.state.final and not may_be_over) or not token.sees(row.job.queue):
                wrong = "does not exist, or has ended"
            elif job.parent is not None and (job.queue, job.root) != (row.job.queue, row.job.root or row.id):
                wrong = f"is in queue {row.job.queue!r} and workflow {row.job.root or row.id}"
            elif job.id.startswith((ANSWER, PAGE)) and job.queue != row.job.queue:
                wrong = f"is in queue {row.job.queue!r}"
            if wrong:
                raise Refused(
                    409, "stale", f"job {job.id} belongs to job {parent}, which {wrong}", id=parent, found=wrong
                )

    # --- outcomes

    async def outcomes(self, token: Token, outcomes: Sequence[Outcome]) -> tuple[dict[int, Settled], frozenset[str]]:
        """The refused outcomes by their index in the call, and the ids of outcomes that only an operator may store. A
        refused outcome does not affect the others."""
        ids = [
            out.id
            for out in outcomes
            if audit.is_id(out.id) or is_request(out.id) or (out.followups and system_rows.needs_row(out))
        ]
        stored = [row for row in await self._storage().get(ids) if row is not None] if ids else []
        rows = {row.id: row for row in stored if token.sees(row.job.queue)}
        foreign = {row.id for row in stored if audit.is_id(row.id) and not rights.has_begun(token, row)}
        refused, of_operators = dict[int, Settled](), set[str]()
        turns = TimeSlices()
        for number, out in enumerate(outcomes):
            await turns.step()
            try:
                check_outcome(out)
                for job in out.followups:
                    self._check_form(job)
                if out.id in foreign:
                    raise BadOption(
                        "id", f"{out.id!r}: an entry of the audit log is completed by the caller of its act"
                    )
                if is_request(out.id):
                    request_rows.refuse_decider(token, out, rows.get(out.id))
                scopes = [
                    system_rows.ended(out),
                    *(system_rows.born(job, out, rows.get(out.id)) for job in out.followups if system_rows.is_own(job)),
                ]
            except TreadleError as error:
                refused[number] = Settled("refused", str(error))
            else:
                lacks = next((scope for scope in scopes if scope and not token.may(scope)), None)
                if "operate" in scopes:
                    of_operators.add(out.id)
                if lacks is not None:
                    message = f"the token {token.name!r} has no scope {lacks!r}, which this outcome of {out.id} needs"
                    refused[number] = Settled("refused", message)
        return refused, frozenset(of_operators)

    # --- calls

    @staticmethod
    async def beat(token: Token, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> None:
        """Check a heartbeat. Raises BadOption; Refused (403) for a change of a schedule without the scope for it."""
        check_presence(worker)
        a_span("lease", lease)
        at_most_in_call("renewals", len(renewals), MOST_ROWS)
        turns = TimeSlices()
        for renewal in renewals:
            await turns.step()
            check_renewal(renewal)
            _check_scope(token, system_rows.remembered(renewal.id, renewal.checkpoints), f"a change of {renewal.id}")


def _check_scope(token: Token, scope: str, what: str) -> None:
    """Raise Refused (403) if the token lacks this scope, which `what` needs; "": no scope is needed."""
    if scope and not token.may(scope):
        message = f"the token {token.name!r} has no scope {scope!r}, which {what} needs"
        raise Refused(403, "forbidden", message, scope=scope)
