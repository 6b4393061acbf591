"""Planted secrets: no face that people look at shows them, and workers get them as they are."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.served import host
from treadle import Abort, App, BadOption, Worker, current
from treadle.cli.root import run
from treadle.core.model import Record
from treadle.server import Settings
from treadle_testkit.shows import shows

PLANTED = "hunter2-CORRECT-horse"
OTHER = "DE02120300000000202051"
PASSED = list[Any]()


@dataclasses.dataclass
class Card:
    owner: str
    number: str


def an_app(url: str) -> App:
    app = App(url, redact=["iban", "card.number"])

    @app.task(name="pay", retry=_once())
    async def pay(iban: str, card: Card, password: str, extra: dict[str, Any] | None = None) -> dict[str, Any]:
        PASSED.append((iban, card.number, password, extra))
        run = current()
        await run.progress(0.5, f"charging {card.number}")
        await run.step("iban", lambda: iban)
        await run.step("other", lambda: {"card": {"number": card.number}, "text": f"paid with {password}"})
        logging.getLogger("shop").error("the card %s is odd", card.number)
        await run.step("say", run.stream("words").write, f"paid with {password}")
        await run.step("show", run.stream("words").write, {"iban": iban, "name": "visible"})
        if extra is not None:
            raise Abort(f"card {card.number} of {iban}: password={password}")
        return {"iban": iban, "card": {"number": card.number, "name": "visible"}, "cards": [{"secret": password}]}

    @app.task(name="named", redact=["code"], retry=_once())
    async def named(code: str) -> str:
        raise ValueError(f"bad code {code}")

    return app


def _once() -> Any:
    from treadle import Retry

    return Retry(attempts=1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def module(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The app as a module of the command line."""
    text = f"from tests.payloads.test_redaction import an_app\napp = an_app({url!r})\n"
    (tmp_path / "redacted_app.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "redacted_app:app"


async def populated(url: str) -> list[str]:
    """Run jobs with planted values, which end in every way; return their ids."""
    app = an_app(url)
    async with app:
        pay, named = app.find_task("pay"), app.find_task("named")
        card = Card("ada", PLANTED)
        jobs = [
            await pay.enqueue(OTHER, card, PLANTED),
            await pay.enqueue(OTHER, card, PLANTED, {"cvc": 1}),
            await pay.enqueue(iban=OTHER, card=card, password=PLANTED, extra={"token": PLANTED}),
            await named.enqueue(PLANTED),
        ]
        async with Worker(app, capture_logs="INFO"):
            for job in jobs:
                await job.ended(20)
        jobs.append(await pay.options(delay=1_000, headers={"authorization": PLANTED}).enqueue(OTHER, card, PLANTED))
        return [job.id for job in jobs]


@shows("Values of the names that the app and its tasks hide appear in no list, page, answer, export or log line")
async def test_no_interface_shows_a_hidden_value(
    url: str, module: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import asyncio

    ids = await populated(url)
    assert PASSED[0] == (OTHER, PLANTED, PLANTED, None)  # workers get the values

    for name, line in [(r.name, r) for r in caplog.records]:
        if name == "treadle.jobs":
            text = logging.Formatter().format(line)
            assert PLANTED not in text
            assert OTHER not in text
            assert line.exc_info is None

    calls = [["jobs", "list"], ["jobs", "list", "--json"], ["jobs", "failures"], ["jobs", "failures", "--json"]]
    for id in ids:
        calls += [["jobs", "show", id], ["jobs", "show", id, "--json"], ["jobs", "explain", id]]
    for id in ids[:3]:
        calls += [["jobs", "follow", id, "log"], ["jobs", "follow", id, "words", "--json"]]
    shown = ""
    for call in calls:
        assert await asyncio.to_thread(run, [*call, "--app", module]) == 0
        out, err = capfd.readouterr()
        assert PLANTED not in out + err, call
        assert OTHER not in out + err, call
        shown += out
    assert "visible" in shown
    assert "***" in shown
    assert await asyncio.to_thread(run, ["jobs", "show", ids[0], "--reveal", "--app", module]) == 0
    assert PLANTED in capfd.readouterr().out

    served = host().add(an_app(url), Settings())
    paths = ["/v1/jobs", "/v1/failures", "/v1/schedules", "/v1/overview", "/v1/tasks"]
    for id in ids:
        paths += [f"/v1/jobs/{id}{part}" for part in ("", "/history", "/explain", "/wait?timeout=0", "/streams")]
        paths += [f"/v1/jobs/{id}/streams/{name}" for name in ("log", "words")]
    async with aiohttp.ClientSession() as session:
        for path in paths:
            async with session.get(served + path) as answer:
                text = await answer.text()
                assert answer.status in (200, 404), (path, text)
                assert PLANTED not in text, path
                assert OTHER not in text, path

    app = an_app(url)
    async with app:
        row = await app.jobs.get(ids[1])
        assert PLANTED in (row.error or "")  # the row itself is unchanged
        hidden = app._core.redactor.row(row)
        assert isinstance(hidden, Record)
        assert json.loads(hidden.job.payload)


def test_invalid_names_to_redact_are_refused() -> None:
    for wrong in ("password", ["a..b"], [""], [3], 3):
        with pytest.raises(BadOption, match="redact"):
            App("memory://", redact=wrong)  # type: ignore[arg-type]
        with pytest.raises(BadOption, match="redact"):
            App("memory://").task(redact=wrong)(_once)  # type: ignore[arg-type,call-overload]


async def test_a_codec_of_the_user_and_unknown_tasks() -> None:
    class Hexed:
        def encode(self, value: object) -> str:
            from treadle import DefaultCodec

            return DefaultCodec().encode(value).encode().hex()

        def decode(self, text: str) -> object:
            from treadle import DefaultCodec

            return DefaultCodec().decode(bytes.fromhex(text).decode())

    async with App("memory://", codec=Hexed(), redact=["iban"]) as app:

        @app.task
        async def pay(iban: str, note: str) -> None: ...

        job = await pay.enqueue(OTHER, "fine")
        row = await app.jobs.get(job)
        shown = app._core.redactor.row(row)
        assert OTHER not in shown.job.payload
        assert "fine" in shown.job.payload
        other = await app.stub("nobody").enqueue({"iban": OTHER, "n": [1]})
        shown = app._core.redactor.row(await app.jobs.get(other))
        assert shown.job.payload == '[{"iban":"***","n":[1]}]'
