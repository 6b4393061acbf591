"""Planted secrets in every answer of the HTTP API, in searches, and in what is sent to services that watch programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.integrations.otel.trees import Recorded
from tests.payloads.test_redaction import OTHER, PLANTED, Card, an_app, populated, url
from tests.served import host
from treadle import App, Retry, Worker, current
from treadle.cli.root import run
from treadle.integrations.sentry import TreadleIntegration
from treadle.server import Settings
from treadle_testkit.shows import shows

__all__ = ["url"]  # fixtures

ENDLESS = ("/events", "/stream", "/live")  # they answer until the client leaves


@pytest.fixture
def module(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    text = f"from tests.payloads.test_redaction import an_app\napp = an_app({url!r})\n"
    (tmp_path / "redacted_elsewhere.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return "redacted_elsewhere:app"


async def test_no_reading_command_shows_a_hidden_value(
    url: str, module: str, capfd: pytest.CaptureFixture[str]
) -> None:
    import asyncio

    ids = await populated(url)
    calls = [
        ["jobs", "export"],
        ["jobs", "list", "--search", "pay"],
        ["jobs", "list", "--search", "pay", "--json"],
        ["jobs", "workflows"],
        ["jobs", "workflow", ids[1]],
        ["jobs", "workflow", ids[1], "--json"],
        ["storage", "audit", "list"],
        ["queues", "plan", "default"],
        ["doctor"],
        ["queues", "stats"],
        ["queues", "--json"],
        ["schedules"],
        ["top", "--times", "1"],
        ["jobs", "explain", ids[-1], "--eta"],
        ["jobs", "explain", ids[1], "--eta"],
        ["jobs", "explain", ids[1], "--eta", "--json"],
        ["storage", "keys", "used", "--json"],
    ]
    for call in calls:
        assert await asyncio.to_thread(run, [*call, "--app", module]) in (0, 1), (call, capfd.readouterr())
        out, err = capfd.readouterr()
        assert PLANTED not in out + err, call
        assert OTHER not in out + err, call


@shows("No answer of the HTTP API shows a hidden value, and a search does not find one")
async def test_no_answer_of_the_api_shows_a_hidden_value(url: str) -> None:
    ids = await populated(url)
    served = host().add(an_app(url), Settings())
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{served}/v1/openapi.json") as answer:
            described = await answer.json()
        paths = [path for path, verbs in described["paths"].items() if "get" in verbs and not path.endswith(ENDLESS)]
        assert len(paths) > 15
        read = 0
        for path in paths:
            names = {"id": ids, "name": ["default", "pay"], "queue": ["default"], "task": ["pay"], "key": ["default"]}
            for value in ids if "{id}" in path else ["default", "pay"] if "{" in path else [""]:
                full = path
                for name in names:
                    full = full.replace(f"{{{name}}}", value)
                if "{" in full:
                    continue
                async with session.get(
                    served + full, params={"timeout": 0} if full.endswith("/wait") else {}
                ) as answer:
                    text = await answer.text()
                read += answer.status == 200
                assert PLANTED not in text, full
                assert OTHER not in text, full
        assert read > 20
        for secret in (PLANTED, OTHER, PLANTED[:9]):
            async with session.get(f"{served}/v1/jobs", params={"q": secret}) as answer:
                found = await answer.json()
            assert found["jobs"] == [], secret


# --- services that watch programs


def failing(app: App) -> Any:
    @app.task(name="charge", redact=["iban"], retry=Retry(attempts=1))
    async def charge(iban: str, card: Card, password: str) -> None:
        copied = [iban, {"nested": card.number}]
        with pytest.raises(ValueError, match="step"):
            await current().step("odd", lambda: refused(password))
        sentry_sdk.add_breadcrumb(message=f"copied {copied}")
        raise ValueError(f"card {card.number} of {iban}: {password}")

    return charge


def refused(word: str) -> None:
    raise ValueError(f"step with {word}")


async def charged(app: App, charge: Any) -> None:
    async with app, Worker(app):
        await (await charge.enqueue(OTHER, Card("ada", PLANTED), PLANTED + "2")).ended(20)


@shows("OpenTelemetry spans and Sentry events of a failed job have no hidden value of its arguments")
async def test_no_span_shows_a_hidden_value() -> None:
    app, recorded = App("memory://", redact=["card.number"]), Recorded()
    recorded.on(app)
    await charged(app, failing(app))
    texts = [span.to_json() for span in recorded.spans]
    assert any("exception.message" in text for text in texts)
    for text in texts:
        assert PLANTED not in text
        assert OTHER not in text
    assert "***" in "".join(texts)


@pytest.fixture
def sent() -> Iterator[list[Any]]:
    kept: list[Any] = []

    class Keep(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            kept.extend(item.payload.json for item in envelope.items)

    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=Keep,
        default_integrations=False,
        auto_enabling_integrations=False,
        integrations=[TreadleIntegration(send_arguments=True)],
        include_local_variables=True,
    )
    yield kept
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


async def test_no_event_of_sentry_shows_a_hidden_value(sent: list[Any]) -> None:
    app = App("memory://", redact=["card.number"])
    await charged(app, failing(app))
    [event] = [each for each in sent if "exception" in each]
    assert event["exception"]["values"][0]["stacktrace"]["frames"]
    text = json.dumps(sent)
    assert "charge" in text
    assert PLANTED not in text
    assert OTHER not in text
