"""Labels and resources beyond the worker: claims of runners, doctor, check, and the lists of workers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner

from tests.served import host
from tests.server.test_api import Client
from treadle import App
from treadle.admin.code_check import Options, check_code
from treadle.cli.root import treadle as cli
from treadle.core.model import Presence
from treadle.core.placement import Needs
from treadle.server import Settings
from treadle.server.doctor import common
from treadle.storage.memory import MemoryStorage
from treadle_testkit.shows import shows

CLAIM = {"queues": [["default", 9]], "limit": 9}


async def claimed(call: Client, number: int, **more: Any) -> list[str]:
    status, answer = await call("POST", "/v1/work/claim", {"worker": f"r#{number}", **CLAIM, **more})
    assert status == 200, answer
    return sorted(row["job"]["task"] for row in answer["records"])


@shows("a runner sends its labels and free resources, and a claim brings only jobs that have room there together")
async def test_a_claim_of_a_runner_brings_only_jobs_that_it_can_run() -> None:
    served = App(storage=MemoryStorage())

    @served.task(name="render", requires={"gpu": ("a100", "h100")}, uses={"memory_mb": 3000})
    async def render() -> None: ...

    @served.task(name="mail")
    async def mail() -> None: ...

    url = host().add(served, Settings())
    known: dict[str, Any] = {name: [None, None] for name in ("render", "mail", "scale")}
    async with aiohttp.ClientSession() as session:
        call = Client(url, session)
        for name in ("render", "render", "render", "scale", "scale"):
            assert (await call("POST", "/v1/jobs", {"task": name}))[0] == 201
        needs = {"scale": {"requires": {"ssd": []}, "uses": {"memory_mb": 1000}}}
        assert (
            await claimed(call, 1, tasks=known, labels={"gpu": "t4"}, resources={"memory_mb": 9000}, needs=needs) == []
        )
        has: dict[str, Any] = {"tasks": known, "labels": {"gpu": "h100"}, "needs": needs}
        assert await claimed(call, 2, **has, resources={"memory_mb": 2999}) == []
        assert await claimed(call, 3, **has, resources={"memory_mb": 7000}) == ["render", "render"]
        has["labels"] = {"gpu": "a100", "ssd": ""}
        assert await claimed(call, 4, **has, resources={"memory_mb": 3500}) == ["render"], "any two need not fit"
        assert await claimed(call, 5, **has, resources={"memory_mb": 3500}) == ["scale"]
        assert await claimed(call, 6, tasks=known) == ["scale"], "a claim without labels is as before"
        odd = {"worker": "r#7", **CLAIM, "labels": {"gpu": "a100"}}
        status, answer = await call("POST", "/v1/work/claim", odd)
        assert (status, "name them" in str(answer)) == (422, True), answer
        status, answer = await call("POST", "/v1/work/claim", {**odd, "tasks": known, "resources": {"mb": -1}})
        assert (status, "expected 0 to" in str(answer)) == (422, True), answer
        both = {f"l{number}": [] if number % 2 else ["x"] for number in range(65)}  # any value, and one of some values
        wide = {**odd, "tasks": known, "needs": {"scale": {"requires": both}}}
        status, answer = await call("POST", "/v1/work/claim", wide)
        assert (status, "expected at most 64, found 65" in str(answer)) == (422, True), answer


def worker(**facts: Any) -> Presence:
    return Presence(worker="w", queues=("other",), **facts)


@shows("doctor and check name the jobs whose labels or resources no running worker has")
async def test_doctor_and_check(app: App) -> None:
    @app.task(name="render", requires={"gpu": "a100"})
    async def render() -> None: ...

    await render.enqueue()
    before = await check_code(app._core, Options())
    assert not before.findings
    await app.storage.heartbeat(worker(needs=(Needs("render", (("gpu", ("a100",)),)),)), [], 30)
    found = [each async for each in common.checks(app._core, True) if each.verdict != "ok" and each.name != "clock"]
    assert [(each.name, each.text) for each in found] == [
        ("workers", "1 job of task 'render': no running worker has label gpu=a100")
    ]
    assert "--label gpu=a100" in found[0].advice
    [finding] = (await check_code(app._core, Options())).findings
    assert (finding.level, finding.kind, finding.subject, finding.jobs) == ("note", "worker", "render", 1)
    assert finding.what.startswith("no running worker has label gpu=a100")
    await app.storage.heartbeat(worker(tasks=("render",), labels=(("gpu", "a100"),)), [], 30)
    assert not (await check_code(app._core, Options())).findings


@shows("the lists of workers show labels, resources and their use")
async def test_lists_of_workers_show_labels_and_resources() -> None:
    storage = MemoryStorage()
    served = App(storage=storage)
    url = host().add(served, Settings())
    facts = {"labels": (("gpu", "a100"), ("ssd", "")), "resources": (("memory_mb", 8192, 2048),)}
    async with App(url) as app:
        await app.storage.heartbeat(worker(needs=(Needs("t", (), (("memory_mb", 1),)),), **facts), [], 30)
        [listed] = (await app.queues.stats()).workers
        assert (listed.labels, listed.resources) == (facts["labels"], facts["resources"])

    def run(*words: str) -> str:
        answer = CliRunner().invoke(cli, ["queues", "workers", "--url", url, *words])
        assert answer.exit_code == 0, answer.output
        return answer.output

    text = await asyncio.to_thread(run)
    assert "gpu=a100, ssd" in text
    assert "memory_mb 2,048/8,192" in text
    [one] = json.loads(await asyncio.to_thread(run, "--json"))
    assert one["labels"] == {"gpu": "a100", "ssd": ""}
    assert one["resources"] == {"memory_mb": {"has": 8192, "used": 2048}}


@pytest.mark.parametrize("command", ["worker", "up"])
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--label", "gpu="], "expected a value"),
        (["--label", "gpu=a", "--label", "gpu=b"], "one value of a label"),
        (["--resource", "memory_mb=8GB"], "as in memory_mb=8192"),
        (["--resource", "gpu"], "as in memory_mb=8192"),
        (["--resource", "gpu=1", "--resource", "gpu=2"], "each resource once"),
        (["--resource", f"gpu={10**30}"], "expected 0 to"),
    ],
)
def test_invalid_labels_of_a_runner_are_refused(command: str, words: list[str], found: str) -> None:
    answer = CliRunner().invoke(cli, [command, "shop:app", *words])
    assert answer.exit_code == 2
    assert found in " ".join(answer.output.split())
