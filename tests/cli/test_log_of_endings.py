"""The log lines of `treadle worker` about each kind of failed run, as text and as JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.execution.run_endings import CASES, RETRY, SIZES
from tests.kit import work
from treadle import App, Retry
from treadle.worker import logs
from treadle.worker.logs import Json, Named, Plain, indented
from treadle_testkit.shows import shows

RAISED = {"failed": "ERROR", "expired": "ERROR", "retrying": "WARNING"}
WITHOUT_EXCEPTION = ("JobFailed", "JobExpired", "Abort")  # no code raised these, or on purpose with its own message
FAILING = {name: calls for name, (_, calls) in CASES.items() if calls[-1].partition(" ")[0] in ("failed", "expired")}


class Lines(logging.Handler):
    """Keeps each record of `treadle.jobs`, with its line in both formats."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[logging.LogRecord, str, dict[str, str]]] = []
        self.addFilter(Named("w"))

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record, Plain().format(record), json.loads(Json().format(record))))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, log = Lines(), logging.getLogger("treadle.jobs")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


@pytest.mark.parametrize("name", FAILING)
async def test_a_failure_has_its_template_and_its_exception(lines: Lines, name: str) -> None:
    """One record for each failed run; the template depends on the event only, so that trackers can group by it."""
    async with App("memory://", retry=RETRY, sizes=SIZES) as app:
        spec = CASES[name][0](app)
        async with work(app):
            [job] = await app.enqueue([spec])
            await job.ended(30)
    mine = [each for each in lines.found if each[0].__dict__["job"] == job.id]
    expected = [call for call in FAILING[name] if call.partition(" ")[0] in RAISED]
    assert len(mine) == len(expected)
    for call, (record, text, line) in zip(expected, mine, strict=True):
        event, kind = call.partition(" ")[0], call.split()[-1]
        template = f"%s {event}: %s" + ("; again %s" if event == "retrying" else "")
        assert (record.msg, record.levelname, line["level"]) == (template, RAISED[event], RAISED[event].lower())
        assert (line["job"], line["task"]) == (job.id, spec.new.task)
        assert f" {event}: " in text.splitlines()[0]
        if kind in WITHOUT_EXCEPTION:
            assert (record.exc_info, "error" in line) == (None, False)
            continue
        assert record.exc_info is not None
        assert record.exc_info[0] is not None
        assert record.exc_info[0].__name__ == kind
        assert kind in line["error"].splitlines()[-1]
        assert indented(line["error"]) in text


@shows("a JSON log line has the queue, the workflow and the trace of its job, and the `extra` of the program's records")
async def test_a_json_line_has_the_trace_of_its_job_and_what_the_program_adds(lines: Lines) -> None:
    async with App("memory://") as app:

        @app.task(name="bad", retry=Retry(attempts=1), queue="mail")
        async def bad() -> None:
            raise ValueError("no")

        async with work(app):
            trace = f"00-{'a' * 32}-{'b' * 16}-01"
            await (await bad.options(headers={"traceparent": trace}).enqueue()).ended(30)
    [(record, _, line)] = lines.found
    assert (line["queue"], line["workflow"], line["trace_id"]) == ("mail", record.__dict__["job"], "a" * 32)
    assert "span_id" not in line
    own = logging.getLogger("shop").makeRecord("shop", 30, "", 0, "paid", (), None, extra={"order": 7, "tags": {"a"}})
    found = json.loads(Json().format(own))
    assert (found["order"], found["tags"], found["text"]) == (7, "{'a'}", "paid")
    assert set(found) == {"at", "level", "logger", "text", "order", "tags"}


class NoText:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def test_values_that_json_has_no_form_for_are_text_in_a_json_line() -> None:
    """A line is never lost, is always JSON, and never raises into the function that logs."""
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    extra = {"pair": {(1, 2): 3}, "ratio": float("nan"), "cycle": cycle, "none": NoText(), "deep": deep, "order": 7}
    record = logging.getLogger("shop").makeRecord(
        "shop", 30, "", 0, "paid", (), None, extra=extra | {"level": "gold"}, sinfo="Stack (most recent call last):"
    )

    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    found = json.loads(Json().format(record), parse_constant=refused)
    assert (found["text"], found["level"], found["extra_level"], found["order"]) == ("paid", "warning", "gold", 7)
    assert (found["pair"], found["ratio"], found["cycle"]) == ("{(1, 2): 3}", "nan", "[[...]]")
    assert found["none"] == "<NoText: no text, RuntimeError>"
    assert found["deep"] == "<list: no text, RecursionError>"
    assert indented(found["stack"]) in Plain().format(record), "of stack_info=True"
    while deep:  # so that no collector recurses into it
        deep = deep.pop()


class Exporter(logging.Handler):
    """A handler such as OpenTelemetry's, which sends records away."""

    __module__ = "opentelemetry.instrumentation.logging.handler"

    def emit(self, record: logging.LogRecord) -> None: ...


@pytest.mark.parametrize("own", [None, logging.NullHandler()])
def test_a_worker_with_handlers_of_exporters_prints_its_lines(
    monkeypatch: pytest.MonkeyPatch, own: logging.Handler | None
) -> None:
    """An app that has set up logging itself is left alone."""
    root, exporter = logging.getLogger(), Exporter()
    given = [exporter] if own is None else [exporter, own]
    monkeypatch.setattr(root, "handlers", list(given))
    level, level_of_treadle = root.level, logging.getLogger("treadle").level
    try:
        logs.set_up("w1", "info", as_json=True)
        added = [handler for handler in root.handlers if handler not in given]
        assert [type(handler.formatter) for handler in added] == ([Json] if own is None else [])
    finally:
        root.setLevel(level)
        logging.getLogger("treadle").setLevel(level_of_treadle)
