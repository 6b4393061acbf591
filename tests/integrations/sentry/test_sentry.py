"""Sentry and an app in this process: scopes, traces, attempts, check-ins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from tests.kit import work
from treadle import App, Retry, Sizes, current, flow
from treadle.errors import BadOption
from treadle.integrations.sentry import TreadleIntegration
from treadle.testing import HandClock, drain
from treadle_testkit.shows import shows

Kept = list[tuple[str, dict[str, Any]]]
Init = Callable[..., Kept]


@pytest.fixture
def init() -> Iterator[Init]:
    """Start a client that keeps what it would send. The integrations that patch other libraries are left out."""
    kept: Kept = []

    class Keep(Transport):
        def capture_envelope(self, envelope: Envelope) -> None:
            kept.extend((item.type, item.payload.json or {}) for item in envelope.items)

    def start(*, integration: TreadleIntegration | None = None, **options: Any) -> Kept:
        sentry_sdk.init(
            dsn="https://key@sentry.invalid/1",
            transport=Keep,
            default_integrations=False,
            auto_enabling_integrations=False,
            integrations=[integration or TreadleIntegration()],
            **options,
        )
        return kept

    yield start
    sentry_sdk.get_client().close(timeout=0)
    sentry_sdk.get_global_scope().set_client(None)


def of(kept: Kept, kind: str) -> list[dict[str, Any]]:
    return [item for found, item in kept if found == kind]


def failing(app: App) -> Any:
    @app.task(name="fails", retry=Retry(attempts=2, base=0.0))
    async def fails(word: str = "", secret: str = "") -> None:
        sentry_sdk.set_tag("mine", word)
        sentry_sdk.add_breadcrumb(message=f"with {word}")
        raise ValueError("no")

    return fails


async def test_tags_and_breadcrumbs_of_a_run_are_in_its_event_only(app: App, init: Init) -> None:
    fails = failing(app)
    kept = init()
    sentry_sdk.add_breadcrumb(message="of the process")
    async with work(app, concurrency=1):
        for word in ("one", "two"):
            await (await fails.enqueue(word)).ended(timeout=10)
    found = [
        (event["tags"]["mine"], [each["message"] for each in event["breadcrumbs"]["values"]])
        for event in of(kept, "event")
    ]
    assert found == [("one", ["with one"]), ("two", ["with two"])]
    assert "mine" not in sentry_sdk.get_isolation_scope()._tags


async def test_arguments_are_sent_only_with_the_option(app: App, init: Init) -> None:
    fails = failing(app)
    for allowed in (False, True):
        kept = init(integration=TreadleIntegration(send_arguments=allowed))
        async with work(app):
            await (await fails.enqueue("open", secret="s3cret")).ended(timeout=10)
    arguments = [event["contexts"]["treadle"].get("arguments") for event in of(kept, "event")]
    assert arguments[0] is None
    assert '"open"' in arguments[1]
    assert "***" in arguments[1]
    assert "s3cret" not in arguments[1]


async def test_every_attempt_is_sent_with_the_option(app: App, init: Init) -> None:
    fails = failing(app)
    kept = init(integration=TreadleIntegration(report="every"))
    async with work(app):
        await (await fails.enqueue()).ended(timeout=10)
    assert [(event["level"], event["contexts"]["treadle"]["attempt"]) for event in of(kept, "event")] == [
        ("warning", 1),
        ("error", 2),
    ]


async def test_a_job_belongs_to_the_trace_of_its_sender_and_a_retry_does_not(
    app: App, clock: HandClock, init: Init
) -> None:
    @app.task(name="child")
    async def child() -> None: ...

    @app.task(name="parent", retry=Retry(attempts=2, base=0.0))
    async def parent(fails: bool) -> Any:
        if fails and not attempts:
            attempts.append(1)
            raise OSError("once")
        return child.job()

    attempts: list[int] = []
    kept = init(traces_sample_rate=1.0)
    with sentry_sdk.start_transaction(name="web", op="http.server") as web:
        jobs = [await parent.enqueue(False), await parent.enqueue(True)]
        trace = web.trace_id
    async with work(app):
        for job in jobs:
            await job.workflow.result(timeout=10)
    found = of(kept, "transaction")
    assert [span["op"] for span in next(each for each in found if each["transaction"] == "web")["spans"]] == [
        "queue.publish",
        "queue.publish",
    ]
    runs = {
        (
            each["transaction"],
            each["contexts"]["trace"]["data"]["messaging.message.retry.count"],
            each["contexts"]["trace"]["status"],
            each["contexts"]["trace"]["trace_id"] == trace,
        )
        for each in found
        if each["contexts"]["trace"]["op"] == "queue.process"
    }
    assert runs == {
        ("parent", 0, "ok", True),
        ("parent", 0, "internal_error", True),
        ("parent", 1, "ok", False),
        ("child", 0, "ok", True),
        ("child", 0, "ok", False),
    }


async def test_the_baggage_of_another_tracer_is_kept(app: App, init: Init) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    init(traces_sample_rate=1.0)
    with sentry_sdk.start_transaction(name="web"):
        job = await f.options(headers={"baggage": "tenant=42,sentry-trace_id=old"}).enqueue()
        long = await f.options(headers={"baggage": "tenant=" + "4" * 990}).enqueue()
    rows = [dict(row.job.headers)["baggage"] for row in await app.storage.get([job.id, long.id]) if row is not None]
    assert rows[0].startswith("tenant=42,sentry-")
    assert "trace_id=old" not in rows[0]
    assert rows[1] == "tenant=" + "4" * 990


async def test_a_job_has_no_more_headers_than_the_app_allows(init: Init) -> None:
    """First the baggage is left out, then the trace; a flow is limited by its part with the longest headers."""
    async with App("memory://", sizes=Sizes(headers=1_000)) as app:

        @app.task(name="f")
        async def f(*results: Any) -> None: ...

        init(traces_sample_rate=1.0)
        with sentry_sdk.start_transaction(name="web"):
            jobs = [await f.options(headers={"own": "x" * size}).enqueue() for size in (100, 850, 990)]
            wide = f.options(headers={"own": "x" * 990}, id="wide").job()
            await flow(wide, f.job()).enqueue()
        rows = [row for row in await app.storage.get([*(job.id for job in jobs), "wide"]) if row is not None]
        assert [{name for name, _ in row.job.headers} - {"own"} for row in rows] == [
            {"sentry-trace", "baggage"},
            {"sentry-trace"},
            set(),
            set(),
        ]
        assert all(sum(len(name) + len(text) for name, text in row.job.headers) <= 1_000 for row in rows)


async def test_a_schedule_checks_in(app: App, clock: HandClock, init: Init) -> None:
    @app.cron("0 3 * * *", tz="Europe/Paris", name="Nightly:report")
    @app.task(retry=Retry(attempts=1))
    async def report() -> None:
        if fails:
            raise ValueError("no")

    fails: list[int] = []
    kept = init(integration=TreadleIntegration(monitor_schedules=True))
    async with work(app):
        for _ in range(2):
            await (await app.schedules.trigger("Nightly:report")).ended(timeout=10)
            fails.append(1)
    found = of(kept, "check_in")
    assert [(each["monitor_slug"], each["status"]) for each in found] == [
        ("nightly-report", "in_progress"),
        ("nightly-report", "ok"),
        ("nightly-report", "in_progress"),
        ("nightly-report", "error"),
    ]
    assert found[0]["monitor_config"] == {
        "schedule": {"type": "crontab", "value": "0 3 * * *"},
        "timezone": "Europe/Paris",
    }
    assert len({each["check_in_id"] for each in found}) == 2


async def test_without_a_client_nothing_is_added(app: App, init: Init) -> None:
    @app.task(name="f")
    async def f() -> None: ...

    init()
    sentry_sdk.get_global_scope().set_client(None)
    job = await f.enqueue()
    [row] = await app.storage.get([job.id])
    assert row is not None
    assert row.job.headers == ()


def test_a_mistyped_option() -> None:
    with pytest.raises(BadOption, match='expected "final" or "every", found \'all\''):
        TreadleIntegration(report="all")  # type: ignore[arg-type]


@shows("Sentry: hostile headers and an SDK that raises fail no call and no job")
@pytest.mark.parametrize("broken", [None, "get_traceparent", "get_current_span", "continue_trace"])
async def test_a_failure_of_the_sdk_fails_no_job(
    init: Init, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, broken: str | None
) -> None:
    """The header `baggage` of a request to the user's site reaches the run. The SDK raises for this sample rate."""
    app = App("memory://")

    @app.task(name="f", retry=Retry(attempts=1))
    async def f() -> int:
        return 7

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the SDK")

    kept = init(traces_sample_rate=0.5)
    headers = {"sentry-trace": f"{'a' * 32}-{'b' * 16}-1", "baggage": "sentry-sample_rand=NaN,sentry-sample_rate=inf"}
    if broken is not None:
        monkeypatch.setattr(sentry_sdk, broken, fail)
    async with app, work(app):
        jobs = [await f.options(headers=headers if broken is None else {}).enqueue() for _ in range(2)]
        assert [await job.result(timeout=30) for job in jobs] == [7, 7]
    assert not of(kept, "event")
    assert [record.message for record in caplog.records if "Sentry failed" in record.message] == [
        f"Sentry failed ({'enqueue' if broken and broken.startswith('get') else 'run'}); jobs are not affected, and "
        "further failures are not logged"
    ]


async def test_a_run_that_sleeps_has_not_failed(init: Init) -> None:
    app = App("memory://")

    @app.task(name="f")
    async def f() -> None:
        await current().sleep(3_600)

    kept = init(traces_sample_rate=1.0)
    async with app:
        await f.enqueue()
        await drain(app)
    assert [each["contexts"]["trace"]["status"] for each in of(kept, "transaction")] == ["ok"]
