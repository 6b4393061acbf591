"""The cost of tracing, in CPU time of a job that does nothing, on the memory storage.

    python3 dev.py bench otel [--rounds 7] [--jobs 10000]

The rounds alternate between the modes (A B C D A B C D ...), each in a new process. "enqueue" are calls with 100 jobs
each, "single" calls with one job, and "run" is a worker with 20 slots that runs the jobs of the first. Each figure is
the median of the rounds, of the CPU time of the whole process, which includes the thread that exports; in brackets the
least and the most. CPU time because other programs may use the machine meanwhile.

none         no middleware
no SDK       `Tracing` is added, and the program has set up no SDK
sampled out  the SDK drops every trace at its root
batches      all spans, to a BatchSpanProcessor whose exporter discards them
metrics too  the same, and metrics to a reader that collects once
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.modes import compare

MODES = ("none", "no SDK", "sampled out", "batches", "metrics too")
FIGURES = ("enqueue", "single", "run")


def traced(mode: str, app: Any) -> list[Any]:
    """Add the middleware of a mode. Returns the providers to shut down."""
    if mode == "none":
        return []
    from treadle.integrations.otel import Tracing

    if mode == "no SDK":
        app.middleware(Tracing())
        return []
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

    class Discard(SpanExporter):
        def export(self, spans: Any) -> SpanExportResult:
            return SpanExportResult.SUCCESS

    tracers = TracerProvider(sampler=ParentBased(ALWAYS_OFF)) if mode == "sampled out" else TracerProvider()
    tracers.add_span_processor(BatchSpanProcessor(Discard()))
    meters = MeterProvider([InMemoryMetricReader()]) if mode == "metrics too" else None
    app.middleware(Tracing(tracer_provider=tracers, meter_provider=meters))
    return [tracers, *([meters] if meters else [])]


async def measure(mode: str, jobs: int) -> dict[str, float]:
    from treadle import App, Worker

    app = App("memory://")
    providers = traced(mode, app)

    @app.task(name="nothing")
    async def nothing(n: int) -> None: ...

    @app.task(name="last")
    async def last() -> None: ...

    async with app:
        found = {}
        began = time.process_time()
        for _ in range(jobs // 100):
            await app.enqueue([nothing.job(n) for n in range(100)])
        found["enqueue"] = (time.process_time() - began) / jobs
        end = await last.enqueue()
        began = time.process_time()
        async with Worker(app, concurrency=20, metrics=False):
            await end.ended(600)
        found["run"] = (time.process_time() - began) / jobs
        began = time.process_time()
        for n in range(jobs // 2):
            await nothing.enqueue(n)
        found["single"] = (time.process_time() - began) / (jobs // 2)
    for provider in providers:
        provider.shutdown()
    return {name: 1e6 * seconds for name, seconds in found.items()}


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="dev.py bench otel", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", type=int, default=10_000)
    compare(parser, words, "otel", MODES, FIGURES)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(sys.argv[1], int(sys.argv[2])))))
