"""The output for operators: the summary of an error, its traceback in the log, the steps of a job, a moved storage."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import Spy, presences
from treadle import App, Retry, Worker, current
from treadle.cli.root import run
from treadle.contrib.delayed.ids import shown
from treadle.storage import connect
from treadle.worker.logs import Json, Plain

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder. Return its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TREADLE_URL", raising=False)

    def call(*args: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(args)
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def logged() -> Iterator[Callable[[logging.Formatter], io.StringIO]]:
    """Log through a handler with that formatter. Return what it wrote."""
    added: list[logging.Handler] = []

    def listen(formatter: logging.Formatter) -> io.StringIO:
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        handler.setFormatter(formatter)
        logging.getLogger("treadle").addHandler(handler)
        added.append(handler)
        return stream

    yield listen
    for handler in added:
        logging.getLogger("treadle").removeHandler(handler)


def failing(app: App) -> Any:
    @app.task(name="fail", retry=Retry(attempts=1))
    def fail() -> None:
        error = ValueError("no such order\nsee the manual")
        error.add_note("while handling order 7")
        raise error

    return fail


def test_lists_and_explain_show_the_first_line_of_an_error(cli: Run) -> None:
    app = App("sqlite:///treadle.db")
    fail = failing(app)
    id = _run(app, fail)
    for words in (("jobs", "list"), ("jobs", "explain", id)):
        code, out, _ = cli(*words)
        assert code == 0
        assert "ValueError: no such order" in out
        assert "order 7" not in out
    assert "while handling order 7" in cli("jobs", "show", id)[1]


def _run(app: App, task: Any) -> str:
    async def work() -> str:
        async with app, Worker(app):
            job = await task.enqueue()
            await job.ended(30)
        return str(job.id)

    return asyncio.run(work())


@pytest.mark.parametrize("formatter", [Plain(), Json(), logging.Formatter("%(message)s")])
def test_the_log_of_a_failure_has_its_traceback(
    cli: Run, logged: Callable[[logging.Formatter], io.StringIO], formatter: logging.Formatter
) -> None:
    app = App("sqlite:///treadle.db")
    stream = logged(formatter)
    _run(app, failing(app))
    text = stream.getvalue()
    if isinstance(formatter, Json):
        [line] = [json.loads(each) for each in text.splitlines() if "failed" in each]
        assert line["text"] == "fail failed: ValueError: no such order"
        text = line["error"]
    else:
        assert "fail failed: ValueError: no such order" in text
    assert "Traceback (most recent call last):" in text
    assert "raise error" in text
    assert "while handling order 7" in text


def test_each_event_has_a_template_of_its_own(cli: Run) -> None:
    """Error trackers that read the log group its lines by their template."""
    app = App("sqlite:///treadle.db")
    seen: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = seen.append  # type: ignore[method-assign]
    logging.getLogger("treadle").addHandler(handler)
    _run(app, failing(app))
    logging.getLogger("treadle").removeHandler(handler)
    assert [each.msg for each in seen if each.levelno == logging.ERROR] == ["%s failed: %s"]


def test_the_runs_of_a_job_are_shown_and_their_log_lines_followed(cli: Run) -> None:
    app, log = App("sqlite:///treadle.db"), logging.getLogger("shop")
    log.setLevel(logging.INFO)

    @app.task(retry=Retry(attempts=2, base=0))
    def charge() -> None:
        log.info("order 7, attempt %d", current().attempt)
        if current().attempt == 1:
            raise ValueError("no such card")

    async def work() -> str:
        async with app, Worker(app, name="w", capture_logs="info"):
            job = await charge.enqueue()
            await job.ended(30)
        return str(job.id)

    id = asyncio.run(work())
    text = cli("jobs", "show", id)[1]
    first, second = text[text.index("1 retrying") :].splitlines()[:2]
    assert first.startswith("1 retrying, took ")
    assert first.endswith("on w, again after 0.0 s: ValueError: no such card")
    assert second.lstrip().startswith("2 succeeded, took ")
    runs = json.loads(cli("jobs", "show", id, "--json")[1])["runs"]
    assert [(run["attempt"], run["outcome"], run["worker"]) for run in runs] == [
        (1, "retrying", "w"),
        (2, "succeeded", "w"),
    ]
    lines = [json.loads(line)["value"] for line in cli("jobs", "follow", id, "--json")[1].splitlines()]
    assert [(line["run"], line["text"]) for line in lines] == [(1, "order 7, attempt 1"), (2, "order 7, attempt 2")]


def test_the_steps_of_a_durable_job_are_shown(cli: Run) -> None:
    app = App("sqlite:///treadle.db")

    @app.task(name="release", retry=Retry(attempts=1))
    async def release() -> None:
        await current().step("prepare", lambda: 1)
        await current().step("build", lambda: 2)

    id = _run(app, release)
    code, out, _ = cli("jobs", "show", id)
    assert code == 0
    [line] = [line for line in out.splitlines() if line.startswith("steps")]
    assert line.split(maxsplit=1)[1] == "prepare (done), build (done)"
    assert json.loads(cli("jobs", "show", id, "--json")[1])["steps"] == {"prepare": "done", "build": "done"}


def test_every_command_reports_that_a_storage_was_moved(cli: Run) -> None:
    old, new = "sqlite:///old.db", "sqlite:///new.db"
    assert cli("enqueue", "mail", "--url", old)[0] == 0
    assert cli("storage", "move", old, new)[0] == 0
    for words in (("jobs", "list"), ("queues", "list"), ("queues", "stats"), ("queues", "workers"), ("limits", "list")):
        code, _, err = cli(*words, "--url", old)
        assert code == 0
        assert f"{old} was moved to {new}" in err
        assert "was moved" not in cli(*words, "--url", new)[2]
    code, out, _ = cli("doctor", "--url", old)
    assert code == 1
    assert f"{old} was moved to {new}" in out


def test_the_job_id_of_the_delayed_protocol_is_an_id_for_every_command(cli: Run) -> None:
    app = App("sqlite:///treadle.db")
    id = _run(app, failing(app))
    short = shown(id)
    assert json.loads(cli("jobs", "show", short, "--json")[1])["id"] == id
    assert "ValueError" in cli("jobs", "explain", short.upper())[1]
    assert cli("jobs", "retry", short)[:2] == (0, "reopened 1 job\n")
    assert cli("jobs", "cancel", short)[:2] == (0, "cancelled 1 job\n")
    assert cli("jobs", "delete", "0" * 26)[0] == 1


def test_a_chosen_id_takes_precedence_over_a_delayed_one(cli: Run) -> None:
    id = "01m81y0000000000000000000z"
    assert cli("enqueue", "mail", "--id", id)[0] == 0
    assert json.loads(cli("jobs", "show", id, "--json")[1])["id"] == id


@pytest.mark.parametrize("group", ["queues", "limits", "schedules"])
def test_a_group_without_a_command_lists_and_takes_the_options_of_its_list(cli: Run, group: str) -> None:
    assert cli("storage", "migrate", "--url", "sqlite:///other.db")[0] == 0
    listed = cli(group, "list", "--url", "sqlite:///other.db", "--json")
    assert (listed[0], json.loads(listed[1])) == (0, [])
    assert cli(group, "--url", "sqlite:///other.db", "--json") == listed
    assert cli(group)[0] == 3  # no database here
    assert "pause" in cli(group, "--help")[1]


def test_an_error_of_a_mistyped_module_names_the_nearest(cli: Run, tmp_path: Path) -> None:
    for name in ("alpha", "beta", "gamma", "delta", "eta", "tasks"):
        (tmp_path / f"{name}.py").write_text("")
    code, _, err = cli("jobs", "list", "--app", "taks:app")
    assert code == 2
    assert "did you mean 'tasks'?" in err


def test_doctor_names_a_task_that_no_worker_of_its_queue_has(cli: Run) -> None:
    assert cli("enqueue", "mail.send")[0] == 0
    app = App(storage=(spy := Spy(connect("sqlite:///treadle.db"))))

    async def beside_a_worker() -> tuple[int, str, str]:
        async with app, Worker(app):
            await spy.until(lambda: presences(spy), "the worker's first heartbeat")
            return await asyncio.to_thread(cli, "doctor")

    assert (
        "1 job of task 'mail.send' in queue 'default', which none of its workers has"
        in asyncio.run(beside_a_worker())[1]
    )
