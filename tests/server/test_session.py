"""Sign-in by token to a cookie: what the cookie allows, what it does not, and what ends it."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.served import memory_url
from tests.server.raw import Answer, ask, connected, head
from tests.server.test_api import token
from treadle import App
from treadle.core.clock import wall
from treadle.errors import BadOption
from treadle.server import Settings, Token
from treadle.server.auth import session
from treadle.server.auth.live_tokens import LiveTokens
from treadle.server.auth.session import of_process, session_secret
from treadle.server.auth.token_file import as_toml
from treadle.server.auth.tokens import SCOPES, digest
from treadle.server.middleware import Rate
from treadle.server.routes.session import WRONG_BURST, SessionRoutes
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

ALL = token("all", *SCOPES)
BOUND = Token(name="bound", digest=digest("bound"), scopes=("read",), queues=("mail",), payloads=False)
OWN = {"origin": "{url}", "sec_fetch_site": "same-origin"}
SECRET = b"s" * 32
JOB = b'{"task": "t"}'


class Site:
    """A server with tokens, and requests with or without a cookie."""

    def __init__(self, **settings: Any) -> None:
        self.url = memory_url(None, Settings(**{"tokens": (ALL, BOUND), **settings}))
        self.origin = self.url.rpartition("/site")[0]

    async def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str | None) -> Answer:
        named: dict[str, str | None] = {"content_type": None if body is None else "application/json"}
        named |= {name: value and value.replace("{url}", self.origin) for name, value in headers.items()}
        return await asyncio.to_thread(ask, self.url, method, path, body, **named)

    async def sign_in(self, secret: str = "all", **headers: str | None) -> str:
        answer = await self("POST", "/v1/session", b'{"token": "%s"}' % secret.encode(), **{**OWN, **headers})
        assert answer.status == 204, answer
        return answer.headers["set-cookie"]


@pytest.fixture
def site() -> Site:
    return Site()


def pair(cookie: str) -> str:
    return cookie.partition(";")[0]


async def test_a_token_is_exchanged_for_a_cookie_that_scripts_cannot_read(site: Site) -> None:
    cookie = await site.sign_in()
    name, _, attributes = cookie.partition("; ")
    path = site.url.removeprefix(site.origin)
    assert attributes.split("; ") == [f"Path={path}", "Max-Age=43200", "HttpOnly", "SameSite=Strict"]
    assert name.startswith("treadle=all.")
    assert digest("all") not in cookie
    me = await site("GET", "/v1/me", cookie=name)
    assert (me.status, me.body["name"], me.body["auth"], me.body["scopes"]) == (200, "all", "session", list(SCOPES))
    stored = await site("POST", "/v1/jobs", JOB, cookie=name, **OWN)
    assert stored.status == 201


async def test_a_session_has_the_rights_of_its_token(site: Site) -> None:
    cookie = pair(await site.sign_in("bound"))
    me = (await site("GET", "/v1/me", cookie=cookie)).body
    assert (me["queues"], me["payloads"]) == (["mail"], False)
    assert (await site("POST", "/v1/jobs", JOB, cookie=cookie, **OWN)).status == 403
    assert (await site("GET", "/v1/jobs?queue=other", cookie=cookie)).status == 403


async def test_the_header_is_read_before_the_cookie(site: Site) -> None:
    cookie = pair(await site.sign_in("bound"))
    assert (await site("GET", "/v1/me", cookie=cookie, authorization="Bearer all")).body["name"] == "all"
    wrong = await site("GET", "/v1/me", cookie=cookie, authorization="Bearer guess")
    assert (wrong.status, wrong.body["error"]) == (401, "unauthorized")


async def test_a_wrong_token_gets_no_cookie(site: Site) -> None:
    for body in (b'{"token": "guess"}', b'{"token": ""}'):
        answer = await site("POST", "/v1/session", body, **OWN)
        assert (answer.status, answer.body["error"]) == (401, "unauthorized")
        assert "set-cookie" not in answer.headers
    assert (await site("POST", "/v1/session", b'{"token": 1}', **OWN)).status == 422
    assert (await site("POST", "/v1/session", b'{"token": "%s"}' % (b"x" * 5_000), **OWN)).status == 413


async def test_wrong_tokens_of_one_address_are_bounded(site: Site) -> None:
    answers = [await site("POST", "/v1/session", b'{"token": "guess"}', **OWN) for _ in range(WRONG_BURST + 1)]
    assert {each.status for each in answers[:WRONG_BURST]} == {401}
    assert answers[-1].status == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert (await site("POST", "/v1/session", b'{"token": "all"}', **OWN)).status == 204  # behind a proxy all share one
    assert (await site("GET", "/v1/me", authorization="Bearer all")).status == 200


def test_a_refused_request_reports_the_wait_and_does_not_count() -> None:
    now = 0.0
    rate = Rate(0.5, lambda: now, 2)
    assert [rate.delay("a"), rate.delay("a"), rate.delay("a"), rate.delay("b")] == [0.0, 0.0, 2.0, 0.0]
    now = 2.0  # the refused request has not counted
    assert [rate.delay("a"), rate.delay("a")] == [0.0, 2.0]


@shows("a page of another site can do nothing with the session of a signed-in browser")
async def test_a_cookie_never_authorises_a_page_of_another_site() -> None:
    other = "http://localhost:3000"  # the same site in the eyes of SameSite, and even named by --origin
    site = Site(origins=(other,))
    cookie = pair(await site.sign_in())
    for headers in (
        {"origin": "https://evil.example", "sec_fetch_site": "cross-site"},
        {"origin": "https://evil.example"},
        {"sec_fetch_site": "same-site"},
        {"origin": "null"},
        {"origin": other, "sec_fetch_site": "same-site"},
        {"origin": other},
        {},  # no browser sends an unsafe method without naming the page
    ):
        for method, path, body in (
            ("POST", "/v1/jobs", JOB),
            ("POST", "/v1/queues/default/pause", None),
            ("DELETE", "/v1/limits/a", None),
        ):
            answer = await site(method, path, body, cookie=cookie, **headers)
            assert (answer.status, answer.body["error"]) == (403, "cross_site"), (headers, method, path)
    assert (await site("GET", "/v1/me", cookie=cookie, origin=other)).status == 403
    assert (await site("GET", "/v1/me", cookie=cookie, host="evil.example")).body["error"] == "foreign_host"
    assert (await site("GET", "/v1/jobs", cookie=cookie)).body["jobs"] == []
    by_token = await site("POST", "/v1/jobs", JOB, origin=other, authorization="Bearer all")
    assert by_token.status == 201  # --origin lets its pages act with a token


async def test_another_site_can_neither_sign_in_nor_sign_out(site: Site) -> None:
    for method, body in (("POST", b'{"token": "all"}'), ("DELETE", None)):
        answer = await site(method, "/v1/session", body, origin="https://evil.example")
        assert (answer.status, answer.body["error"]) == (403, "cross_site")
        assert "set-cookie" not in answer.headers


async def test_signing_out_removes_the_cookie(site: Site) -> None:
    answer = await site("DELETE", "/v1/session", cookie="treadle=anything", **OWN)
    assert answer.status == 204
    assert answer.headers["set-cookie"].startswith("treadle=; ")
    assert "Max-Age=0" in answer.headers["set-cookie"]


async def test_over_tls_the_cookie_is_never_sent_in_plain(site: Site) -> None:
    """Behind a proxy that ends TLS, the origin of the page says so."""
    cookie = await site.sign_in(origin=None, sec_fetch_site=None)
    assert "Secure" not in cookie
    secure = await site.sign_in(origin=site.origin.replace("http:", "https:"))
    assert secure.startswith("__Secure-treadle=all.")
    assert secure.endswith("; Secure")
    assert (await site("GET", "/v1/me", cookie=pair(secure))).body["name"] == "all"


def test_the_name_of_the_cookie_is_bound_to_the_host_where_it_can_be() -> None:
    assert [session.mount_of(path, True).name for path in ("", "/", "/ops")] == [
        "__Host-treadle",
        "__Host-treadle",
        "__Secure-treadle",
    ]
    assert session.mount_of("/a;b c", False) == session.Mount("/a%3Bb%20c", False)
    assert session.set_cookie(session.mount_of("", True), "v", 9) == (
        "__Host-treadle=v; Path=/; Max-Age=9; HttpOnly; SameSite=Strict; Secure"
    )


async def test_without_tokens_there_is_nothing_to_sign_in_to() -> None:
    site = Site(tokens=())
    answer = await site("POST", "/v1/session", b'{"token": "any"}', **OWN)
    assert answer.status == 204
    assert "set-cookie" not in answer.headers
    me = (await site("GET", "/v1/me")).body
    assert (me["name"], me["auth"], me["queues"], me["payloads"]) == ("anybody", "none", [], True)


async def test_only_a_token_that_reads_every_queue_sees_the_storage_url() -> None:
    app = App("postgresql://user:hunter2@db.example/jobs")  # not opened
    routes = SessionRoutes(app._core, Settings(tokens=(ALL, BOUND)))
    shown = {each.name: routes.storage_for(each) for each in (ALL, BOUND, token("sender", "enqueue"))}
    assert shown == {"all": "postgresql://user:***@db.example/jobs", "bound": "postgresql", "sender": "postgresql"}
    assert SessionRoutes(App(storage=MemoryStorage())._core, Settings()).storage_for(ALL) == "a storage of the app"


async def test_an_expired_session_is_401_expired() -> None:
    site = Site()
    value, _ = session.issue(ALL, wall() - session.LASTS - 1, of_process())
    answer = await site("GET", "/v1/me", cookie=f"treadle={value}")
    assert (answer.status, answer.body["error"]) == (401, "expired")


def test_a_session_does_not_outlast_its_token() -> None:
    ends = wall() + 100.5
    brief = Token(name="brief", digest=digest("brief"), scopes=("read",), expires=ends)
    value, seconds = session.issue(brief, wall(), SECRET)
    assert seconds in (100, 101)
    found = session.holder_of(f"treadle={value}", [brief], wall(), SECRET)
    assert found is not None
    assert found.expires == int(ends)


@shows("an edit of the token file holds at once: a removed token, its sessions and its open streams end")
async def test_a_token_that_is_removed_from_its_file_ends_at_once(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(ALL))
    site = Site(tokens=(), token_file=LiveTokens(file))
    cookie = pair(await site.sign_in())
    with connected(site.url) as stream:
        path = f"{site.url.removeprefix(site.origin)}/v1/overview/events"
        stream.sendall(head("GET", path, {"Host": urlsplit(site.url).netloc, "Cookie": cookie}))
        assert b"event: overview" in await asyncio.to_thread(_until, stream, b"event: overview")
        file.write_text(as_toml(BOUND) + "[[token]]")
        assert (await site("GET", "/v1/me", cookie=cookie)).status == 200  # an unreadable edit: nothing has changed
        file.write_text(as_toml(BOUND))
        os.utime(file, (1e9, 1e9))  # it has not been written to for a while
        for headers in ({"cookie": cookie}, {"authorization": "Bearer all"}):
            assert (await site("GET", "/v1/me", **headers)).status == 401
        left = await asyncio.to_thread(_until, stream, b"0\r\n\r\n")  # the stream ends, without another look
        assert b"overview" not in left
    assert (await site("GET", "/v1/me", authorization="Bearer bound")).body["name"] == "bound"
    file.write_text("")
    assert (await site("GET", "/v1/me")).status == 401  # no token is left, and nobody has access
    file.unlink()
    assert (await site("GET", "/v1/me", authorization="Bearer bound")).status == 401


def _until(stream: socket.socket, end: bytes) -> bytes:
    found = b""
    while end not in found:
        piece = stream.recv(65_536)
        assert piece, found
        found += piece
    return found


def test_removing_or_replacing_a_token_ends_its_sessions() -> None:
    value, _ = session.issue(ALL, wall(), SECRET)
    assert session.holder_of(f"a=b; treadle={value}", [BOUND, ALL], wall(), SECRET) is not None
    assert session.holder_of(f"treadle={value}", [BOUND], wall(), SECRET) is None
    replaced = Token(name="all", digest=digest("new"), scopes=ALL.scopes)
    assert session.holder_of(f"treadle={value}", [replaced], wall(), SECRET) is None


@given(st.data())
def test_no_other_text_is_a_session(data: st.DataObject) -> None:
    """A changed cookie is none, and any other text is none."""
    value, _ = session.issue(ALL, 1e9, SECRET)
    assert session.holder_of(f"treadle={value}", [ALL], wall(), SECRET) is not None
    at = data.draw(st.integers(0, len(value) - 1))
    other = data.draw(st.characters(codec="latin-1").filter(lambda one: one != value[at]))
    assert session.holder_of(f"treadle={value[:at]}{other}{value[at + 1 :]}", [ALL, BOUND], wall(), SECRET) is None
    assert session.holder_of(data.draw(st.text(max_size=200)), [ALL, BOUND], wall(), SECRET) is None


def test_of_several_cookies_the_first_valid_one_counts() -> None:
    """A browser sends one for each path above the request's; another port of the host may have set one."""
    value, _ = session.issue(ALL, wall(), SECRET)
    found = session.holder_of(f"treadle=x.1.{'0' * 64}; treadle={value}", [ALL], wall(), SECRET)
    assert found is not None
    assert found.name == "all"
    for attributes in ((BOUND, wall() - session.LASTS - 1), (ALL, 1e9)):
        over, _ = session.issue(*attributes, SECRET)
        found = session.holder_of(f"treadle={over}; treadle={value}", [BOUND, ALL], wall(), SECRET)
        assert found is not None
        assert (found.name, found.ended(wall())) == ("all", False)
    for tossed in ([f"treadle=x.1.{'0' * 64}"] * 500, [f"treadle=x.{number}.{'0' * 64}" for number in range(150)]):
        many = "; ".join(tossed)  # of a neighbour
        assert session.holder_of(f"{many}; treadle={value}", [ALL], wall(), SECRET) is not None


