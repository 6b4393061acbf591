"""Secrets in messages, answers and published values: no history and no answer of a server shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp

from tests.kit import work
from tests.served import host
from treadle import App, Retry, current
from treadle.server import Settings

SECRET = "4929-CORRECT-horse"


def an_app(url: str) -> App:
    app = App(url, redact=["iban"])

    @app.task(name="pay", redact=["pin"], retry=Retry(attempts=1))
    async def pay(token: str) -> None:
        here = current()
        await here.wait_for("iban")
        await here.receive("pin")
        ask = await here.receive_ask("pin")
        await here.publish("pin", ask.value)
        await ask.answer({"pin": ask.value, "shown": "visible"})
        await here.wait_for("end")

    return app


async def test_a_history_hides_values_of_messages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = an_app(url)
    served = host().add(an_app(url), Settings())
    async with app, aiohttp.ClientSession() as session:

        async def get(path: str) -> str:
            async with session.get(f"{served}/v1/jobs/{job.id}/{path}") as answer:
                assert answer.status == 200
                return await answer.text()

        job = await app.find_task("pay").enqueue(SECRET)
        await app.jobs.signal(job, "iban", SECRET)
        await app.jobs.send(job, "pin", SECRET)
        await app.jobs.send(job, "note", {"text": f"it has {SECRET}", "shown": "visible"})
        before = await get("history")
        hidden = await app.jobs.history(job, hide=app._core.redactor.row)
        plain = await app.jobs.history(job)
        assert SECRET not in before
        assert SECRET not in repr(hidden)
        assert "visible" in before
        values: dict[str, Any] = {one.name: one.value for one in plain.signals}
        assert (values["iban"], values["pin"]) == (SECRET, SECRET)
        assert [one.given for one in hidden.signals] == [True] * 3


async def test_answers_and_published_values_are_hidden_by_the_names_of_the_task(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = an_app(url)
    served = host().add(an_app(url), Settings())
    async with app, aiohttp.ClientSession() as session:
        job = await app.find_task("pay").enqueue("a token")
        await app.jobs.signal(job, "iban", SECRET)
        await app.jobs.send(job, "pin", SECRET)
        path = f"{served}/v1/jobs/{job.id}"
        async with work(app, concurrency=2, poll=0.05):
            async with session.post(f"{path}/ask", json={"name": "pin", "value": SECRET, "timeout": 10}) as answer:
                assert (answer.status, await answer.json()) == (200, {"value": "***"})
            async with session.get(f"{path}/value?name=pin&timeout=10") as answer:
                assert (answer.status, await answer.json()) == (200, {"value": "***"})
        row = await app.jobs.get(job)
        assert sum(SECRET in text for _, text in row.checkpoints) >= 4
        hidden = app._core.redactor.row(row)
        assert SECRET not in repr(hidden)
        kinds = {step.name: step.kind for step in (await app.jobs.history(job)).steps}
        shown = {step.name: step.kind for step in (await app.jobs.history(job, hide=app._core.redactor.row)).steps}
        assert shown == kinds
