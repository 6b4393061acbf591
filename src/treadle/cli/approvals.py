"""`treadle jobs approvals`, `approve`, `reject` and `approval-link`: requests for approval, and their decisions.

The command line on the storage itself may decide every request, as user@host. Through a server, the server decides by
the token whether the caller may.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from msgspec import Raw

from treadle.admin import stored_values
from treadle.cli import job_view
from treadle.cli.filters import hinting, stored_ids
from treadle.cli.listing import listed, next_page, paged, picked
from treadle.cli.options import duration
from treadle.cli.output import FAILED, USAGE, Stop, age, as_json, data, iso, note, shortened
from treadle.cli.target import Target, audited, targeted

if TYPE_CHECKING:
    from treadle.admin import ApprovalRequest
    from treadle.app import App

COLUMNS = ("job", "request", "task", "by", "asked", "until", "shown")
SHOWN = 60  # characters

reason = click.option("--reason", default="", help="Reason of the decision, which the job and the audit log get.")


@click.command()
@targeted
@click.option("--by", help='Only requests that this group or user may decide, such as "group:finance".')
@click.option("--queue", "-q", help="Name of the queue.")
@click.option("--job", help="Only requests of the job with this id.")
@paged("requests", 50, 1_000)
@as_json
def approvals(
    target: Target,
    by: str | None,
    queue: str | None,
    job: str | None,
    limit: int,
    cursor: str | None,
    json_: bool,
) -> None:
    """List one page of the open requests for approval, the oldest first."""
    page = target.run(lambda app: app.jobs.approvals(by=by, queue=queue, job=job, limit=limit, cursor=cursor))
    plain = [_plain(target.app, request) for request in page.requests]
    rows = [_line(request, target.app) for request in page.requests]
    listed(json_, plain, COLUMNS, rows, "no open requests")
    next_page(page.cursor)


def _line(request: ApprovalRequest, app: App) -> tuple[object, ...]:
    """A request for people, in one line."""
    now, shown = app._core.now(), bytes(_shown(app, request)).decode()
    since, until, by = age(request.asked_at, now), age(request.until, now), request.by or "every operator"
    return request.job, request.name, request.task, by, since, until, "" if shown == "null" else shortened(shown, SHOWN)


def _plain(app: App, request: ApprovalRequest) -> dict[str, object]:
    """A request for programs."""
    times = {"asked_at": iso(request.asked_at), "until": iso(request.until)}
    return picked(request, "id", "job", "name", "task", "queue", "by", show=_shown(app, request), **times)


def _shown(app: App, request: ApprovalRequest) -> Raw:
    """The shown data without secrets."""
    value = stored_values.carried(request.show, repr(request.show), job_view.ENCODE)
    return app._core.redactor.of(request.task).named(request.name, value)


@click.command()
@targeted
@click.argument("id")
@click.argument("name", required=False)
@reason
def approve(target: Target, id: str, name: str | None, reason: str) -> None:
    """Approve the request NAME of job ID. Without NAME, its only open request."""
    _decide(target, id, name, True, reason)


@click.command()
@targeted
@click.argument("id")
@click.argument("name", required=False)
@reason
def reject(target: Target, id: str, name: str | None, reason: str) -> None:
    """Reject the request NAME of job ID. Without NAME, its only open request."""
    _decide(target, id, name, False, reason)


def _decide(target: Target, id: str, name: str | None, approved: bool, reason: str) -> None:
    async def act(app: App) -> str:
        request = await _request(app, id, name)
        answer = await app.jobs.decide(request, approved=approved, reason=reason, source="cli")
        return f"{request.job}: the request {request.name!r} is {'approved' if approved else 'rejected'} by {answer.by}"

    data(target.run(act))


@click.command("approval-link")
@targeted
@click.argument("id")
@click.argument("name", required=False)
@click.option("--to", required=True, metavar="PERSON", help="Person for whom the link is; the decision has this name.")
@click.option("--server", required=True, metavar="URL", help="URL of the server that answers the link.")
@duration("--expires", default=7 * 86_400.0, help="Seconds that the link is valid. [default: 7d]")
def approval_link(target: Target, id: str, name: str | None, to: str, server: str, expires: float) -> None:
    """Print a link whose bearer may decide the request NAME of job ID once, without a token.

    The link opens a page with two buttons. It is signed with TREADLE_SESSION_SECRET, which the server must have, too.
    """

    async def act(app: App) -> str:
        request = await _request(app, id, name)
        async with audited(app, "approval.link", request.job, f"{request.name}, to={to}"):
            return app.jobs.approval_link(request, to=to, url=server, expires=expires)

    if "://" not in server:
        raise Stop(USAGE, f"--server: expected a URL such as https://jobs.example.org, found {server!r}")
    link = target.run(act)
    note(f"the bearer of this link may decide the request, as {to}:")
    data(link)


async def _request(app: App, id: str, name: str | None) -> ApprovalRequest:
    """The open request of that name of this job. Raises Stop."""
    [job] = await stored_ids(app, [id])
    await hinting(app, id, app.jobs.get(job))
    open_ = (await app.jobs.approvals(job=job, limit=1_000)).requests
    chosen = [request for request in open_ if name in (None, request.name)]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(sorted(repr(request.name) for request in open_))
    if chosen:
        raise Stop(USAGE, f"job {job} has several open requests: name one of {names}")
    others = f"it waits for {names}" if open_ else "it has none; `treadle jobs show` says what it waits for"
    which = "no open request" if name is None else f"no open request {name!r}"
    raise Stop(FAILED, f"job {job} has {which}: {others}")
