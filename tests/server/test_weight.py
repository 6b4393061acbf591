"""A large body costs no more than its bytes: its objects are counted before they are created, and it waits for room."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.served import host, memory_url
from tests.server.raw import Answer, ask
from tests.server.test_api import token
from tests.server.test_port_bounds import HOST, connected, gone, head, one, served
from treadle import App
from treadle.contrib.delayed.app import delayed_routes
from treadle.serialization import json_counts as counting
from treadle.server import Settings, long_lists
from treadle.server.errors import Refused
from treadle.server.request_body import Bodies

MIB = 2**20
LISTS = b"[]," * 400_000 + b"[]"
TEXT = json.dumps(
    json.dumps([{"a": [n, "[{,\\"]} for n in range(40_000)])
).encode()  # very many of them, within one string


def post(url: str, path: str, body: bytes) -> Answer:
    return ask(url, "POST", path, body, content_type="application/json")


class Made:
    """Counts the objects that the decoder creates from large bodies."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        from treadle.server import views

        decode = views.msgspec.json.decode

        def counting(text: Any, **more: Any) -> Any:
            self.sizes.append(len(text))
            return decode(text, **more)

        monkeypatch.setattr(views.msgspec.json, "decode", counting)


BODIES = {
    "a batch of lists": ("/v1/jobs/batch", b'{"jobs":[{"task":"t","args":[' + LISTS + b"]}]}"),
    "too many jobs": ("/v1/jobs/batch", b'{"jobs":[' + b'{"task":"t"},' * 400_000 + b'{"task":"t"}]}'),
    "raw jobs": ("/v1/work/enqueue", b'{"jobs":[' + b'{"id":"a"},' * 400_000 + b'{"id":"a"}]}'),
    "an unknown field": ("/v1/work/enqueue", b'{"x":[' + LISTS + b"]}"),
    "children": (
        "/v1/work/settle",
        b'{"outcomes":[{"id":"a","version":1,"followups":[' + b'{"id":"a"},' * 400_000 + b"]}]}",
    ),
    "values without end": ("/v1/work/enqueue", b'{"jobs":[{"id":"a","after":[' + b'"a",' * 1_010_000 + b'"a"]}]}'),
    "labels": ("/v1/jobs", b'{"task":"t","labels":[' + b'"a",' * 100_000 + b'"a"]}'),
    "ids": ("/v1/work/get", b'{"ids":[' + b'"a",' * 1_010_000 + b'"a"]}'),
    "hello": ("/v1/work/hello", b'{"x":[' + b" " * 2 * MIB + b"]}"),
    "a signal": ("/v1/jobs/a/cancel", b'{"tree":[' + LISTS + b"]}"),
    "a claim": ("/v1/work/claim", b'{"worker":"a#1","queues":[' + b'["a",1],' * 300_000 + b'["a",1]]}'),
}


@pytest.mark.parametrize("sent", BODIES.values(), ids=BODIES)
async def test_a_body_of_very_many_objects_is_refused_unread(sent: tuple[str, bytes]) -> None:
    answer = await asyncio.to_thread(post, memory_url(None), *sent)
    assert (answer.status, answer.body["error"]) in ((413, "too_many_values"), (413, "too_large"))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/work/watch", b'{"topics":[' + b'"a",' * 100_000 + b'"a"],"timeout":1}'),
        ("/v1/work/get", b'{"ids":[' + b'"a",' * 100_000 + b'"a"]}'),
        ("/v1/work/claim", b'{"worker":"a#1","queues":[' + b'["a",1],' * 10_000 + b'["a",1]]}'),
        ("/v1/work/enqueue", b'{"jobs":[' + b'{"id":"a"},' * 100_000 + b'{"id":"a"}]}'),
        ("/v1/jobs/batch", b'{"jobs":[' + b'{"task":"t"},' * 10_000 + b'{"task":"t"}]}'),
        ("/v1/jobs", b'{"task":"t","limits":[' + b'"a",' * 1_000 + b'"a"]}'),
    ],
    ids=["topics", "ids", "queues", "jobs", "a batch", "limits"],
)
async def test_lists_have_an_end(path: str, body: bytes) -> None:
    answer = await asyncio.to_thread(post, memory_url(None), path, body)
    assert (answer.status, answer.body["error"]) == (422, "wrong_shape")
    assert "length" in answer.body["message"]