# --- the secret


async def test_a_digest_is_no_key(tmp_path: Path) -> None:
    """A reader of the file of tokens, or of a copy of it, cannot make a session."""
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(ALL))
    for site in (Site(), Site(tokens=(), token_file=LiveTokens(file))):
        for secret in (
            ALL.digest.encode(),
            bytes.fromhex(ALL.digest),
            b"",
            sha256(f"session{ALL.digest}".encode()).digest(),
        ):
            value, _ = session.issue(ALL, wall(), secret)
            assert (await site("GET", "/v1/me", cookie=f"treadle={value}", **OWN)).status == 401
        head = f"all.{int(wall()) + 3_600}"
        key = sha256(f"session{ALL.digest}".encode()).digest()
        old = f"treadle={head}.{hmac.new(key, head.encode(), sha256).hexdigest()}"
        assert (await site("GET", "/v1/me", cookie=old, **OWN)).status == 401


def test_a_session_lasts_twelve_hours_at_most() -> None:
    """Even the right signature gives no session that lasts longer than those that a server issues."""
    for later, is_valid in ((0.0, True), (30.0, True), (3_600.0, False), (1e8, False)):
        value, _ = session.issue(ALL, wall() + later, SECRET)
        assert (session.holder_of(f"treadle={value}", [ALL], wall(), SECRET) is not None) == is_valid


