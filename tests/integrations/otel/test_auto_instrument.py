"""`opentelemetry-instrument treadle worker` for a program that does not know OpenTelemetry; `TreadleInstrumentor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider

from tests.integrations.otel.trees import Recorded
from treadle import App, BadOption
from treadle.integrations.otel import Tracing, TreadleInstrumentor
from treadle.integrations.otel.instrumentor import from_environment
from treadle.testing import drain
from treadle_testkit.shows import shows

PROGRAM = """
from opentelemetry import trace
from treadle import App

app = App("sqlite:///jobs.db")


@app.task
async def add(a: int, b: int) -> int:
    return a + b


@app.task(kind="process")
def square(n: int) -> int:
    with trace.get_tracer("a library").start_as_current_span("in the child"):
        return n * n
"""
BIN = Path(sys.executable).parent


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Spans go to standard output. The package opentelemetry-distro sets up the SDK by this one entry point."""
    (tmp_path / "jobs.py").write_text(PROGRAM)
    distro = tmp_path / "distro" / "distro-1.0.dist-info"
    distro.mkdir(parents=True)
    (distro / "METADATA").write_text("Metadata-Version: 2.1\nName: distro\nVersion: 1.0\n")
    (distro / "entry_points.txt").write_text(
        "[opentelemetry_configurator]\nsdk = opentelemetry.sdk._configuration:_OTelSDKConfigurator\n"
    )
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
        "PYTHONPATH": str(tmp_path / "distro"),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }


def instrumented(*words: str) -> list[str]:
    return [str(BIN / "opentelemetry-instrument"), str(BIN / "treadle"), *words]


def spans_of(printed: str) -> dict[str, dict[str, Any]]:
    """The spans that the console exporter has printed, by name."""
    found, decoder, at = {}, json.JSONDecoder(), 0
    while (at := printed.find("{", at)) >= 0:
        span, at = decoder.raw_decode(printed, at)
        found[span["name"]] = span
    return found


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="it stops a process by SIGTERM")
@shows("`opentelemetry-instrument treadle worker` records a program that does not know OpenTelemetry")
def test_a_program_that_does_not_name_opentelemetry_is_traced(tmp_path: Path, environment: dict[str, str]) -> None:
    """Sent from another process; run in a worker process of the supervisor, and in a process of that one."""
    command = instrumented("worker", "jobs:app")
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes) as worker:
        assert worker.stderr is not None
        try:
            while "claiming" not in worker.stderr.readline():
                assert worker.poll() is None
            words = ("enqueue", "--app", "jobs:app", "square", "3", "--wait", "30")
            sender = subprocess.run(
                instrumented(*words), cwd=tmp_path, env=environment, check=True, capture_output=True, text=True
            )
            worker.send_signal(signal.SIGTERM)
            printed, said = worker.communicate(timeout=60)
        finally:
            worker.kill()
    assert worker.returncode == 0, said
    sent, ran = spans_of(sender.stdout), spans_of(printed)
    tree = [sent["enqueue default"], ran["run jobs.square"], ran["in the child"]]
    assert len({span["context"]["trace_id"] for span in tree}) == 1
    assert [span["parent_id"] for span in tree] == [None, *(span["context"]["span_id"] for span in tree[:2])]
    assert ran["run jobs.square"]["attributes"]["treadle.outcome"] == "succeeded"


@pytest.fixture
def instrumentor() -> Iterator[TreadleInstrumentor]:
    found = TreadleInstrumentor()
    yield found
    if found.is_instrumented_by_opentelemetry:
        found.uninstrument()


@shows("`TreadleInstrumentor` traces every app of a program; an app with a `Tracing` of its own keeps that one")
async def test_apps_are_traced_until_the_instrumentation_is_removed(instrumentor: TreadleInstrumentor) -> None:
    async def use(app: App) -> None:
        @app.task(name="leaf")
        async def leaf() -> None: ...

        async with app:
            await leaf.enqueue()
            await drain(app)

    recorded, own = Recorded(), Recorded()
    before, first = App("memory://"), own.on(App("memory://"))
    layers = list(before._core.layers)  # other instrumentation of this process may have added some
    instrumentor.instrument(tracer_provider=recorded.provider, meter_provider=NoOpMeterProvider())
    for app in (before, first, App("memory://"), own.on(App("memory://"))):
        await use(app)
    instrumentor.uninstrument()
    await use(App("memory://"))
    assert before._core.layers == layers
    twice = """
        enqueue default
          run leaf
        enqueue default
          run leaf
    """
    recorded.check(twice)
    own.check(twice)


async def test_an_app_that_exists(instrumentor: TreadleInstrumentor) -> None:
    recorded, app = Recorded(), App("memory://")
    layers = len(app._core.layers)
    instrumentor.instrument_app(app, tracer_provider=recorded.provider)
    instrumentor.instrument_app(app, tracer_provider=recorded.provider)
    assert len(app._core.layers) == layers + 1, "once"
    recorded.on(app)
    [layer] = [each for each in app._core.layers if isinstance(each, Tracing)]
    assert type(layer) is Tracing, "the program's own replaces it"


def test_the_environment() -> None:
    given = {"TRACES": "linked", "CONTINUE_WITHIN": "5", "CREATE_SPANS": "true", "QUEUE_METRICS": "false"}
    assert from_environment({f"OTEL_PYTHON_TREADLE_{name}": text for name, text in given.items()}) == {
        "traces": "linked",
        "continue_within": 5.0,
        "create_spans": True,
        "queue_metrics": False,
    }
    with pytest.raises(BadOption, match="'soon'"):
        Tracing(**from_environment({"OTEL_PYTHON_TREADLE_CONTINUE_WITHIN": "soon"}))


def test_without_the_api_one_sentence_names_the_extra() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; import treadle.integrations.otel"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        "treadle.integrations.otel needs the package opentelemetry: pip install 'opentelemetry-api>=1.30', or the "
        "extra treadle[otel]"
    )
