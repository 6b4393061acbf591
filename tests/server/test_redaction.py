"""Secrets are hidden in answers by their keys, and payloads from tokens without a right to them."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.served import host, memory_url
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App, Retry, Worker, current
from treadle.contrib.delayed.app import delayed_routes
from treadle.contrib.queuey.app import queue_routes
from treadle.contrib.queuey.jobs import Rules
from treadle.core.json_secrets import HITS, LARGEST
from treadle.core.payload_redaction import Redaction
from treadle.server import Settings, Token, shown_payloads
from treadle.server.auth.tokens import SCOPES, digest
from treadle_testkit.shows import shows

__all__ = ["session"]

PLANTED = "hunter2-CORRECT-horse"
KEYS = ("password", "passwd", "secret", "token", "authorization", "api_key", "apikey", "cookie", "ssn")
OUTER = ("", "db_", "x-", "My", "user.")
BLIND = Token(name="blind", digest=digest("blind"), scopes=("read", "operate", "enqueue"), payloads=False)

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
names = st.text(max_size=10)


@st.composite
def secret_keys(draw: st.DrawFn) -> str:
    """A key that contains one of the words, in any case."""
    word = draw(st.sampled_from(OUTER)) + draw(st.sampled_from(KEYS)) + draw(st.sampled_from(("", "s", "_2")))
    return "".join(one.upper() if draw(st.booleans()) else one for one in word)


def trees(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
        max_leaves=20,
    )


secrets = st.just(PLANTED) | st.lists(st.just(PLANTED), min_size=1, max_size=2) | st.just({"a": {"b": PLANTED}})
planted = trees(plain | st.dictionaries(secret_keys(), secrets, min_size=1, max_size=2))


@given(planted)
def test_no_secret_is_shown_under_a_hidden_key(tree: Any) -> None:
    shown = bytes(Redaction().json(tree)).decode()
    assert PLANTED not in shown
    json.loads(shown)


@given(st.dictionaries(secret_keys(), secrets, min_size=1), st.text(max_size=20))
def test_no_secret_is_shown_under_an_escaped_key(tree: dict[str, Any], around: str) -> None:
    text = json.dumps([around, tree])
    for key in tree:
        escaped = "".join(f"\\u{ord(one):04x}" for one in key)
        text = text.replace(json.dumps(key)[1:-1] + '"', escaped + '"')
    assert PLANTED not in bytes(Redaction().json(Raw(text.encode()))).decode()


@given(trees(plain))
def test_everything_else_stays(tree: Any) -> None:
    text = msgspec.json.encode(tree)
    if not any(word in text.lower() for word in map(str.encode, (*KEYS, "api-key"))) and b"\\u00" not in text:
        assert bytes(Redaction().json(tree)) == text


@given(planted)
def test_a_shape_has_no_value(tree: Any) -> None:
    shown = bytes(Redaction().as_shapes().json([tree, PLANTED])).decode()
    assert PLANTED not in shown
    assert "text(" in shown


def test_a_shape_names_kinds_and_sizes() -> None:
    tree = {"to": "anna@example.org!", "n": 3, "b": True, "none": None, "l": list(range(12)), "a@b c": {"x": 1.5}}
    shown = json.loads(bytes(Redaction().as_shapes().json(tree)))
    assert shown == {
        "to": "text(17)",
        "n": "number",
        "b": "boolean",
        "none": None,
        "l": ["number"] * 10 + ["2 more"],
        "text(5)": {"x": "number"},
    }


@pytest.mark.parametrize("known", [*KEYS, "api-key", "PASSWORD", "user_password", "accessToken", "Set-Cookie"])
def test_known_keys_are_hidden(known: str) -> None:
    assert Redaction().hides(known)


def test_keys_can_be_added_and_revealed() -> None:
    some = Redaction(extra=("IBAN", "straße"), reveal=("max_tokens",))
    assert [
        some.hides(key) for key in ("iban", "Iban", "STRASSE", "my_iban", "max_tokens", "Max_Tokens", "tokens")
    ] == [
        True,
        True,
        True,
        False,
        False,
        False,
        True,
    ]
    shown = some.json({"iban": PLANTED, "STRASSE": PLANTED, "max_tokens": 4096})
    assert json.loads(bytes(shown)) == {"iban": "***", "STRASSE": "***", "max_tokens": 4096}
    assert PLANTED not in bytes(some.json(Raw(json.dumps({"straße": PLANTED}).encode()))).decode()


@pytest.mark.parametrize(
    "line",
    [
        f"password={PLANTED}",
        f"db_password = '{PLANTED}'",
        f'{{"api_key": "{PLANTED}"}}',
        f"{{'token': '{PLANTED}'}}",
        f"Authorization: Bearer {PLANTED}",
        f"authorization: Basic {PLANTED}",
        f"GET /?a=1&access_token={PLANTED}&b=2",
        f"Cookie: sid={PLANTED}",
        f"secret:{PLANTED}",
        f"Authorization: token {PLANTED}",
        f"Authorization: AWS4-HMAC-SHA256 Credential=AKIA/eu, Signature={PLANTED}",
        f"Authorization:    Bearer    {PLANTED}",
        f'Authorization: Digest username="anna", response="{PLANTED}"',
        f"Cookie: theme=dark; sid={PLANTED}",
        f"Set-Cookie: theme=dark; Path=/; sid={PLANTED}",
        f"secret := {PLANTED}",
        f"password => '{PLANTED}'",
        f"{{'password': b'{PLANTED}'}}",
        f"{{'authorization': ['Bearer {PLANTED}']}}",
        f"{{'password': {{'value': '{PLANTED}'}}}}",
        json.dumps({"password": f'a"{PLANTED}'}),
        repr({"password": f"a'\"{PLANTED}"}),
        json.dumps({"body": json.dumps({"password": PLANTED})}),
        json.dumps({"body": json.dumps({"body": json.dumps({"password": f'a"{PLANTED}'})})}),
    ],
)
def test_texts_are_searched_for_keys(line: str) -> None:
    for redaction in (Redaction(), Redaction().as_shapes()):
        assert PLANTED not in (redaction.text(f"first\n{line}\nlast") or "")
        assert PLANTED not in (redaction.error(f"ValueError: {line}") or "")
        assert PLANTED not in bytes(redaction.json(["a", line])).decode()
        assert PLANTED not in redaction.within(f"It failed: ValueError: {line}.", f"ValueError: {line}\nTraceback")
    assert Redaction().text("nothing to hide: 1 = 1") == "nothing to hide: 1 = 1"


def test_the_text_after_a_hidden_value_stays() -> None:
    for text, shown in (
        ('{"password": "a", "to": "b"}', '{"password": ***, "to": "b"}'),
        ('{"cookie": null, "to": "b"}', '{"cookie": ***, "to": "b"}'),
        ("?token=a&to=b", "?token=***&to=b"),
        ("Cookie: a=1; b=2\nto: b", "Cookie: ***\nto: b"),
        (r'"{\"token\": \"a\", \"to\": \"b\"}"', r'"{\"token\": ***, \"to\": \"b\"}"'),
    ):
        assert Redaction().text(text) == shown


def test_hostile_texts_are_searched_in_proportion_to_their_length() -> None:
    for part in ('password="\\\\', "cookie ", "token=" + "\\" * 40, "authorization: [", "secret = (" + "'\\" * 9):
        redacted = Redaction().text(part * 20_000)
        assert redacted is not None


def test_a_token_without_payloads_sees_the_class_of_an_error() -> None:
    blind = Redaction().as_shapes()
    assert blind.error(f"smtplib.SMTPError: {PLANTED}\nTraceback ...") == "smtplib.SMTPError"
    assert blind.error("TimeoutError") == "TimeoutError"
    assert blind.error(f"{PLANTED} happened") == "error"
    assert blind.error(None) is None


def test_a_large_value_with_such_a_key_is_hidden_whole() -> None:
    """To decode and encode 16 MB takes a second, in which the server answers nobody."""
    filler = "a" * LARGEST
    shown = bytes(Redaction().json({"a": filler, "password": PLANTED})).decode()
    assert PLANTED not in shown
    assert "hidden key" in shown
    for value in ({"a": filler}, {"a": f"{filler} a password "}, [filler, "password is a word"]):
        assert bytes(Redaction().json(value)) == msgspec.json.encode(value)  # not as a key
    for within in (json.dumps({"password": PLANTED}), f"password={PLANTED}", f"Authorization: token {PLANTED}"):
        assert PLANTED not in bytes(Redaction().json({"a": filler, "body": within})).decode()  # named in a text
    many = "password " * (HITS + LARGEST // 8)
    assert "hidden key" in bytes(Redaction().json(many)).decode()


def test_of_a_payload_too_large_to_decode_the_size_is_shown_unread() -> None:
    redaction, text = Redaction().as_shapes(), "[" * (LARGEST + 1)  # no JSON: to read it would raise
    assert shown_payloads.arguments(text, redaction) == ([f"JSON({len(text)})"], {}, "shape")
    assert shown_payloads.plain(text, redaction) == (f"JSON({len(text)})", "shape")


def test_hostile_values_are_hidden_not_raised() -> None:
    for text in (
        b'{"password":',
        b'{"password":1e999}',
        b'["password"' * 2_000,
        b'{"token":' * 3_000 + b"1" + b"}" * 3_000,
    ):
        # Since 3.13 the last one is not too deep to be read.
        shown = bytes(Redaction().json(Raw(text)))
        assert shown in (b'{"password":"***"}', b'{"token":"***"}') or shown.startswith(b'"***')
        json.loads(bytes(Redaction().as_shapes().json(Raw(text))))


# --- over HTTP


def everything(app: App) -> None:
    @app.task(name="sign-in", retry=Retry(attempts=1), labels=["blue"])
    async def sign_in(user: str, **more: Any) -> Any:
        await current().progress(0.5, f"password={PLANTED}")
        if user == "bad":
            raise ValueError(f"login failed: password={PLANTED} of {user}-{PLANTED}-x")
        return {"session": {"token": PLANTED}, "user": user, "seen": PLANTED if user == "blind" else ""}


@pytest.mark.slow
@shows("a token without a right to payloads never receives one, whichever call it makes")
async def test_payloads_are_hidden_in_every_call(session: aiohttp.ClientSession) -> None:
    app = App("memory://")
    everything(app)
    tokens = (token("all", *SCOPES), BLIND)
    url = host().add(app, Settings(tokens=tokens, max_wait=2))
    call = Client(url, session)
    ids = []
    for user in ("good", "bad"):
        body = {
            "task": "sign-in",
            "args": [user],
            "kwargs": {"password": PLANTED, "nested": {"x": [{"API_KEY": PLANTED}]}},
            "headers": {"Authorization": PLANTED, "h": "v"},
            "key": "k" + user,
        }
        status, job = await call("POST", "/v1/jobs", body, "all")
        assert (status, job["kwargs"]["password"], job["headers"]) == (201, "***", {"Authorization": "***", "h": "v"})
        ids.append(job["id"])
    worker = Worker(app, poll=0.05)
    host().run(worker.start())
    try:
        for id in ids:
            status, ended = await call("GET", f"/v1/jobs/{id}/wait?timeout=20", None, "all")
            assert ended["state"] in ("succeeded", "failed")
            text = json.dumps(ended)
            assert f"password={PLANTED}" not in text
            assert f'"{PLANTED}"' not in text
    finally:
        host().run(worker.stop(0))
    schedule = {"job": {"task": "sign-in", "args": ["blind"]}, "cron": "0 3 1 1 *"}
    await call("PUT", "/v1/schedules/s", schedule, "all")
    for method, path, body in (
        ("GET", "/v1/jobs", None),
        *(
            ("GET", f"/v1/jobs/{id}{what}", None)
            for id in ids
            for what in ("", "/wait?timeout=0", "/events", "/explain")
        ),
        ("POST", "/v1/jobs", {"task": "sign-in", "args": ["good"], "key": "kgood", "id": ids[0]}),
        ("GET", "/v1/overview", None),
        ("GET", "/v1/tasks", None),
        ("GET", "/v1/schedules", None),
        ("GET", "/v1/doctor", None),
        ("GET", "/v1/stats", None),
        ("POST", "/v1/schedules/s/trigger", None),
    ):
        status, answer = await call(method, path, body, "blind")
        assert status < 500, (path, answer)
        assert PLANTED not in json.dumps(answer), path
    _, bad = await call("GET", f"/v1/jobs/{ids[1]}", None, "blind")
    assert (bad["error"], bad["args"]) == ("ValueError", ["text(3)"])
    _, good = await call("GET", f"/v1/jobs/{ids[0]}", None, "blind")
    assert good["result"] == {"session": {"token": "text(21)"}, "user": "text(4)", "seen": "text(0)"}
    host().run(app.close())


async def test_the_worker_protocol_is_closed_to_a_token_without_payloads(session: aiohttp.ClientSession) -> None:
    """Its rows are not redacted, because a worker needs them."""
    work = Token(name="work", digest=digest("work"), scopes=SCOPES_ALL, payloads=False)  # no file can say that
    call = Client(memory_url(None, Settings(tokens=(token("all", *SCOPES), work))), session)
    await call("POST", "/v1/jobs", {"task": "t", "id": "a", "args": [PLANTED]}, "all")
    for path, body in (
        ("get", {"ids": ["a"]}),
        ("find", {}),
        ("enqueue", {"jobs": [{"id": "a", "task": "t", "payload": "[]"}]}),
        ("claim", {"worker": "w#1", "queues": [["default", 1]]}),
        ("settle_claim", {"outcomes": [], "claim": {"worker": "w#1", "queues": [["default", 1]]}}),
    ):
        status, answer = await call("POST", f"/v1/work/{path}", body, "work")
        assert (status, answer["error"]) == (403, "forbidden"), path
    _, answer = await call("POST", "/v1/work/get", {"ids": ["a"]}, "all")
    assert PLANTED in json.dumps(answer)


SCOPES_ALL = tuple(SCOPES)


async def test_the_compatible_protocols_are_closed_to_a_token_without_payloads(session: aiohttp.ClientSession) -> None:
    app = App("memory://")
    settings = Settings(tokens=(BLIND,))
    queuey = Client(host().add(app, settings, [queue_routes(Rules())]), session)
    delayed = Client(host().add(app, settings, [delayed_routes()]), session)
    for call, path in (
        (queuey, "/jobs"),
        (queuey, "/jobs/00000000-0000-0000-0000-000000000001/output"),
        (delayed, "/stats"),
    ):
        status, answer = await call("GET", path, None, "blind")
        assert status == 403, (path, answer)
    assert (await queuey("GET", "/v1/openapi.json", None, "blind"))[0] == 200
    host().run(app.close())