async def test_servers_with_the_same_file_of_tokens_share_their_sessions(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(ALL))
    first, second = (Site(tokens=(), token_file=LiveTokens(file)) for _ in range(2))
    cookie = pair(await first.sign_in())
    assert (await second("GET", "/v1/me", cookie=cookie)).status == 200
    restarted = Site(tokens=(), token_file=LiveTokens(file))
    assert (await restarted("GET", "/v1/me", cookie=cookie)).status == 200
    assert sorted(os.listdir(tmp_path)) == ["tokens.toml", "tokens.toml.sessions"]
    beside = tmp_path / "tokens.toml.sessions"
    assert os.stat(beside).st_mode & 0o777 == 0o600
    beside.write_text("")
    renewed = Site(tokens=(), token_file=LiveTokens(file))  # with a secret of its process
    assert (await renewed("GET", "/v1/me", cookie=cookie)).status == 401


def test_many_processes_agree_on_one_secret(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(session_secret, [tmp_path / "tokens.toml"] * 64))
    assert len(secrets) == 1
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.toml.sessions"]


def test_the_environment_gives_replicas_one_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_SESSION_SECRET", "a" * 32)
    assert session_secret(tmp_path / "tokens.toml") == session_secret(None)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("TREADLE_SESSION_SECRET", "short")
    with pytest.raises(BadOption, match="at least 32"):
        Settings(tokens=(ALL,)).session_secret()


