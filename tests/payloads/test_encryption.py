"""Encrypted texts: a planted secret is in no storage, keys can be replaced, and nothing is read as garbage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.fixtures import LASTING, a_url
from tests.served import host
from treadle import App, BadOption, JobFailed, Keys, Retry, Worker, current, flow
from treadle.admin.stored_values import arguments, value
from treadle.core.model import NewJob, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.core.stored_text import sealed
from treadle.errors import error_line
from treadle.serialization.encryption import UnknownKey
from treadle.server import Settings
from treadle.storage import connect
from treadle.storage.memory import MemoryStorage
from treadle.storage.payloads import PayloadStorage
from treadle.testing import drain
from treadle_testkit.shows import shows

PLANTED = "hunter2-CORRECT-horse"
OLD, NEW = Keys.make("2026a"), Keys.make("2026b")


@pytest.fixture(params=LASTING)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with a_url(request.param, tmp_path) as url:
        yield url


def declared(app: App) -> tuple[Any, Any]:
    @app.task(name="work", retry=Retry(attempts=1))
    async def work(text: str, how: str = "") -> str:
        run = current()
        await run.progress(0.5, f"half of {text}")
        await run.step("one", lambda: text)
        await run.step("say", run.stream("words").write, text[:1_000])
        logging.getLogger("shop").error("works with %s", text[:1_000])
        if how == "signal":
            return str(await run.wait_for("go"))
        if how == "fail":
            raise ValueError(f"cannot {text}")
        return text + "!"

    @app.task(name="parent")
    async def parent(text: str) -> object:
        return flow(work.job(text), work.job(text * 2), reduce="list")

    return work, parent


async def texts_of(storage: Any) -> str:
    """All that the storage has, as it has it."""
    found, cursor = list[Record](), None
    while True:
        page = await storage.find(Query(limit=500, cursor=cursor))
        found += page.records
        cursor = page.cursor
        if cursor is None:
            return repr(found)


@shows("With keys, arguments, results, steps, signals, progress and errors are in no file and no row in plain text")
async def test_a_planted_secret_is_in_no_storage(url: str, tmp_path: Path) -> None:
    keys = Keys(OLD)
    async with App(url, keys=keys, blobs=tmp_path / "blobs", offload=2_000) as app:
        work, parent = declared(app)
        ended, failed, waits = [await work.enqueue(PLANTED, how) for how in ("", "fail", "signal")]
        large, family = await work.enqueue(PLANTED * 500), await parent.enqueue(PLANTED)
        async with Worker(app, capture_logs="INFO"):
            await app.jobs.signal(waits, "go", PLANTED)
            assert await ended.result(20) == PLANTED + "!"
            assert await waits.result(20) == PLANTED
            assert await large.result(20) == PLANTED * 500 + "!"
            assert sorted(await family.workflow.result(20)) == sorted([PLANTED + "!", PLANTED * 2 + "!"])
            with pytest.raises(JobFailed, match=PLANTED):
                await failed.result(20)
        row = await app.jobs.get(ended)
        assert row.progress_text == f"half of {PLANTED}"
        history = await app.jobs.history(failed)
        assert PLANTED in (history.attempts[-1].error or "")
        assert history.steps[0].value == PLANTED
        assert await app.jobs.stream(failed, "words") == [PLANTED]
        [line] = await app.jobs.stream(failed, "log")
        assert line["text"] == f"works with {PLANTED}"
    bare = connect(url)
    await bare.open()
    try:
        assert PLANTED not in await texts_of(bare)
        [row] = await bare.get([failed.id])
        assert row is not None
        assert error_line(row.error) == "encrypted (key 2026a)"
        assert arguments(row.job.payload) == (("encrypted (key 2026a)",), {})
        assert value(row.note) == "encrypted (key 2026a)"
        assert row.progress_text == "encrypted (key 2026a)"
    finally:
        await bare.close()
    for path in [each for each in tmp_path.rglob("*") if each.is_file()]:  # noqa: ASYNC240
        assert PLANTED.encode() not in path.read_bytes(), path


@shows("The newest key encrypts, and every key decrypts; a job whose key a worker lacks waits for another worker")
async def test_keys_are_replaced_one_deploy_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    old, both, new = (App(storage=storage, keys=keys) for keys in (Keys(OLD), Keys(NEW, OLD), Keys(NEW)))
    bare = App(storage=storage)
    for app in (old, both, new, bare):
        declared(app)
    async with old, both, new, bare:
        first = await old.find_task("work").enqueue(PLANTED)
        second = await both.find_task("work").enqueue(PLANTED)
        stored = [sealed(row.job.payload) for row in await storage.get([first.id, second.id]) if row]
        assert [each.key for each in stored if each] == ["2026a", "2026b"]
        for app, key in ((old, "2026b"), (bare, "2026b")):
            caplog.clear()
            released = asyncio.Event()
            app.on("deferred")(lambda event, released=released: released.set())
            async with Worker(app):
                await released.wait()
            assert f"encrypted with the key '{key}', which App(keys=...) here does not have" in caplog.text
            await new.jobs.run_now(second)
        async with Worker(new):
            assert await (await new.jobs.handle(second)).result(20) == PLANTED + "!"
        assert await (await both.jobs.handle(first)).result(20) == PLANTED + "!"  # `old` has run it
        assert (await both.jobs.get(second)).attempt == 1


async def test_a_ciphertext_of_another_job_fails_and_is_never_garbage() -> None:
    storage = MemoryStorage()
    async with App(storage=storage, keys=Keys(OLD)) as app:
        work, _ = declared(app)
        victim = await work.enqueue(PLANTED)
        [row] = await storage.get([victim.id])
        assert row is not None
        await storage.enqueue([replace(row.job, id="swapped", root=None)])
        broken = row.job.payload.replace(sealed(row.job.payload).text[:4], "AAAA")  # type: ignore[union-attr]
        await storage.enqueue([NewJob(id="broken", task="work", payload=broken)])
        await drain(app)
        for id in ("swapped", "broken"):
            ended = await app.jobs.get(id)
            assert ended.state == "failed"
            assert "belongs to another job" in error_line(ended.error)
        [child] = await storage.get([victim.id])
        assert child is not None
        assert (await app.jobs.get(victim)).result == f'"{PLANTED}!"'
        with pytest.raises(UnknownKey):
            Keys(NEW).open(sealed(row.job.payload), victim.id, "payload")  # type: ignore[arg-type]


async def test_a_repeated_call_is_a_repetition() -> None:
    """The encryption is deterministic, because storages compare texts."""
    async with App("memory://", keys=Keys(OLD)) as app:
        storage = app.storage
        assert isinstance(storage, PayloadStorage)
        job = NewJob(id="one", task="work", payload='["a"]', nonce="n")
        assert [(await storage.enqueue([job]))[0].job, (await storage.enqueue([job]))[0].job] == [job, job]
        [plain] = await storage.storage.get(["one"])
        assert plain is not None
        assert sealed(plain.job.payload)
        done = Outcome(id="one", version=plain.version, state=State.SUCCEEDED, result='"r"', error="e")
        assert [each.status for each in await storage.settle([done])] == ["applied"]
        assert [each.status for each in await storage.settle([done])] == ["applied"]


async def test_people_see_the_key_and_not_the_text_without_it() -> None:
    storage = MemoryStorage()
    async with App(storage=storage, keys=Keys(OLD)) as app:
        work, _ = declared(app)
        job = await work.enqueue(PLANTED, "fail")
        async with Worker(app):
            await job.ended(20)
    import aiohttp

    for served, seen in ((App(storage=storage), False), (App(storage=storage, keys=Keys(OLD)), True)):
        declared(served)
        place = host().add(served, Settings())
        async with aiohttp.ClientSession() as session:
            for path in ("", "/history", "/explain"):
                async with session.get(f"{place}/v1/jobs/{job.id}{path}") as answer:
                    text = await answer.text()
                    assert answer.status == 200
                    assert (PLANTED in text) == seen, text
                    if not path:
                        assert ("encrypted (key 2026a)" in text) != seen
            async with session.get(f"{place}/v1/failures") as answer:
                assert (PLANTED in await answer.text()) == seen


@pytest.mark.parametrize("wrong", ["", "a", "a:", "a:AAAA", ":" + "A" * 88, "a b:" + "A" * 88, 3])
def test_a_wrong_key_is_never_shown(wrong: Any) -> None:
    with pytest.raises(BadOption, match="64 bytes") as caught:
        Keys(wrong)
    assert "AAAA" not in str(caught.value)


def test_keys_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_KEYS", f"{NEW}, {OLD}")
    keys = Keys.from_environment()
    assert (keys.newest, keys.names, repr(keys)) == ("2026b", ("2026b", "2026a"), "<Keys 2026b, 2026a>")
    with pytest.raises(BadOption, match="two keys have the id"):
        Keys(OLD, OLD)
    monkeypatch.delenv("TREADLE_KEYS")
    with pytest.raises(BadOption, match="TREADLE_KEYS"):
        Keys.from_environment()
    with pytest.raises(BadOption, match="at least one"):
        Keys()
    with pytest.raises(BadOption, match="id of 1 to 64"):
        Keys.make("a:b")
