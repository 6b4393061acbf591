"""The page of a signed link: it shows one request for approval, and its two buttons decide it.

A GET changes nothing, because mail programs follow links by themselves. The page has no script and loads nothing.
"""

from __future__ import annotations

import functools
from html import escape
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import BaseRoute, Route

from treadle.admin import ApprovalRequest
from treadle.admin.approval_links import PATH, Link, read_link
from treadle.core.clock import moment_text
from treadle.core.errors import AlreadyDecided, BadOption, Stale, UnknownJob
from treadle.server.request_body import raw_body
from treadle.server.routes.shown import value_shown
from treadle.server.settings import Settings

if TYPE_CHECKING:
    from treadle.app.core import AppCore

LONGEST: Final = 32_768  # bytes of the form
POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex",
}
STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 3rem auto; padding: 0 1rem; color: #1c2430;
  background: #f7f8fa } main { background: #fff; border: 1px solid #dde1e7; border-radius: 8px; padding: 1.5rem 2rem }
h1 { font-size: 1.3rem; margin: 0 0 1rem } dl { display: grid; grid-template-columns: max-content 1fr; gap: .3rem 1rem }
dt { color: #5b6675 } dd { margin: 0 } pre { background: #f2f4f7; padding: .8rem; overflow: auto; border-radius: 6px }
label { display: block; margin: 1rem 0 .3rem } textarea { width: 100%; box-sizing: border-box; font: inherit }
button { font: inherit; padding: .5rem 1.2rem; margin: 1rem .6rem 0 0; border-radius: 6px; border: 1px solid #8a94a3;
  background: #fff; cursor: pointer } button[value=approve] { background: #1f6f43; border-color: #1f6f43; color: #fff }
"""


class ApprovalPages:
    """The pages of the links to one app's requests."""

    def __init__(self, core: AppCore, settings: Settings) -> None:
        self._core, self._settings = core, settings

    @functools.cached_property
    def _secret(self) -> bytes:
        return self._settings.session_secret()

    def routes(self) -> list[BaseRoute]:
        path = f"{PATH}{{link}}"
        return [Route(path, self.show, methods=["GET"]), Route(path, self.decide, methods=["POST"])]

    async def show(self, request: Request) -> HTMLResponse:
        """The request, with the buttons if it is open."""
        link = self._link(request)
        if isinstance(link, HTMLResponse):
            return link
        try:
            stored = await self._core.jobs.approval(link.request)
        except UnknownJob:
            return _gone()
        if (decision := stored.decision) is not None:
            fields = decision.approved, decision.by, decision.reason, decision.at
            return _said(409, str(AlreadyDecided(stored.id, stored.name, *fields)))
        if stored.state != "open" or (stored.until is not None and stored.until <= self._core.now()):
            return _gone()
        return self._form(link, stored)

    async def decide(self, request: Request) -> HTMLResponse:
        """Decide the request as the button says."""
        link = self._link(request)
        if isinstance(link, HTMLResponse):
            return link
        form = parse_qs(bytes(await raw_body(request, LONGEST)).decode("utf-8", "replace"), max_num_fields=10)
        verdict, reason = form.get("decision", [""])[0], form.get("reason", [""])[0].replace("\r\n", "\n")
        if verdict not in ("approve", "reject"):
            return _said(422, "Nothing was decided: expected one of the two buttons.")
        try:
            answer = await self._core.jobs.decide(
                link.request, approved=verdict == "approve", reason=reason, by=f"{link.to} (link)", source="api"
            )
        except AlreadyDecided as error:
            return _said(409, str(error))
        except BadOption as error:
            return _said(422, str(error))
        except (Stale, UnknownJob):
            return _gone()
        return _said(200, f"Thank you. The request is {'approved' if answer.approved else 'rejected'}.")

    def _link(self, request: Request) -> Link | HTMLResponse:
        """The link, or the page that says why it is not valid."""
        link = read_link(request.path_params["link"], self._secret)
        if link is None:
            return _said(404, "This link is not valid. Open the whole link, or ask for another one.")
        if link.expires <= self._core.now():
            return _said(410, f"This link expired at {moment_text(link.expires)}. Ask for another one.")
        return link

    def _form(self, link: Link, stored: ApprovalRequest) -> HTMLResponse:
        redaction = self._core.redactor.also(self._settings.redact, self._settings.reveal).of(stored.task)
        shown = value_shown(stored.name, stored.show, redaction)
        facts = [("Asked at", moment_text(stored.asked_at)), ("For", link.to), ("Job", f"{stored.task} {stored.job}")]
        if stored.until is not None:
            facts.append(("Until", moment_text(stored.until)))
        rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts)
        data = "" if shown is None else f"<pre>{escape(msgspec.json.format(bytes(shown)).decode())}</pre>"
        form = (
            '<form method="post"><label for="reason">Reason</label>'
            '<textarea id="reason" name="reason" rows="3" maxlength="2000"></textarea>'
            '<button name="decision" value="approve">Approve</button>'
            '<button name="decision" value="reject">Reject</button></form>'
        )
        return _page(200, f"Request: {stored.name}", f"<dl>{rows}</dl>{data}{form}")


def _gone() -> HTMLResponse:
    return _said(410, "This request has ended: its time was over, or its job waits no longer.")


def _said(status: int, sentence: str) -> HTMLResponse:
    return _page(status, "Request for approval", f"<p>{escape(sentence)}</p>")


def _page(status: int, title: str, body: str) -> HTMLResponse:
    name = escape(title)
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    main = f"<main><h1>{name}</h1>{body}</main>"
    return HTMLResponse(f"{head}<title>{name}</title><style>{STYLE}</style>{main}</html>", status, HEADERS)
