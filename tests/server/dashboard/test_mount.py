"""The dashboard inside another application: who may use it, when it opens the app, and how it ends."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from tests.server.dashboard.asgi import call
from tests.server.dashboard.hosts import PREFIX, by_header, django_host, fastapi_host, flask_host, uvicorn_of
from treadle import App, BadOption
from treadle.core.clock import wall
from treadle.server.auth.callers import Callers
from treadle.server.dashboard import Who, asgi
from treadle.server.dashboard.mount import STREAM


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App("memory://")
    yield app
    await app.close()


# --- alone


@pytest.mark.parametrize("tokens", [(), [], ""])
async def test_a_site_without_a_rule_is_refused(app: App, tokens: Any) -> None:
    """A proxy on the same machine may add no header, and then each request seems to be one of this machine."""
    with pytest.raises(BadOption, match="alone=True"):
        asgi(app, tokens=tokens)
    with pytest.raises(BadOption, match="only one"):
        asgi(app, auth=by_header, alone=True)


async def test_alone_this_machine_may_use_the_dashboard(app: App) -> None:
    me = await call(asgi(app, alone=True), "/v1/me")
    assert me.status == 200
    assert msgspec.json.decode(me.body)["auth"] == "none"
    assert (await call(asgi(app, alone=True), "/dashboard/")).status == 200


@pytest.mark.parametrize("client", ["192.0.2.7", "10.0.0.1", "2001:db8::1", "testclient"])
@pytest.mark.parametrize("path", ["/v1/me", "/dashboard/", "/healthz"])
async def test_alone_other_machines_are_refused(
    app: App, client: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = await call(asgi(app, alone=True), path, client=(client, 1))
    assert answer.status == 403
    assert "with alone=True" in answer.text
    assert client in caplog.text
    assert app._core.loop is None, "it does not even open the app"


@pytest.mark.parametrize(
    "header",
    [
        "forwarded",
        "x_forwarded_for",
        "x_forwarded_proto",
        "x_forwarded_server",
        "x_real_ip",
        "x_client_ip",
        "true_client_ip",
        "cf_connecting_ip",
        "via",
    ],
)
async def test_alone_requests_of_a_proxy_are_refused(app: App, header: str) -> None:
    assert (await call(asgi(app, alone=True), "/v1/me", **{header: "192.0.2.7"})).status == 403


async def test_alone_a_connection_without_an_address_is_refused(app: App) -> None:
    assert (await call(asgi(app, alone=True), "/v1/me", client=None)).status == 403


async def test_alone_another_name_of_this_machine_is_refused(app: App) -> None:
    """DNS rebinding: the page of another site whose name leads to 127.0.0.1."""
    assert (await call(asgi(app, alone=True), "/v1/me", host="evil.example")).status == 403


# --- with auth=


async def test_the_user_of_the_host_has_the_rights_that_auth_returns(app: App) -> None:
    site = asgi(app, auth=by_header)
    me = msgspec.json.decode((await call(site, "/v1/me", x_user="Ada")).body)
    assert (me["name"], me["scopes"], me["auth"]) == ("Ada", ["read"], "host")
    assert (await call(site, "/v1/queues/mail/pause", "POST", x_user="Ada")).status == 403
    assert (await call(site, "/v1/queues/mail/pause", "POST", x_user="staff")).status == 200


PAGE = {"sec_fetch_mode": "navigate"}
LOGIN = "/login?from=ops"


@pytest.mark.parametrize("heads", [PAGE, {"accept": "text/html,*/*"}])
async def test_a_browser_without_a_user_is_sent_to_the_login_page(app: App, heads: dict[str, str]) -> None:
    site = Starlette(routes=[Mount("/ops", asgi(app, auth=by_header, login=LOGIN))])
    answer = await call(site, "/ops/dashboard/?page=a%20b", **heads)
    assert (answer.status, answer.headers["location"]) == (303, f"{LOGIN}&next=/ops/dashboard/%3Fpage%3Da%2520b")
    assert (await call(site, "/ops/dashboard/", x_user="Ada", **heads)).status == 200


@pytest.mark.parametrize(
    ("path", "method", "heads"),
    [
        ("/dashboard/", "GET", {"sec_fetch_mode": "cors", "accept": "text/html"}),
        ("/dashboard/", "GET", {}),
        ("/dashboard/", "POST", PAGE),
        ("/v1/me", "GET", PAGE),
    ],
)
async def test_other_requests_without_a_user_get_401(app: App, path: str, method: str, heads: dict[str, str]) -> None:
    assert (await call(asgi(app, auth=by_header, login=LOGIN), path, method, **heads)).status == 401
    assert (await call(asgi(app, auth=by_header), path, method, **PAGE)).status == 401


@pytest.mark.parametrize("options", [{"tokens": "tokens.toml"}, {"alone": True}, {"auth": by_header}])
def test_a_login_page_needs_auth(app: App, options: dict[str, Any]) -> None:
    with pytest.raises(BadOption, match="expected the URL of the login page, together with auth="):
        asgi(app, login="", **options)


async def test_auth_may_be_async_and_sees_the_session_of_the_host(app: App) -> None:
    async def auth(request: Request) -> Who | None:
        await asyncio.sleep(0)
        return Who(name=request.scope["session"]["user"], queues=("mail",), payloads=False)

    site = asgi(app, auth=auth)

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await site({**scope, "session": {"user": "Ada"}}, receive, send)

    me = msgspec.json.decode((await call(host, "/v1/me")).body)
    assert (me["queues"], me["payloads"]) == (["mail"], False)


async def test_a_request_without_a_user_gets_neither_data_nor_the_page(app: App) -> None:
    site = asgi(app, auth=by_header)
    for path in ("/v1/me", "/v1/jobs", "/dashboard/", "/dashboard/jobs", "/"):
        answer = await call(site, path)
        assert answer.status == 401
        assert "sign in to the application that this dashboard is part of" in answer.text


async def test_with_auth_any_name_and_address_may_be_used(app: App) -> None:
    site = asgi(app, auth=by_header)
    for client in (("192.0.2.7", 1), None):
        answer = await call(
            site, "/v1/me", client=client, host="shop.example.org", x_user="Ada", x_forwarded_for="1.2.3.4"
        )
        assert answer.status == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"cookie": "user=ada"}, 403),
        ({"cookie": "user=ada", "origin": "http://127.0.0.1"}, 200),
        ({"cookie": "user=ada", "sec_fetch_site": "same-origin"}, 200),
        ({"cookie": "user=ada", "authorization": "Bearer x"}, 200),
        ({}, 200),
    ],
)
async def test_a_cookie_of_the_host_changes_nothing_without_the_sender(
    app: App, headers: dict[str, str], status: int
) -> None:
    site = asgi(app, auth=lambda request: Who(name="ada", scopes=("read", "operate")))
    answer = await call(site, "/v1/queues/a/pause", "POST", **{"host": "127.0.0.1", **headers})
    assert answer.status == status, answer.text
    assert (await call(site, "/v1/me", cookie="user=ada")).status == 200


async def test_a_page_of_another_site_cannot_use_the_cookies_of_the_host(app: App) -> None:
    site = asgi(app, auth=by_header)
    for headers in ({"sec_fetch_site": "cross-site"}, {"origin": "https://evil.example"}):
        answer = await call(site, "/v1/queues/mail/pause", "POST", host="shop.example.org", x_user="staff", **headers)
        assert answer.status == 403
        assert b"cross_site" in answer.body


@pytest.mark.parametrize("path", ["/v1/me", "/dashboard/"])
async def test_an_error_of_auth_is_logged_and_not_shown(app: App, path: str, caplog: pytest.LogCaptureFixture) -> None:
    def auth(request: Request) -> Who | None:
        raise ValueError("the secret of the host")

    answer = await call(asgi(app, auth=auth), path)
    assert answer.status == 500
    assert "secret" not in answer.text
    assert "the secret of the host" in caplog.text


@pytest.mark.parametrize("found", ["Ada", True, {"name": "Ada"}])
async def test_auth_that_returns_another_type_admits_no_user(
    app: App, found: Any, caplog: pytest.LogCaptureFixture
) -> None:
    assert (await call(asgi(app, auth=lambda request: found), "/v1/me")).status == 500
    assert "must return treadle.server.dashboard.Who or None" in caplog.text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "1-64 printable characters"),
        ({"name": "a\nb"}, "printable"),
        ({"name": "x" * 65}, "1-64"),
        ({"name": "a", "scopes": ("work",)}, "expected enqueue, read, operate"),
        ({"name": "a", "scopes": "read"}, "expected a tuple"),
        ({"name": "a", "queues": "mail"}, "expected a tuple"),
        ({"name": "a", "queues": ("",)}, "queues"),
        ({"name": "a", "payloads": "no"}, "expected True or False"),
        ({"name": "a", "scope": ("read",)}, "did you mean"),
    ],
)
def test_a_wrong_user_is_an_error_at_once(fields: Any, words: str) -> None:
    with pytest.raises(BadOption, match=words):
        Who(**fields)


def test_queues_from_an_iterator_bind_the_user() -> None:
    """No queues would mean every queue."""
    found = Who(name="a", scopes=iter(["read"]), queues=(name for name in ["mail"]))
    assert (found.token().scopes, found.token().queues) == (("read",), ("mail",))


async def test_auth_is_called_again_during_a_long_stream(app: App) -> None:
    found = []
    site = asgi(app, auth=by_header)
    seen = Callers.of

    async def of(self: Callers, scope: Any, heads: Any) -> Any:
        found.append(await seen(self, scope, heads))
        return found[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Callers, "of", of)
        await call(site, "/v1/me", x_user="Ada")
    assert 0 < found[0].token.expires - wall() <= STREAM


def test_auth_that_is_no_function_is_an_error_at_once(app: App) -> None:
    with pytest.raises(BadOption, match="expected a function"):
        asgi(app, auth="staff")  # type: ignore[arg-type]


# --- the app


async def test_the_first_request_opens_the_app_and_later_ones_use_it(app: App) -> None:
    site = asgi(app, alone=True)
    assert app._core.loop is None
    assert (await call(site, "/v1/queues")).status == 200
    assert app._core.loop is asyncio.get_running_loop()
    assert (await call(site, "/v1/queues")).status == 200


async def test_concurrent_first_requests_open_the_app_once(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    site = asgi(app, alone=True)
    answers = await asyncio.gather(*(call(site, "/v1/queues") for _ in range(10)))
    assert {answer.status for answer in answers} == {200}
    assert caplog.text == ""


async def test_a_storage_that_cannot_be_opened_is_an_error_without_a_stack() -> None:
    app = App("redis://127.0.0.1:1")
    answer = await call(asgi(app, alone=True), "/v1/me")
    assert answer.status == 503
    assert "Traceback" not in answer.text
    await app.close()


@pytest.mark.parametrize("made", [fastapi_host, django_host])
async def test_an_asgi_application_serves_the_mounted_dashboard(app: App, made: Callable[..., Any]) -> None:
    async with uvicorn_of(made(app, alone=True)) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/dashboard/jobs") as answer:
            assert f'<base href="{PREFIX}/dashboard/">' in await answer.text()
        async with session.get(f"{url}/v1/me") as answer:
            assert (await answer.json())["auth"] == "none"
        async with session.get(f"{url}/") as answer:
            assert str(answer.url) == f"{url}/dashboard/"


async def test_open_streams_do_not_keep_the_server_of_the_host_from_stopping(app: App) -> None:
    """uvicorn waits for open responses before it asks the application to stop."""
    async with aiohttp.ClientSession() as session:
        async with uvicorn_of(fastapi_host(app, alone=True)) as url:
            stream = await session.get(f"{url}/v1/overview/events")
            await stream.content.readuntil(b"event: overview")
        rest = await stream.content.read()
        assert b"event: bye" in rest


def test_flask_serves_the_mounted_dashboard() -> None:
    import urllib.request

    app = App("memory://")
    with flask_host(app, alone=True) as url:
        with urllib.request.urlopen(f"{url}/dashboard/jobs", timeout=20) as answer:
            assert f'<base href="{PREFIX}/dashboard/">'.encode() in answer.read()
        with urllib.request.urlopen(f"{url}/v1/queues", timeout=20) as answer:
            assert msgspec.json.decode(answer.read()) == {"queues": []}
    app.sync.close()
