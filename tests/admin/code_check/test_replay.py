"""Histories of durable jobs: `treadle jobs export` writes them, and `replay` runs changed code over them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.waiting import until
from treadle import App, BadArgument, BadOption, StepMismatch, UnknownTask, Worker, current, depends
from treadle.cli.root import treadle
from treadle.testing import drain, replay
from treadle_testkit.shows import shows

RAN: list[str] = []


def charge() -> str:
    RAN.append("charge")
    return "receipt"


def ship() -> str:
    RAN.append("ship")
    return "parcel"


def program(function: Callable[..., Any], url: str = "memory://") -> App:
    app = App(url)
    app.task(name="order")(function)
    return app


async def order(number: int, token: str = "t-1") -> None:
    receipt = await current().step("charge", charge)
    assert receipt == "receipt"
    assert await current().wait_for("approved") == "yes"
    await current().sleep(3600, name="cool-down")
    await current().step("ship", ship)


async def histories(function: Callable[..., Any], folder: Path) -> Path:
    """The file that `treadle jobs export --running` writes for a job of this function that sleeps."""
    url = f"sqlite:///{folder}/jobs.db"
    app = program(function, url)
    async with app:
        job = await app.tasks["order"].enqueue(7)
        await app.jobs.signal(job.id, "approved", "yes")
        await drain(app)
    RAN.clear()
    ended = await asyncio.to_thread(
        CliRunner().invoke, treadle, ["jobs", "export", "--running", "--url", url], catch_exceptions=False
    )
    assert ended.exit_code == 0, ended.output
    path = folder / "histories.jsonl"
    path.write_text(ended.stdout)
    return path


@shows("`replay` runs changed durable functions over exported histories without running a step")
async def test_the_same_code_follows_its_history(tmp_path: Path) -> None:
    path = await histories(order, tmp_path)
    [told] = await replay(program(order), path)
    assert (told.task, told.taken) == ("order", ("charge", "wait:approved", "sleep:cool-down"))
    assert (told.stopped_at, told.error) == ("sleep:cool-down", None)
    assert RAN == []


async def test_the_row_of_a_schedule_is_no_history(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = program(order, url)
    app.every(3600)(app.task(name="tick")(ship))
    async with app, Worker(app):
        await app.tasks["order"].enqueue(7)
        await until(lambda: RAN, "the first step")
    ended = await asyncio.to_thread(CliRunner().invoke, treadle, ["jobs", "export", "--running", "--url", url])
    assert [json.loads(line)["task"] for line in ended.stdout.splitlines()] == ["order"]


async def _renamed(number: int, token: str = "t-1") -> None:
    await current().step("charge-card", charge)


async def _removed(number: int, token: str = "t-1") -> None:
    await current().wait_for("approved")


async def _inserted(number: int, token: str = "t-1") -> None:
    await current().step("check", ship)
    await current().step("charge", charge)


async def _ends(number: int, token: str = "t-1") -> None:
    return None


async def _caught(number: int, token: str = "t-1") -> None:
    try:
        await current().step("charge-card", charge)
    except Exception:
        return


def _in_a_thread(number: int, token: str = "t-1") -> None:
    current().sync.step("charge-card", charge)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (_renamed, r"this run takes step 'charge-card' first, but the stored run took 'charge' at this point"),
        (_removed, r"takes step 'wait:approved' first, but the stored run took"),
        (_inserted, r"takes step 'check' first, but the stored run took 'charge'"),
        (_ends, r"takes no step, but the stored run took 'charge'"),
        (_caught, r"takes step 'charge-card' first"),
        (_in_a_thread, r"takes step 'charge-card' first"),
    ],
    ids=lambda each: getattr(each, "__name__", "").strip("_"),
)
async def test_other_steps_are_named(changed: Callable[..., Any], says: str, tmp_path: Path) -> None:
    path = await histories(order, tmp_path)
    with pytest.raises(StepMismatch, match=says) as caught:
        await replay(program(changed), path)
    assert caught.value.id == json.loads(path.read_text())["id"]
    assert "new task name" in str(caught.value)
    assert RAN == []


async def test_all_mismatches_are_named(tmp_path: Path) -> None:
    path = await histories(order, tmp_path)
    [line] = path.read_text().splitlines()
    other = line.replace(json.loads(line)["id"], "another-job")
    with pytest.raises(StepMismatch) as caught:
        await replay(program(_renamed), [line, other])
    assert any("another-job" in note for note in caught.value.__notes__)


async def _more(number: int, token: str = "t-1", colour: str = "red") -> None:
    await order(number, token)
    await current().step("thank", ship)


async def _branches(number: int, token: str = "t-1") -> None:
    await current().step("charge", charge)
    await current().wait_for("approved")
    raise ValueError("behind the second of three steps")


async def test_code_behind_the_recorded_steps_may_change(tmp_path: Path) -> None:
    path = await histories(order, tmp_path)
    [told] = await replay(program(_more), path)
    assert (told.stopped_at, told.error) == ("sleep:cool-down", None)
    [line] = path.read_text().splitlines()
    history = json.loads(line)
    history["steps"] = history["steps"][:2]  # as it was before the job slept
    [told] = await replay(program(_branches), [history])
    assert (told.stopped_at, told.error) == (None, "ValueError: behind the second of three steps")
    with pytest.raises(ValueError, match="behind the second"):
        await replay(program(_branches), [line])


async def _raises(number: int, token: str = "t-1") -> None:
    raise ZeroDivisionError("before its steps")


async def _bad(number: dict[str, int], token: str = "t-1") -> None: ...


async def test_other_errors_are_raised(tmp_path: Path) -> None:
    path = await histories(order, tmp_path)
    with pytest.raises(ZeroDivisionError):
        await replay(program(_raises), path)
    with pytest.raises(BadArgument, match="'number'"):
        await replay(program(_bad), path)
    with pytest.raises(UnknownTask, match="order"):
        await replay(App("memory://"), path)
    with pytest.raises(BadOption, match="line 1 is no history"):
        await replay(program(order), ["{}"])
    with pytest.raises(BadOption, match="format 99"):
        await replay(program(order), [path.read_text().replace('"format":1', '"format":99')])


async def test_dependencies_can_be_overridden_and_nothing_is_stored(tmp_path: Path) -> None:
    path = await histories(order, tmp_path)

    async def connection() -> str:
        raise AssertionError("this would connect")

    async def fake() -> str:
        return "fake"

    async def sends(number: int, token: str = "t-1", db: str = depends(connection)) -> None:
        assert db == "fake"
        await app.tasks["other"].enqueue()
        await order(number, token)

    app = program(sends, f"sqlite:///{tmp_path}/not-made.db")
    app.task(name="other")(lambda: None)
    [told] = await replay(app, path, overrides={connection: fake})
    assert told.stopped_at == "sleep:cool-down"
    assert not await asyncio.to_thread((tmp_path / "not-made.db").exists)


async def test_secrets_are_hidden_without_the_option_payloads(tmp_path: Path) -> None:
    async def login(number: int, *, token: str = "") -> None:
        await current().step("session", lambda: {"password": "hunter2", "user": "me"})
        await current().wait_for("go")

    url = f"sqlite:///{tmp_path}/jobs.db"
    app = program(login, url)
    async with app:
        await app.tasks["order"].enqueue(7, token="s3cret")
        await drain(app)
    run = CliRunner().invoke
    words = ["jobs", "export", "--running", "--url", url]
    plain = (await asyncio.to_thread(run, treadle, words)).stdout
    assert "hunter2" not in plain
    assert "s3cret" not in plain
    assert [told.taken for told in await replay(program(login), [plain])] == [("session",)]
    full = (await asyncio.to_thread(run, treadle, [*words, "--payload"])).stdout
    assert "hunter2" in full
    assert "s3cret" in full


async def _refund(number: int, amount: int = 99) -> None:
    answer = await current().approve("refund", by="group:finance", show={"amount": amount})
    assert answer.by == "ann"
    await current().sleep(3600)
    await current().approve("again")


async def _other_refund(number: int) -> None:
    await _refund(number, 100)


async def test_a_decision_is_replayed_and_other_data_is_a_mismatch(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    async with program(_refund, url) as app:
        await app.tasks["order"].enqueue(7)
        await drain(app)
        [request] = (await app.jobs.approvals()).requests
        await app.jobs.decide(request, approved=True, by="ann")
        await drain(app)
    ended = await asyncio.to_thread(
        CliRunner().invoke, treadle, ["jobs", "export", "--running", "--url", url], catch_exceptions=False
    )
    (path := tmp_path / "histories.jsonl").write_text(ended.stdout)
    assert len(await replay(program(_refund), path)) == 1
    with pytest.raises(StepMismatch):
        await replay(program(_other_refund), path)