# --- half a file of tokens


def test_no_piece_of_a_file_that_is_written_gives_more_rights(tmp_path: Path) -> None:
    """An editor or a copy may write in pieces: at each moment a token has at most the rights of before and after."""
    hand_written = f"""[[token]]
name = "bound"
digest = "{BOUND.digest}"
scopes = ["read"]
queues = ["mail"]
payloads = false
expires = 2099-01-31T12:00:00Z

[[token]]
name = "all"
digest = "{ALL.digest}"
scopes = ["read", "work", "operate"]
"""
    file = tmp_path / "tokens.toml"
    for text in (hand_written, as_toml(BOUND) + as_toml(ALL)):
        file.write_text(text)
        tokens = LiveTokens(file)
        whole = {each.name: each for each in tokens()}
        for end in range(len(text)):
            file.write_text(text[:end])
            for found in tokens():
                most = whole[found.name]
                assert found.queues == most.queues
                assert (found.expires or 1e99) <= (most.expires or 1e99)
                assert found.payloads <= most.payloads
                assert set(found.scopes) <= set(most.scopes)
        file.write_text(text)
        os.utime(file, (1e9, 1e9))
        assert {each.name: each for each in tokens()} == whole


def test_added_rights_hold_once_the_file_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(as_toml(BOUND))
    tokens = LiveTokens(file)
    file.write_text(as_toml(BOUND) + as_toml(ALL))
    assert [each.name for each in tokens()] == ["bound"]
    os.utime(file, (1e9, 1e9))
    assert [each.name for each in tokens()] == ["bound", "all"]


def test_a_file_that_is_written_in_place_takes_no_right_for_longer_than_the_write(tmp_path: Path) -> None:
    """An editor empties the file and writes it: a request between the two does not shut everybody out for longer."""
    file, text = tmp_path / "tokens.toml", as_toml(BOUND) + as_toml(ALL)
    file.write_text(text)
    tokens = LiveTokens(file)
    whole = tokens()
    for piece in ("", as_toml(BOUND)):
        file.write_text(piece)
        assert len(tokens()) < 2
        file.write_text(text)
        assert tokens() == whole
