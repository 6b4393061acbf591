"""Requests for approval over HTTP: the list, decisions by those that may, signed links, and the worker protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.served import host
from tests.server.test_incoming_rows import Caller
from treadle import AlreadyDecided, App, MayNotDecide, StorageError, current
from treadle.admin.approval_links import Link, link_to, read_link
from treadle.core.model import Outcome, State
from treadle.server import Settings, Token
from treadle.server.auth.tokens import SCOPES, digest
from treadle.storage.memory import MemoryStorage
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

SECRET = "0123456789abcdef0123456789abcdef"
SHOWN = {"order": 12, "amount": 99, "password": "hunter2"}
DAY = 86_400.0


def token(name: str, *groups: str, **fields: Any) -> Token:
    """A token whose secret is its name."""
    return Token(name=name, digest=digest(name), groups=groups, **{"scopes": tuple(SCOPES), **fields})


TOKENS = (
    token("ann", "finance"),
    token("bob", "sales"),
    token("root", "*"),
    token("eve", "finance", scopes=("read",)),
    token("blind", "finance", scopes=("read", "operate"), payloads=False),
    token("other", "finance", queues=("other",)),
    token("bound", "finance", queues=("default",)),
)


class Site:
    """A server on an empty storage, its clock, and a client for each of TOKENS."""

    def __init__(self, session: aiohttp.ClientSession, tokens: tuple[Token, ...] = TOKENS) -> None:
        self.session, self.clock = session, HandClock()
        self.app = App(storage=MemoryStorage(self.clock), clock=self.clock)
        self.url = host().add(self.app, Settings(tokens=tokens, max_wait=5))

    def call(self, name: str) -> Caller:
        return Caller(self.url, self.session, name)

    def client(self, name: str) -> App:
        """An app whose storage is this server."""
        return App(self.url.replace("http://", f"http://:{name}@"), clock=self.clock)

    async def asked(self, worker: str = "root", **question: Any) -> dict[str, Any]:
        """A job asks. Returns the request as `root` sees it."""
        async with self.client(worker) as app:

            @app.task(name="refund")
            async def refund() -> list[Any]:
                answer = await current().approve("refund", **{"by": "group:finance", "show": SHOWN, **question})
                return [answer.approved, answer.by, answer.reason]

            job = await refund.enqueue()
            await drain(app)
        _, page = await self.call("root")(f"/v1/approvals?job={job.id}", method="GET")
        request: dict[str, Any] = page["requests"][0]
        return request

    async def ended(self, job: str) -> Any:
        """The result of the job."""
        async with self.client("root") as app:

            @app.task(name="refund")
            async def refund() -> list[Any]:
                answer = await current().approve("refund", by="group:finance", show=SHOWN)
                return [answer.approved, answer.by, answer.reason]

            await drain(app)
            return await (await app.jobs.handle(job)).result(0)

    async def page(self, url: str, **form: str) -> tuple[int, str]:
        """The answer of the link to a GET, or to a form that is sent."""
        how = "POST" if form else "GET"
        async with self.session.request(how, url, data=form or None) as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert "script" not in answer.headers["Content-Security-Policy"]
            return answer.status, await answer.text()


@pytest.fixture
async def site(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("TREADLE_SESSION_SECRET", SECRET)
    async with aiohttp.ClientSession() as session:
        yield Site(session)


@shows("a request is listed and decided over HTTP by those whom it names, once")
async def test_a_request_is_decided_over_http(site: Site) -> None:
    request = await site.asked()
    assert (request["by"], request["may_decide"], request["state"]) == ("group:finance", True, "open")
    assert request["show"] == {"order": 12, "amount": 99, "password": "***"}
    path = f"/v1/approvals/{request['id']}"
    status, problem = await site.call("bob")(f"{path}/decide", {"approved": True})
    assert (status, problem["error"]) == (403, "may_not_decide")
    assert problem["message"] == "bob may not decide the request 'refund': only the group 'finance' may"
    assert (await site.call("eve")(f"{path}/decide", {"approved": True}))[0] == 403
    assert (await site.call("other")(f"{path}/decide", {"approved": True}))[0] == 404
    assert (await site.call("ann")(f"{path}/decide", {"approved": 1}))[0] == 422
    status, made = await site.call("ann")(f"{path}/decide", {"approved": True, "reason": "ok"})
    assert (status, made["approved"], made["by"], made["reason"]) == (200, True, "ann", "ok")
    status, problem = await site.call("root")(f"{path}/decide", {"approved": False})
    assert (status, problem["error"]) == (409, "already_decided")
    assert problem["details"] == {"id": request["id"], "name": "refund", **made}
    status, shown = await site.call("root")(path, method="GET")
    assert (status, shown["state"], shown["decision"]) == (200, "decided", made)
    assert await site.ended(request["job"]) == [True, "ann", "ok"]
    _, audit = await site.call("root")("/v1/audit", method="GET")
    decided = [entry for entry in audit["entries"] if entry["act"] == "approval.decide"]
    assert [(entry["by"], entry["from"], entry["done"]) for entry in decided] == [
        ("root", "api", None),
        ("ann", "api", 1),
    ][-len(decided) :]
    assert "hunter2" not in str(audit)


async def test_the_list_has_filters(site: Site) -> None:
    first, second = await site.asked(), await site.asked(by="user:bob")
    lists = {
        "": {first["id"], second["id"]},
        "?by=group:finance": {first["id"]},
        "?mine=true": {second["id"]},
        f"?job={first['job']}": {first["id"]},
        "?queue=other": set(),
    }
    for query, ids in lists.items():
        status, page = await site.call("bob")(f"/v1/approvals{query}", method="GET")
        assert (status, {request["id"] for request in page["requests"]}) == (200, ids), query
    assert (await site.call("bob")("/v1/approvals?by=finance", method="GET"))[0] == 422
    status, page = await site.call("other")("/v1/approvals", method="GET")
    assert (status, page["requests"]) == (200, [])
    status, page = await site.call("blind")("/v1/approvals", method="GET")
    assert (status, "99" in str(page["requests"][0]["show"])) == (200, False)


# --- signed links


async def linked(site: Site, request: dict[str, Any], by: str = "ann", **fields: Any) -> str:
    status, made = await site.call(by)(f"/v1/approvals/{request['id']}/link", {"to": "zoe", **fields})
    assert status == 200, made
    url: str = made["url"]
    return url


@shows("a signed link shows the request, decides only when a button is pressed, and works once")
async def test_a_link_decides_once(site: Site) -> None:
    request = await site.asked()
    url = await linked(site, request)
    for _ in range(2):  # the scanner of a mail program
        status, html = await site.page(url)
        assert status == 200
        assert "Approve" in html
        assert "&quot;amount&quot;: 99" in html
        assert "hunter2" not in html
    status, html = await site.page(url, decision="perhaps")
    assert status == 422
    assert (await site.call("root")(f"/v1/approvals/{request['id']}", method="GET"))[1]["state"] == "open"
    status, html = await site.page(url, decision="reject", reason="<too> much")
    assert (status, "rejected" in html) == (200, True)
    for form in ({}, {"decision": "approve"}):
        status, html = await site.page(url, **form)
        assert (status, "already rejected by zoe (link)" in html, "&lt;too&gt; much" in html) == (409, True, True)
    assert await site.ended(request["job"]) == [False, "zoe (link)", "<too> much"]


async def test_links_that_are_not_valid_any_more(site: Site) -> None:
    request = await site.asked(until=DAY)
    url = await linked(site, request, expires=60)
    longer = await linked(site, request, expires=7 * DAY)
    site.clock.advance(61)
    for form in ({}, {"decision": "approve"}):
        status, html = await site.page(url, **form)
        assert (status, "This link expired at" in html) == (410, True)
    site.clock.advance(DAY)
    for form in ({}, {"decision": "approve"}):
        status, html = await site.page(longer, **form)
        assert (status, "This request has ended" in html) == (410, True)


async def test_forged_links_get_one_answer(site: Site) -> None:
    """The answer does not depend on the request that the link names."""
    request = await site.asked()
    url = await linked(site, request)
    head, _, signed = url.rpartition("/")
    body, _, signature = signed.partition(".")
    link = Link(request["id"], "mallory", site.clock() + 1e6)
    unknown = Link("treadle:approval:none", "mallory", site.clock() + 1e6)
    forged = [
        f"{head}/{body}.{signature[:-2]}AA",
        f"{head}/{body}.",
        f"{head}/{body}",
        f"{head}/x",
        f"{head}/" + "é" * 20,
        f"{head}/" + "A" * 4_000,
        link_to(head.removesuffix("/approve"), link, b"another secret"),
        link_to(head.removesuffix("/approve"), unknown, b"another secret"),
        url.replace(body, link_to("", link, b"x").rpartition("/")[2].partition(".")[0]),
    ]
    answers = {await site.page(url, **form) for url in forged for form in ({}, {"decision": "approve"})}
    assert {status for status, _ in answers} == {404}
    assert len(answers) == 1
    assert read_link(signed, b"another secret") is None


async def test_only_those_that_may_decide_make_links(site: Site) -> None:
    request = await site.asked()
    path = f"/v1/approvals/{request['id']}/link"
    assert (await site.call("bob")(path, {"to": "bob"}))[0] == 403
    assert (await site.call("eve")(path, {"to": "eve"}))[0] == 403
    assert (await site.call("ann")(path, {"to": "zoe\n"}))[0] == 422
    assert (await site.call("ann")("/v1/approvals/treadle:approval:none/link", {"to": "zoe"}))[0] == 404


async def test_a_program_makes_the_same_links(site: Site) -> None:
    request = await site.asked()
    url = site.app.jobs.approval_link(request["id"], to="zoe", url=site.url)
    assert (await site.page(url, decision="approve"))[0] == 200
    assert await site.ended(request["job"]) == [True, "zoe (link)", ""]


async def test_another_page_cannot_send_the_form(site: Site) -> None:
    url = await linked(site, await site.asked())
    headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    async with site.session.post(url, data={"decision": "approve"}, headers=headers) as answer:
        assert answer.status == 403


# --- the worker protocol


@shows("a program whose storage is a server decides under the name of its token, if the request names it")
async def test_a_client_decides_over_the_worker_protocol(site: Site) -> None:
    request = await site.asked()
    async with site.client("bob") as app:
        with pytest.raises(StorageError, match="bob may not decide"):
            await app.jobs.decide(request["id"], approved=True, by="ann", groups=("*",))
    async with site.client("ann") as app:
        answer = await app.jobs.decide(request["id"], approved=True, reason="ok", by="me (x)")
        assert answer.by == "ann (me [x])"
        with pytest.raises(AlreadyDecided):
            await app.jobs.decide(request["id"], approved=False)
    assert await site.ended(request["job"]) == [True, "ann (me [x])", "ok"]
    _, audit = await site.call("root")("/v1/audit", method="GET")
    entries = [entry["by"] for entry in audit["entries"] if entry["act"] == "approval.decide" and entry["done"]]
    assert entries == ["ann (me [x])"]


async def test_a_worker_that_is_bound_to_its_queue_asks(site: Site) -> None:
    request = await site.asked("bound", until=DAY)
    async with site.client("bound") as app:
        [found] = (await app.jobs.approvals()).requests
        assert found.id == request["id"]
        await app.jobs.decide(found, approved=True)
    assert (await site.ended(request["job"]))[0] is True


@pytest.mark.parametrize("name", ["bob", "eve", "other"])
async def test_a_forged_outcome_is_refused(site: Site, name: str) -> None:
    request = await site.asked()
    [row] = await site_rows(site, request["id"])
    async with site.client(name) as app:
        forged = Outcome(
            id=row.id, version=row.version, state=State.SUCCEEDED, result='{"approved":true,"by":"ann","reason":""}'
        )
        try:
            [answer] = await app.storage.settle([forged])
        except StorageError:
            return
        assert answer.status != "applied"


async def site_rows(site: Site, id: str) -> Any:
    async with site.client("root") as app:
        return await app.storage.get([id])


async def test_a_server_without_tokens_lets_every_caller_decide() -> None:
    """Everybody may do everything there."""
    async with aiohttp.ClientSession() as session:
        site = Site(session, ())
        request = await site.asked()
        status, made = await site.call("nobody")(f"/v1/approvals/{request['id']}/decide", {"approved": True})
        assert (status, made["by"].startswith("anybody")) == (200, True)
    assert MayNotDecide("", "refund", "user:ann", "bob")
