"""Delayed jobs without a Python function: delivered to a webhook, a command, or as a line on stdout."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from treadle import App, BadOption, Job, JobFailed, Retry, Worker
from treadle.cli.output import Stop
from treadle.contrib.delayed.delivery import Delivery, deliver
from treadle.contrib.delayed.ids import id_of, shown
from treadle.contrib.delayed.options import delivery_of
from treadle.contrib.delayed.webhook import retry_after
from treadle.errors import BadTask
from treadle_testkit.shows import shows

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """Start a receiver's server; yield its URL."""
    site = web.Application()

    async def take(request: web.Request) -> web.StreamResponse:
        return await answer(request)

    site.router.add_route("*", "/hook", take)
    runner = web.AppRunner(site, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def delivering(delivery: Delivery, **options: Any) -> AsyncIterator[Callable[..., Awaitable[Job[Any, Any]]]]:
    """A worker that delivers, and a function that sends it a job."""
    app = App("memory://")
    deliver(app, delivery)
    stub = app.stub("delayed.job", queue="delayed", retry=Retry(attempts=3, base=0.01, jitter=0))
    async with app, Worker(app, poll=0.05, **options):
        yield stub.enqueue


async def fails(job: Job[Any, Any], words: str) -> None:
    """Wait until the job has failed with these words."""
    with pytest.raises(JobFailed, match=words):
        await job.result(30)


class Hook:
    """A receiver that keeps the requests, and returns the given answers in order, the last one for ever. It does not
    answer the request for which it is given None."""

    def __init__(self, *answers: web.Response | None) -> None:
        self.answers, self.got = list(answers), list[tuple[bytes, dict[str, str]]]()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.got.append((await request.read(), dict(request.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            await asyncio.Event().wait()
            raise AssertionError
        return web.Response(status=answer.status, text=answer.text, headers=answer.headers)


def says(status: int, text: str = "", **headers: str) -> web.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return web.Response(status=status, text=text, headers=named)


@shows("a webhook receives the payload as its body and the job's id as `Idempotency-Key`")
@pytest.mark.parametrize(
    ("payload", "body", "kind"),
    [
        ("a text", b"a text", "text/plain"),
        ("", b"", "text/plain"),
        ({"a": [1, None]}, b'{"a":[1,null]}', "application/json"),
        ([1, 2], b"[1,2]", "application/json"),
        (None, b"null", "application/json"),
    ],
)
async def test_the_body_is_the_payload(payload: Any, body: bytes, kind: str) -> None:
    hook = Hook(says(204))
    async with listening(hook) as url, delivering(Delivery(how="webhook", target=(url,))) as send:
        job = await send(payload)
        assert await job.result(30) == {"status": 204}
    [(found, headers)] = hook.got
    assert (found, headers["Content-Type"].partition(";")[0]) == (body, kind)
    assert headers["Idempotency-Key"] == headers["Treadle-Job-Id"] == shown(job.id)
    assert id_of(headers["Treadle-Job-Id"]) == job.id


@shows("each attempt of a webhook has the same `Idempotency-Key` and its own number")
async def test_a_failure_counts_and_the_key_stays_the_same() -> None:
    hook = Hook(says(500, "out of\norder"), says(302, Location="/elsewhere"), says(200))
    own = (("Authorization", "Bearer x"),)
    async with listening(hook) as url, delivering(Delivery(how="webhook", target=(url,), headers=own)) as send:
        job = await send("x")
        await job.result(30)
    assert len({headers["Idempotency-Key"] for _, headers in hook.got}) == 1
    assert [headers["Treadle-Attempt"] for _, headers in hook.got] == ["1", "2", "3"]
    assert {headers["Authorization"] for _, headers in hook.got} == {"Bearer x"}


async def test_the_answer_of_the_receiver_is_the_error() -> None:
    app = App("memory://")
    async with listening(Hook(says(410, "never heard of it"))) as url:
        deliver(app, Delivery(how="webhook", target=(url,)))
        async with app, Worker(app, poll=0.05):
            job = await app.stub("delayed.job", queue="delayed", retry=Retry(attempts=1)).enqueue("x")
            await fails(job, "answered 410 Gone: never heard of it")


@pytest.mark.parametrize("status", [429, 503])
async def test_retry_after_is_later_and_counts_nothing(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treadle.contrib.delayed.webhook.SOONEST", 0.01)
    hook = Hook(*[says(status, Retry_After="0")] * 2, says(200))
    app = App("memory://")
    async with listening(hook) as url:
        deliver(app, Delivery(how="webhook", target=(url,)))
        async with app, Worker(app, poll=0.05):
            job = await app.stub("delayed.job", queue="delayed", retry=Retry(attempts=1)).enqueue("x")
            await job.result(60)
            assert (await app.jobs.get(job.id)).attempt == 1
    assert len(hook.got) == 3
    assert [headers["Treadle-Attempt"] for _, headers in hook.got] == ["1"] * 3


async def test_without_retry_after_it_is_a_failure_like_any_other() -> None:
    hook = Hook(says(503), says(200))
    async with listening(hook) as url, delivering(Delivery(how="webhook", target=(url,))) as send:
        await (await send("x")).result(30)
    assert [headers["Treadle-Attempt"] for _, headers in hook.got] == ["1", "2"]


async def test_a_silent_or_missing_receiver_is_a_failed_attempt() -> None:
    hook = Hook(None, says(200))
    async with listening(hook) as url, delivering(Delivery(how="webhook", target=(url,), timeout=0.3)) as send:
        await (await send("x")).result(30)
    assert len(hook.got) == 2
    async with delivering(Delivery(how="webhook", target=(url,))) as send:  # the receiver has stopped
        job = await send("x")
        await fails(job, "cannot be reached")


def test_retry_after_as_a_number_and_as_a_date() -> None:
    assert retry_after("17") == 17
    assert retry_after(None) is None
    assert retry_after("soon") is None
    # The receiver's clock may be wrong: what counts is the difference between its date and its own time.
    assert retry_after(formatdate(1_000_120, usegmt=True), formatdate(1_000_000, usegmt=True)) == 120
    assert retry_after(formatdate(1_000_000, usegmt=True), formatdate(1_000_120, usegmt=True)) == 0


@pytest.mark.parametrize("url", ["example.org/x", "ftp://example.org", "http://", ""])
def test_a_webhook_without_a_url_is_refused(url: str) -> None:
    with pytest.raises(BadOption, match="webhook"):
        deliver(App("memory://"), Delivery(how="webhook", target=(url,)))


def test_a_second_handler_of_an_app_is_refused() -> None:
    app = App("memory://")

    @app.delayed_handler
    async def handle(payload: Any) -> None: ...

    with pytest.raises(BadTask):
        deliver(app, Delivery())


# --- commands


def command(folder: Path, code: str) -> Delivery:
    file = folder / "handle.py"
    file.write_text(code)
    return Delivery(how="command", target=(sys.executable, str(file)))


@pytest.mark.parametrize(("payload", "expected"), [("tëxt", "tëxt"), ({"a": 1}, '{"a":1}'), ("", "")])
async def test_a_command_gets_the_payload_and_its_output_is_the_result(
    tmp_path: Path, payload: Any, expected: str
) -> None:
    code = "import os, sys\nprint(os.environ['TREADLE_JOB_ID'], os.environ['TREADLE_ATTEMPT'], sys.stdin.read())"
    async with delivering(command(tmp_path, code)) as send:
        job = await send(payload)
        assert await job.result(30) == f"{shown(job.id)} 1 {expected}".strip()


async def test_an_exit_code_is_a_failure_with_the_output_of_the_command(tmp_path: Path) -> None:
    code = (
        "import os, sys\nif os.environ['TREADLE_ATTEMPT'] == '1':\n"
        "    sys.stderr.write('not today')\n    sys.exit(3)\nprint('done')"
    )
    async with delivering(command(tmp_path, code)) as send:
        assert await (await send("x" * 1_000_000)).result(30) == "done"  # the command need not read its input
    code = "import sys\nsys.stderr.write('never')\nsys.exit(3)"
    async with delivering(command(tmp_path, code)) as send:
        job = await send("x")
        await fails(job, "exit code 3: never")


@pytest.mark.parametrize("words", [(), ("no-such-program-at-all",)])
def test_a_command_that_is_not_there(words: tuple[str, ...]) -> None:
    with pytest.raises(BadOption, match="command"):
        deliver(App("memory://"), Delivery(how="command", target=words))


@shows("a job without a target is printed as a line of JSON")
async def test_a_job_without_a_target_is_printed_as_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    async with delivering(Delivery()) as send:
        job = await send({"a": 1})
        await job.result(30)
    found = json.loads(capfd.readouterr().out)
    assert (found["jobId"], found["payload"]) == (shown(job.id), {"a": 1})
    assert found["pickupTime"] >= found["dueTime"]


# --- what a sender may write, and what a receiver may do with it


@pytest.mark.parametrize("hostile", ["a[$(touch pwned)]", "nan", "-inf", "é"])
async def test_a_due_time_of_a_sender_is_a_number_or_is_left_out(hostile: str) -> None:
    """In bash, `$((TREADLE_DUE_TIME + 1))` would execute the text in the brackets."""
    app = App("memory://")
    deliver(app, Delivery(how="command", target=("printenv", "TREADLE_DUE_TIME")))
    async with app, Worker(app, poll=0.05):
        job = await app.stub("delayed.job", queue="delayed", headers={"dueTime": hostile}).enqueue("x")
        assert abs(float(await job.result(30)) - app._core.now()) < 60


async def test_an_id_of_a_sender_is_percent_coded() -> None:
    app = App("memory://")
    deliver(app, Delivery(how="command", target=("printenv", "TREADLE_JOB_ID")))
    async with app, Worker(app, poll=0.05):
        job = await app.stub("delayed.job", queue="delayed", id="order:7@x").enqueue("x")
        assert await job.result(30) == "order%3A7%40x"


async def test_a_command_gets_no_credentials_but_those_that_were_named(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = (
        "TREADLE_TOKEN",
        "treadle_token",
        "Redis_Password",
        "TREADLE_URL",
        "TREADLE_WEBHOOK",
        "REDIS_HOST",
        "PGPASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "DATABASE_URL",
    )
    for name in secret:
        monkeypatch.setenv(name, f"planted-{name}")
    monkeypatch.setenv("OWN_SETTING", "planted-mine")
    app = App("memory://")
    deliver(app, Delivery(how="command", target=("env",), environment=("PGPASSWORD",)))
    async with app, Worker(app, poll=0.05):
        found = await (await app.stub("delayed.job", queue="delayed").enqueue("x")).result(30)
    assert sorted(line for line in found.splitlines() if "planted" in line) == [
        "OWN_SETTING=planted-mine",
        "PGPASSWORD=planted-PGPASSWORD",
    ]


@pytest.mark.parametrize(
    "url", ["http://u:hunter2@h:99999/x", "ftp://u:hunter2@h", "http://u:hunter2@[::1/x", "http://u:hun#ter2@h/"]
)
def test_a_webhook_that_cannot_be_used_is_named_without_its_secrets(url: str) -> None:
    with pytest.raises(BadOption) as caught:
        deliver(App("memory://"), Delivery(how="webhook", target=(url,)))
    assert "ter2" not in str(caught.value)


async def test_a_redirect_of_a_receiver_is_named_and_not_followed() -> None:
    hook = Hook(says(307, Location="http://127.0.0.1:1/in?key=hidden"))
    app = App("memory://")
    async with listening(hook) as url:
        deliver(app, Delivery(how="webhook", target=(url,)))
        async with app, Worker(app, poll=0.05):
            job = await app.stub("delayed.job", queue="delayed", retry=Retry(attempts=1)).enqueue("x")
            await fails(job, r"a redirect to http://127.0.0.1:1/in\?key=\*\*\*, which Treadle does not follow")


def test_a_webhook_and_its_headers_are_read_from_files(tmp_path: Path) -> None:
    """Arguments are visible in process lists."""
    hook, headers = tmp_path / "hook", tmp_path / "headers"
    hook.write_text("https://u:pw@example.org/x\n")
    headers.write_text("# for the receiver\nAuthorization: Bearer x\n\nX-Key: y\n")
    given = {
        "webhook": f"@{hook}",
        "headers": (f"@{headers}", "X-Open: z"),
        "command": None,
        "deliver_timeout": None,
        "command_env": (),
    }
    found = delivery_of(given)
    assert found is not None
    assert found.target == ("https://u:pw@example.org/x",)
    assert found.headers == (("Authorization", "Bearer x"), ("X-Key", "y"), ("X-Open", "z"))
    for wrong in ("Authorization Bearer hunter2", f"@{tmp_path}/none", "X: hunter2\x1b"):
        with pytest.raises(Stop) as caught:
            delivery_of({**given, "headers": (wrong,)})
        assert "hunter2" not in caught.value.text