async def test_the_content_of_a_text_counts_as_no_values() -> None:
    """The rows of a worker contain their arguments as text."""
    url = memory_url(None)
    body = b'{"jobs":[{"id":"a","task":"t","payload":' + TEXT + b"}]}"
    assert (await asyncio.to_thread(post, url, "/v1/work/enqueue", body)).status == 200
    answer = await asyncio.to_thread(ask, url, "GET", "/v1/jobs/a")
    assert answer.body["args"] == json.loads(json.loads(TEXT))


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [LISTS, b"1.5," * 1_000_000 + b"2", b'{"a": {"$t": 1}},' * 5_000 + b"{}"])
async def test_large_arguments_of_one_job_are_stored_unchanged(
    arguments: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Made(monkeypatch)
    url = memory_url(None)
    answer = await asyncio.to_thread(post, url, "/v1/jobs", b'{"task":"t","args":[' + arguments + b"]}")
    seen = await asyncio.to_thread(ask, url, "GET", f"/v1/jobs/{answer.body['id']}")
    assert answer.status == 201
    assert answer.body["args"] == seen.body["args"]
    if b"$t" in arguments:  # it is encoded in another way, which needs its values, and shown so
        assert seen.body["withheld"] == {"arguments": "typed"}
    else:
        assert seen.body["args"] == json.loads(b"[" + arguments + b"]")
        assert max(made.sizes, default=0) <= long_lists.SMALL
    named = await asyncio.to_thread(
        post, url, "/v1/jobs", b'{"kwargs":{"a":[' + arguments + b']},"task":"t","args":[1]}'
    )
    assert (named.status, named.body["args"]) == (201, [1])
    if b"$t" not in arguments:
        assert named.body["kwargs"] == {"a": json.loads(b"[" + arguments + b"]")}


async def test_large_arguments_are_checked() -> None:
    app = App("memory://")

    @app.task(name="known")
    def known(values: list[int]) -> None: ...

    url = host().add(app, Settings())
    large = b"1," * 90_000 + b"1"
    for body, status, word in (
        (b'{"task":"known","args":[[' + large + b"]]}", 201, None),
        (b'{"task":"known","args":[[' + large + b',"a"]]}', 422, "bad_argument"),
        (b'{"task":"known","args":[' + LISTS + b"]}", 413, "too_many_values"),
        (b'{"task":"t","args":[' + b" " * 17 * MIB + b"]}", 413, "too_large"),
        (b'{"task":"t","args":["' + b"a" * 16 * MIB + b'"]}', 422, "too_large"),
        (b'{"task":"t","args":{"a":[' + large + b"]}}", 422, "wrong_shape"),
        (b'{"task":"t","kwargs":[' + large + b"]}", 422, "wrong_shape"),
        (b'{"task":"t","args":[' + large + b",]}", 400, "malformed"),
        (b'{"task":"t","args":["\xff",' + large + b"]}", 400, "malformed"),
        (b'{"task":"t","args":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "malformed"),
        (b'{"task":"t","args":null}', 422, "wrong_shape"),
        (b'{"task":"t","kwargs":3}', 422, "wrong_shape"),
        (b'{"task":"t","args":' + b"[" * 30_000, 400, "malformed"),
    ):
        answer = await asyncio.to_thread(post, url, "/v1/jobs", body)
        assert (answer.status, answer.body.get("error")) == (status, word), body[:40]


@pytest.mark.slow
async def test_a_large_delayed_payload_is_stored_unchanged() -> None:
    url = memory_url(None, protocols=[delayed_routes()])
    answer = await asyncio.to_thread(post, url, "/", b'{"payload":[' + LISTS + b'],"dueTime":4000000000}')
    assert answer.status == 200
    seen = await asyncio.to_thread(ask, url, "GET", "/v1/jobs?task=delayed.job")
    assert seen.body["jobs"][0]["args"] == [json.loads(b"[" + LISTS + b"]")]
    for due in (b"[" + LISTS + b"]", b'"' + b"1" * 200 + b'"'):
        answer = await asyncio.to_thread(post, url, "/", b'{"payload":1,"dueTime":' + due + b"}")
        assert answer.status in (400, 413)


def _counted(content: bytes) -> tuple[int, int]:
    pieces = list(counting.exact(content))
    return sum(each for each, _ in pieces), sum(each for _, each in pieces)


def _true(value: Any) -> tuple[int, int]:
    """The containers and commas that `json.dumps` writes for this value."""
    if not isinstance(value, list | dict):
        return 0, 0
    inner = [_true(each) for each in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(a for a, _ in inner), max(0, len(value) - 1) + sum(b for _, b in inner)


WORDS = st.text(alphabet='ab"\\[]{},:é\n', max_size=40)
VALUES = st.recursive(
    WORDS | st.integers() | st.none(),
    lambda some: st.lists(some, max_size=5) | st.dictionaries(WORDS, some, max_size=5),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(VALUES, st.integers(1, 17), st.booleans())
def test_values_are_counted_across_the_ends_of_pieces(value: Any, piece: int, plain: bool) -> None:
    before = counting.PIECE
    counting.PIECE = piece
    try:
        assert _counted(json.dumps(value, ensure_ascii=plain).encode()) == _true(value)
    finally:
        counting.PIECE = before


# --- room


async def test_large_bodies_of_one_caller_wait_for_each_other_and_not_for_those_of_others() -> None:
    bodies = Bodies(MIB)
    one, two, three, other = ({"treadle.caller": name} for name in ("a", "a", "a", "b"))
    await bodies.enter(one, MIB)
    await bodies.enter(two, MIB)
    waiting = asyncio.create_task(bodies.enter(three, MIB))
    await asyncio.sleep(0)
    await bodies.enter(other, MIB)
    assert not waiting.done()
    await bodies.enter({"treadle.caller": "a"}, 1_000)  # a small body does not wait
    bodies.leave(two)
    await waiting
    for each in (one, three, other):
        bodies.leave(each)
    assert not bodies._held


async def test_a_body_whose_client_leaves_while_it_waits_holds_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = Bodies(MIB)
    held: list[dict[str, Any]] = [{"treadle.caller": f"{number % 4}"} for number in range(8)]
    for each in held:
        await bodies.enter(each, MIB)
    last = asyncio.create_task(bodies.enter({"treadle.caller": "x"}, MIB))
    await asyncio.sleep(0)
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    monkeypatch.setattr("treadle.server.request_body.PATIENCE", 0)
    with pytest.raises(Refused, match="busy with other large bodies"):
        await bodies.enter({"treadle.caller": "y"}, MIB)
    for each in held:
        bodies.leave(each)
    assert not bodies._held
    assert not bodies._waiting


async def test_half_a_large_body_frees_its_room() -> None:
    tokens = (token("one", "enqueue"),)
    sent = {**HOST, "Content-Type": "application/json", "Authorization": "Bearer one", "Content-Length": str(MIB)}
    whole = b'{"task":"t","args":["' + b"a" * (MIB - 40) + b'"]}'

    def talk() -> int:
        for _ in range(4):  # more bodies than there is room for
            with connected(serving.url) as found:
                found.sendall(head("POST", "/v1/jobs", sent) + b"{" * 100_000)
        with connected(serving.url) as found:
            found.sendall(head("POST", "/v1/jobs", {**sent, "Content-Length": str(len(whole))}) + whole)
            return one(found).status

    async with served(settings=Settings(tokens=tokens, max_body=MIB)) as serving:
        assert await asyncio.to_thread(talk) == 201
        await gone(serving, 1)
