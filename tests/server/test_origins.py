"""Requests from other origins are refused at every endpoint: those that a browser sends for a page of another site.

A program, which sends none of those headers, is not affected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.served import host, memory_url
from tests.server.raw import Answer, ask
from tests.server.test_api import token
from tests.waiting import Signal
from treadle import App
from treadle.blobs import DirectoryBlobs
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.blobs import blob_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.errors import BadOption
from treadle.server import Serving, Settings, make_site
from treadle.server.errors import Refused
from treadle.server.longpoll import WaitingLine
from treadle.server.origins import OriginCheck, network_of

JSON = "application/json"
EVIL = "https://evil.example"
TOKENS = (token("all", "enqueue", "work", "read", "operate"),)


class Way(NamedTuple):
    """One request that stores something."""

    method: str
    path: str
    body: bytes
    kind: str = JSON


WAYS = {
    "jobs": Way("POST", "/v1/jobs", b'{"task": "t"}'),
    "batch": Way("POST", "/v1/jobs/batch", b'{"jobs": [{"task": "t"}]}'),
    "work": Way("POST", "/v1/work/enqueue", b'{"jobs": [{"id": "a"}]}'),
    "limits": Way("PUT", "/v1/limits/a", b'{"slots": 1}'),
    "queuey": Way("POST", "/jobs/create", b'{"binary_addr": "a"}'),
    "delayed": Way("POST", "/", b'{"payload": 1, "dueTime": 4000000000}'),
    "blobs": Way("POST", "/blob", b"module", "application/octet-stream"),
    "blobs, by PUT": Way("PUT", "/blob", b"module", "application/octet-stream"),
}

FOREIGN = {
    "a form or a fetch of another site": {"origin": EVIL, "sec_fetch_site": "cross-site"},
    "another port of this machine": {"origin": "http://localhost:3000", "sec_fetch_site": "same-site"},
    "an old browser": {"origin": EVIL},
    "a sandboxed frame": {"origin": "null"},
    "a sandboxed frame of a new browser": {"origin": "null", "sec_fetch_site": "cross-site"},
    "a page that hides its origin": {"sec_fetch_site": "cross-site"},
    "this host with another port": {"origin": "http://127.0.0.1:1"},
    "an image that is a link": {
        "sec_fetch_site": "cross-site",
        "sec_fetch_mode": "navigate",
        "sec_fetch_dest": "iframe",
    },
    "an origin that is none": {"origin": "evil"},
}


class Site(NamedTuple):
    """A server with all protocols, and a way to send requests to it."""

    url: str
    app: App
    secret: str | None

    async def __call__(self, way: Way, **headers: str | None) -> Answer:
        named: dict[str, str | None] = {"content_type": way.kind, **headers}
        if self.secret is not None:
            named["authorization"] = f"Bearer {self.secret}"
        return await asyncio.to_thread(ask, self.url, way.method, way.path, way.body or None, **named)

    def jobs(self) -> int:
        found: int = host().run(self.app.jobs.list(count=True, limit=0)).total
        return found


def _files(folder: Path) -> list[Path]:
    return [each for each in folder.rglob("*") if each.is_file()]


@pytest.fixture(params=["open", "tokens"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    app = App("memory://")
    tokens = TOKENS if request.param == "tokens" else ()
    protocols = [queue_routes(Rules()), blob_routes(DirectoryBlobs(tmp_path)), delayed_routes()]
    return Site(host().add(app, Settings(tokens=tokens), protocols), app, "all" if tokens else None)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_page_of_another_site_stores_nothing(site: Site, tmp_path: Path, way: Way) -> None:
    for what, headers in FOREIGN.items():
        answer = await site(way, **headers)
        assert (answer.status, answer.body["error"]) == (403, "cross_site"), what
        assert "access-control-allow-origin" not in answer.headers
    # its name resolves to this machine: by its headers the page has the same origin
    answer = await site(way, host="evil.example:7373")
    assert (answer.status, answer.body["error"]) == (403, "foreign_host")
    assert "--allow-host evil.example (" in answer.body["message"]
    assert site.jobs() == 0
    assert not _files(tmp_path)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_requests_of_programs_are_accepted(site: Site, way: Way) -> None:
    port = site.url.split(":")[2].partition("/")[0]
    for named in (
        None,
        f"127.0.0.1:{port}",
        "localhost",
        f"LOCALHOST:{port}",
        "app.localhost.",
        "[::1]:7373",
        "10.1.2.3",
    ):
        answer = await site(way, host=named)
        assert answer.status in (200, 201, 204), (named, answer)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_body_without_a_type_is_refused(site: Site, way: Way) -> None:
    forms = (
        None,
        "",
        "text/plain",
        "text/plain;a=application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    )
    for kind in forms:
        if way.method == "PUT" and way.path == "/blob":  # a page must send a preflight before a PUT, which is refused
            break
        answer = await site(way, content_type=kind)
        assert (answer.status, answer.body.get("error", "wrong_type")) == (415, "wrong_type"), kind
    assert way.method == "PUT" or site.jobs() == 0


async def test_reads_are_refused_as_well(site: Site) -> None:
    for path in ("/v1/jobs", "/v1/openapi.json", "/jobs", "/stats", "/ping", "/healthz", "/readyz", "/docs", "/blob/x"):
        for headers in ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"}, {"host": "evil.example"}):
            for method in ("GET", "HEAD", "OPTIONS", "TRACE", "DELETE"):
                answer = await site(Way(method, path, b""), content_type=None, **headers)
                assert answer.status == 403, (method, path, headers)


async def test_a_link_to_a_page_may_be_followed_from_anywhere(site: Site) -> None:
    followed = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert (await site(Way("GET", "/docs", b""), **followed)).status == 200
    assert (await site(WAYS["jobs"], **followed)).status == 403
    for own in ("none", "same-origin"):
        assert (await site(Way("GET", "/docs", b""), sec_fetch_site=own)).status == 200


async def test_pages_of_the_server_may_call_the_api(site: Site) -> None:
    netloc = site.url.split("/")[2]
    for headers in (
        {"origin": f"http://{netloc}", "sec_fetch_site": "same-origin"},
        {"origin": f"http://{netloc}"},
        {"origin": "null", "sec_fetch_site": "same-origin"},  # the page's Referrer-Policy is no-referrer
        {"origin": "https://jobs.example.org", "sec_fetch_site": "same-origin"},  # a proxy sets another host
        {"origin": "http://localhost", "host": "localhost:80"},
    ):
        assert (await site(WAYS["jobs"], **headers)).status == 201, headers


async def test_headers_of_a_proxy_about_the_host_are_ignored(site: Site) -> None:
    """Every client that reaches the port may send that header."""
    for name in ("x_forwarded_host", "x_host", "x_original_host", "forwarded"):
        answer = await site(WAYS["jobs"], host="evil.example", **{name: "localhost"})
        assert answer.status == 403
    answer = await site(WAYS["jobs"], origin=EVIL, x_forwarded_host="evil.example", x_forwarded_proto="https")
    assert answer.status == 403


async def test_hosts_and_origins_that_an_operator_names() -> None:
    settings = Settings(tokens=TOKENS, hosts=("jobs.example.org", ".example.com"), origins=("https://app.example.org",))
    app = App("memory://")
    site = Site(host().add(app, settings), app, "all")
    way = WAYS["jobs"]
    for named in ("jobs.example.org", "JOBS.example.org:443", "a.b.example.com"):
        assert (await site(way, host=named)).status == 201, named
    for named in (
        "example.org",
        "example.com",
        "evilexample.com",
        "jobs.example.org.evil.example",
        "a..",
        "a b",
        "[::1",
        "@",
    ):
        assert (await site(way, host=named)).status == 403, named
    answer = await site(way, origin="https://app.example.org", sec_fetch_site="cross-site")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (201, "https://app.example.org")
    answer = await site(
        Way("OPTIONS", "/v1/jobs", b""), origin="https://app.example.org", access_control_request_method="POST"
    )
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "https://app.example.org")
    for origin in ("http://app.example.org", "https://app.example.org:444", "https://app.example.org.evil.example"):
        assert (await site(way, origin=origin)).status == 403, origin


def test_two_hosts_are_refused() -> None:
    from tests.server.raw import connected, parsed, rest

    url = memory_url(None)
    with connected(url) as found:
        found.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
        assert parsed(rest(found)).status in (400, 404)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Settings(origins=("https://app.example.org/",)),
        lambda: Settings(origins=("app.example.org",)),
        lambda: Settings(origins=("null",)),
        lambda: Settings(origins=("*",)),
        lambda: Settings(hosts=("*",)),
        lambda: Settings(hosts=("a.example.org:80",)),
        lambda: Settings(hosts=("A.example.org",)),
        lambda: Settings(origins=("https://*.example.org",)),
    ],
)
def test_invalid_or_too_wide_settings_are_refused(make: Callable[[], Settings]) -> None:
    with pytest.raises(BadOption):
        make()
    Settings(tokens=TOKENS, origins=("*",), hosts=("*",))


def _check(border: OriginCheck, host: str, local: str | None) -> bool:
    try:
        border.check({"method": "GET", "server": (local, 80) if local else None}, {b"host": host})
    except Refused:
        return False
    return True


def test_names_without_a_dot_are_those_of_containers_and_of_a_local_network() -> None:
    border = OriginCheck((), ())
    assert [_check(border, "api:8080", local) for local in ("172.17.0.2", "fd00::2", None)] == [True, True, True]
    assert [_check(border, "api:8080", local) for local in ("127.0.0.1", "::1", "::ffff:127.0.0.1")] == [False] * 3
    assert not _check(border, "api.evil.example", "172.17.0.2")


def test_callers_without_a_token_are_distinguished_by_their_network() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:10.0.0.1") == network_of("10.0.0.1") == "10.0.0.1"


async def test_answers_forbid_their_use_in_another_page(site: Site) -> None:
    way = WAYS["jobs"]
    for answer in (
        await site(way),
        await site(way, origin=EVIL),
        await site(Way("GET", "/docs", b"")),
        await site(Way("GET", "/v1/nothing", b"")),
    ):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


async def test_no_answer_redirects_to_the_host_of_a_header(site: Site) -> None:
    answer = await site(Way("GET", "/v1/jobs/", b""), host="localhost:1")
    assert (answer.status, answer.headers.get("location")) == (404, None)


async def test_one_request_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    path = "/x%0a2026-01-01%2000:00:00%20INFO%20POST%20/v1/jobs/pay/cancel%20200%20admin%1b]0;owned%07"
    with caplog.at_level(logging.INFO, "treadle.access"):
        async with Serving(make_site(App("memory://"), Settings())) as serving:
            assert (await asyncio.to_thread(ask, serving.url, "GET", path)).status == 404
    # a site of an earlier test in this process may still answer a request
    lines = [each.getMessage() for each in caplog.records if each.name == "treadle.access"]
    [line] = [each for each in lines if "pay/cancel" in each]
    assert path in line
    assert line.isprintable()
    assert len(line.split(" ")) == 7


async def test_requests_of_one_caller_under_way_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Signal().around(monkeypatch, WaitingLine, "rest")
    app = App("memory://")
    settings = Settings(tokens=(token("one", "work"), token("two", "work")), requests=2)
    site = make_site(app, settings)
    claim = Way("POST", "/v1/work/claim", b'{"worker": "r#1", "wait": 20}')
    async with Serving(site, on_stop=site.state.waiting.stop) as serving:
        one, two = Site(serving.url, app, "one"), Site(serving.url, app, "two")
        waiting = [asyncio.create_task(one(claim)) for _ in range(2)]
        benches = site.state.waiting._benches
        await waits.until(lambda: sum(len(bench.seats) for bench in benches.values()) == 2, "two requests that wait")
        answer = await one(claim)
        assert (answer.status, answer.headers["retry-after"], answer.body["error"]) == (429, "1", "too_many")
        assert (await two(Way("POST", "/v1/work/claim", b'{"worker": "r#1"}'))).status == 200
        site.state.waiting.stop()
        assert [each.status for each in await asyncio.gather(*waiting)] == [200, 200]
        assert (await one(claim)).status == 200
