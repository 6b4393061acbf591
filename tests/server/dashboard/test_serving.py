"""The page and its files as the server sends them: headers, compression, prefixes, and what is open without a token."""

from __future__ import annotations

import gzip
import re
from typing import Any

import pytest

from tests.server.dashboard.asgi import Answer, call
from treadle import App, BadOption
from treadle.server import Settings, Token, make_site
from treadle.server.auth.tokens import digest
from treadle.server.dashboard import OPEN_PATHS, dashboard_routes
from treadle.server.dashboard.routes import files

SECRET = "trd_secret"
TOKEN = Token(name="reader", digest=digest(SECRET), scopes=("read",))


def site(settings: Settings | None = None, **options: Any) -> Any:
    return make_site(App("memory://"), settings or Settings(), [dashboard_routes(**options)], open_paths=OPEN_PATHS)


def named(suffix: str) -> str:
    return next(name for name in files().assets if name.endswith(suffix))


async def test_every_address_below_the_dashboard_is_the_page_with_a_strict_policy() -> None:
    for path in ("/dashboard/", "/dashboard/jobs", "/dashboard/queues/a%2Fb", "/dashboard/x/../../v1/me"):
        answer = await call(site(), path)
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
        assert policy.endswith("frame-ancestors 'none'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-cache"
        assert '<base href="/dashboard/">' in answer.text
        assert '<meta name="treadle-api" content="/v1/">' in answer.text


async def test_the_page_has_no_inline_script_or_style_and_loads_only_its_own_files() -> None:
    page = (await call(site(), "/dashboard/")).text
    assert not re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page)
    assert re.findall(r"<script[^>]*>(?!</script>)", page) == []
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert address.startswith(("assets/", "data:image/", "/dashboard/")), address


async def test_the_assets_may_be_kept_for_ever_because_their_names_change_with_their_content() -> None:
    for name, asset in files().assets.items():
        assert re.search(r"-[A-Z0-9]{8}\.", name), name
        plain = await call(site(), f"/dashboard/assets/{name}")
        packed = await call(site(), f"/dashboard/assets/{name}", accept_encoding="br, gzip;q=0.5")
        assert plain.body == asset.plain == gzip.decompress(packed.body)
        assert packed.headers["content-encoding"] == "gzip"
        assert "content-encoding" not in plain.headers
        for answer in (plain, packed):
            assert "immutable" in answer.headers["cache-control"]
            assert answer.headers["vary"] == "Accept-Encoding"
            assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("header", ["", "br", "gzip;q=0", "gzip ; q=0.0", "identity"])
async def test_a_client_that_does_not_take_gzip_gets_none(header: str) -> None:
    answer = await call(site(), f"/dashboard/assets/{named('.js')}", accept_encoding=header)
    assert "content-encoding" not in answer.headers


@pytest.mark.parametrize("name", ["none.js", "index.html", "build.json", "..%2Findex.html", "app.js.gz"])
async def test_a_missing_asset_is_404(name: str) -> None:
    answer = await call(site(), f"/dashboard/assets/{name}")
    assert answer.status == 404


async def test_the_root_of_a_mounted_server_redirects_to_the_page() -> None:
    for path, root, place in (
        ("/", "", "dashboard/"),
        ("/dashboard", "", "dashboard/"),
        ("/ops/jobs/", "/ops/jobs", "dashboard/"),
        ("/ops/jobs/dashboard", "/ops/jobs", "dashboard/"),
    ):
        answer = await call(site(), path, root=root)
        assert (answer.status, answer.headers["location"]) == (307, place)


def prefix_of(answer: Answer) -> str:
    """The prefix in <base>, which must be the one of the API, too."""
    base = re.search(r'<base href="([^"]*)/dashboard/">', answer.text)
    assert base is not None
    assert f'<meta name="treadle-api" content="{base[1]}/v1/">' in answer.text
    return base[1]


@pytest.mark.parametrize(
    ("root", "written"),
    [
        ("/ops/jobs", "/ops/jobs"),
        ("/ops/jobs/", "/ops/jobs"),
        ("/a b/ü", "/a%20b/%C3%BC"),
        ('/"><script>', "/%22%3E%3Cscript%3E"),
        ("//evil.example", "/evil.example"),
        ("/a&b'c", "/a&amp;b%27c"),
    ],
)
async def test_the_page_names_the_prefix_and_a_hostile_one_stays_a_path(root: str, written: str) -> None:
    assert prefix_of(await call(site(), f"{root}/dashboard/", root=root)) == written


async def test_a_prefix_counts_from_a_trusted_proxy_only() -> None:
    behind = site(Settings(proxies=("10.0.0.0/8",)))
    for client, prefix in (("10.1.2.3", "/ops"), ("11.1.2.3", "")):
        answer = await call(behind, "/dashboard/jobs", client=(client, 1), x_forwarded_prefix="/ops/")
        assert prefix_of(answer) == prefix
    assert prefix_of(await call(site(), "/dashboard/", x_forwarded_prefix="/ops")) == ""
    answer = await call(behind, "/dashboard", client=("10.1.2.3", 1), x_forwarded_prefix="/ops/jobs")
    assert answer.headers["location"] == "dashboard/"


@pytest.mark.parametrize("prefix", ["ops", "//evil.example", "/a/../b", "/a?b", '/"x', "/" + "a" * 300, "https://evil"])
async def test_a_proxy_with_an_invalid_prefix_gets_an_error(prefix: str) -> None:
    answer = await call(site(Settings(proxies=("127.0.0.1",))), "/dashboard/", x_forwarded_prefix=prefix)
    assert answer.status == 400
    assert "X-Forwarded-Prefix: expected a path such as /ops/jobs" in answer.text


@pytest.mark.parametrize("proxy", ["proxy.example.org", "10.0.0.0/99", ""])
def test_a_proxy_is_named_by_its_address(proxy: str) -> None:
    with pytest.raises(BadOption, match="expected an address or a network"):
        Settings(proxies=(proxy,))


async def test_only_the_page_and_its_files_are_open_without_a_token() -> None:
    guarded = site(Settings(tokens=(TOKEN,)))
    for path in ("/dashboard", "/dashboard/", "/dashboard/jobs", f"/dashboard/assets/{named('.css')}"):
        assert (await call(guarded, path)).status in (200, 307)
    for path in ("/v1/me", "/v1/jobs", "/v1/overview", "/dashboardx", "/v1/openapi.json", "/"):
        assert (await call(guarded, path)).status == 401, path
        assert (await call(guarded, path, authorization=f"Bearer {SECRET}")).status != 401, path
    assert (await call(guarded, "/dashboard/", "POST")).status == 401


async def test_a_host_may_show_the_dashboard_in_a_frame() -> None:
    framed = site(frame_ancestors=("'self'", "https://intranet.example.org"))
    policy = (await call(framed, "/dashboard/")).headers["content-security-policy"]
    assert policy.endswith("frame-ancestors 'self' https://intranet.example.org")
    for wrong in ("*", "https://a b", "intranet", "'none'; script-src *"):
        with pytest.raises(BadOption, match="frame_ancestors"):
            dashboard_routes((wrong,))
