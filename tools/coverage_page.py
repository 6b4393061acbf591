"""Writes docs/reference/coverage.md: each behaviour that a test shows, and that test. `dev.py docs` runs it.

A marker is the decorator `@shows("a sentence", ...)` of `treadle_testkit.shows`. The script reads the markers from the
syntax trees and imports no test. The area of a sentence follows from the file of its test (see `AREAS`), unless the
marker names one.
"""

from __future__ import annotations

import ast
import functools
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/reference/coverage.md"
TESTKIT = "packages/testkit/src/treadle_testkit"
LAWS = f"{TESTKIT}/conformance/"
HOMES = (TESTKIT, "tests")  # where tests are

# Each area of the page, and the beginnings of the paths that belong to it. The longest beginning wins.
AREAS: dict[str, tuple[str, ...]] = {
    "Enqueuing jobs": (
        "tests/app/",
        "tests/integrations/test_missing_extras.py",
        "tests/core/test_ids.py",
        "tests/producer/",
        "tests/serialization/",
        "tests/tasks/",
    ),
    "Large, encrypted and hidden payloads": ("tests/payloads/", "tests/blobs/test_credentials.py"),
    "Keys and ids": (f"{LAWS}laws_ids.py", f"{LAWS}laws_keys.py", f"{LAWS}laws_key_replacing.py"),
    "Transactions": (
        "tests/outbox/",
        f"{LAWS}laws_transaction.py",
        "tests/execution/test_transaction.py",
        "tests/producer/test_within.py",
        "tests/storage/postgres/test_transactions.py",
        "tests/outbox/",
        "tests/faults/test_outbox_kill.py",
    ),
    "Queue order and claims": (
        f"{LAWS}laws_queue_order.py",
        f"{LAWS}laws_storing.py",
        f"{LAWS}laws_lanes.py",
        f"{LAWS}laws_instants.py",
    ),
    "Limits": (
        f"{LAWS}laws_slots.py",
        f"{LAWS}laws_costs.py",
        f"{LAWS}laws_pauses.py",
        f"{LAWS}laws_rates.py",
        f"{LAWS}laws_spent.py",
        f"{LAWS}laws_spent_races.py",
        "tests/execution/test_spent.py",
        f"{LAWS}laws_held_slots.py",
        f"{LAWS}laws_limit_changes.py",
        "tests/admin/test_limits.py",
    ),
    "Leases and outcomes": (
        f"{LAWS}laws_versions.py",
        f"{LAWS}laws_checkpoints.py",
        f"{LAWS}laws_lease.py",
        f"{LAWS}laws_repeats.py",
        f"{LAWS}laws_races.py",
        "tests/worker/test_reaped.py",
    ),
    "Failures, retries and deadlines": ("tests/execution/", "tests/policy/"),
    "Dependencies and promises": (
        f"{LAWS}laws_waiting.py",
        f"{LAWS}laws_followups.py",
        f"{LAWS}laws_children.py",
        f"{LAWS}laws_reopening.py",
        f"{LAWS}laws_retried_later.py",
    ),
    "Workflows": ("tests/types/", "tests/docs/test_types.py", "tests/workflow/"),
    "Pipelines": ("tests/contrib/pipeline/",),
    "Durable functions": ("tests/durable/",),
    "Batch tasks": ("tests/worker/test_batch.py",),
    "Schedules": ("tests/policy/test_cron.py", "tests/scheduling/"),
    "Workers": ("tests/policy/test_throttle.py", "tests/worker/"),
    "Resources of a process": (
        "tests/cli/test_cli_lifespan.py",
        "tests/resources/",
        "tests/worker/test_process_resources.py",
    ),
    "Middleware": ("tests/execution/test_judged.py", "tests/execution/test_layers.py"),
    "Results, events and logs": (
        f"{LAWS}laws_hints.py",
        "tests/admin/test_event_feed.py",
        "tests/cli/test_cli_worker.py",
        "tests/core/test_events.py",
        "tests/producer/test_results.py",
    ),
    "Finding jobs and acting on them": (
        f"{LAWS}laws_queries.py",
        f"{LAWS}laws_scanning.py",
        "tests/admin/",
        "tests/cli/",
        "tests/contrib/top/",
        "tests/contrib/mcp/",
    ),
    "Statistics and metrics": (
        f"{LAWS}laws_counts.py",
        f"{LAWS}laws_glance.py",
        f"{LAWS}laws_metrics.py",
        "tests/admin/test_metrics.py",
        "tests/metrics/",
        "tests/server/test_runner_metrics.py",
        "tests/worker/test_job_metrics.py",
    ),
    "Explanations": ("tests/admin/test_explain.py", "tests/admin/test_looks.py"),
    "Dead jobs and redrive": ("tests/admin/test_dead.py",),
    "Checks before a deployment": (
        "tests/cli/test_two_versions.py",
        "tests/admin/code_check/",
        "tests/storage/test_look_only.py",
        "tests/worker/test_misfits.py",
    ),
    "Retention": (f"{LAWS}laws_prune.py",),
    "Crashes and outages": ("tests/faults/", "tests/simulate/"),
    "Storages": ("tests/storage/",),
    "Ports": (f"{TESTKIT}/ports/", "tests/ports/"),
    "HTTP server": ("tests/server/",),
    "Django": ("tests/integrations/django/",),
    "Agents": (
        "tests/integrations/pydantic_ai/",
        "tests/integrations/test_openai_agents.py",
        "tests/faults/test_agent_kills.py",
        "tests/integrations/test_answers.py",
    ),
    "Traces and error reports": (
        "tests/integrations/otel/",
        "tests/integrations/sentry/",
        "tests/integrations/test_header_room.py",
    ),
    "Delayed jobs over HTTP": (
        "tests/contrib/delayed/test_command_groups.py",
        "tests/contrib/delayed/test_delayed.py",
        "tests/contrib/delayed/test_delayed_fleet.py",
        "tests/contrib/delayed/test_delivery.py",
        "tests/server/test_compose.py",
    ),
    "The queue protocol and its runners": (
        "tests/contrib/queuey/test_queuey.py",
        "tests/contrib/discovery/",
        "tests/contrib/wasi/",
    ),
    "Blobs": (f"{TESTKIT}/blobs.py", "tests/blobs/", "tests/contrib/queuey/test_blobs.py"),
    "Moving from other libraries": ("tests/contrib/celery/",),
    "Examples": ("tests/project/test_examples.py",),
}

# Figures that no test holds: the words of the benchmark's command, and what it measures.
MEASURED = {
    "": "the latency of a job on an idle worker, and the memory of a worker after many jobs",
    "claim-cost": "how the cost of a claim grows with the due, delayed and blocked jobs that are stored",
}

HEAD = """\
# Coverage

Each row is a behaviour and the test that shows it. `python3 dev.py docs` makes this page from the markers on the tests.

A marker is the decorator `@shows("a sentence")` of `treadle_testkit.shows`. To add a row, put a marker on a test. The
area of a row follows from the file of its test; `tools/coverage_page.py` lists the areas. No sentence is on two tests.

The tests in `treadle_testkit.conformance` run on every storage; other tests run on the storages that their fixtures
name. Two type checkers check the functions in `tests/types`.
"""
TAIL = """\
## Measured only

A benchmark gives these figures. No test fails when one of them changes.

| figure | command |
|---|---|
"""


class Marker(NamedTuple):
    """A sentence on a test."""

    area: str
    sentence: str
    path: str
    test: str


class BadMarker(Exception):
    """A marker that the page cannot show."""


def area_of(path: str) -> str:
    """The area whose beginning of a path fits best."""
    fits = [(len(begin), area) for area, begins in AREAS.items() for begin in begins if path.startswith(begin)]
    if not fits:
        raise BadMarker(f"{path}: no area has this file; add it to AREAS, or say area= in the marker")
    return max(fits)[1]


def _markers_of(test: ast.FunctionDef | ast.AsyncFunctionDef, path: str) -> Iterator[Marker]:
    where = f"{path}::{test.name}"
    for call in test.decorator_list:
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "shows"):
            continue
        area = next((ast.literal_eval(option.value) for option in call.keywords if option.arg == "area"), None)
        if area is None:
            area = area_of(path)
        if area not in AREAS:
            raise BadMarker(f"{where}: expected an area of the page, found {area!r}")
        if not call.args:
            raise BadMarker(f"{where}: expected a sentence, found none")
        for argument in call.args:
            sentence = argument.value if isinstance(argument, ast.Constant) else None
            if not isinstance(sentence, str) or sentence != sentence.strip() or not sentence:
                raise BadMarker(f"{where}: expected a plain string, found {ast.unparse(argument)}")
            if "|" in sentence or "\n" in sentence or sentence.endswith("."):
                raise BadMarker(f"{where}: expected a row of a table, without `|` and a full stop: {sentence!r}")
            yield Marker(area, sentence, path, test.name)


def markers(root: Path | None = None) -> list[Marker]:
    """All markers, in the order of their files and lines."""
    root = root or ROOT
    found: list[Marker] = []
    for home in HOMES:
        for file in sorted((root / home).rglob("*.py")):
            found += _markers_in(file.read_text(), file.relative_to(root).as_posix())
    return found


@functools.cache  # 0.7 s for all files
def _markers_in(text: str, path: str) -> tuple[Marker, ...]:
    if "@shows(" not in text:
        return ()
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return tuple(marker for function in functions for marker in _markers_of(function, path))


def repeated(found: Iterable[Marker]) -> list[str]:
    """The sentences that are on more than one test."""
    return [sentence for sentence, count in Counter(marker.sentence for marker in found).items() if count > 1]


def page(found: Sequence[Marker]) -> str:
    """The text of the page."""
    parts = [HEAD]
    for area in AREAS:
        rows = [f"| {marker.sentence} | `{marker.path}::{marker.test}` |\n" for marker in found if marker.area == area]
        if rows:
            parts.append(f"## {area}\n\n| behaviour | test |\n|---|---|\n{''.join(rows)}")
    commands = (f"| {figure} | `{f'python3 dev.py bench {words}'.strip()}` |\n" for words, figure in MEASURED.items())
    parts.append(TAIL + "".join(commands))
    return "\n".join(parts)


def main() -> int:
    try:
        found = markers()
        if twice := repeated(found):
            raise BadMarker(f"on more than one test: {', '.join(map(repr, twice))}")
    except BadMarker as error:
        print(error, file=sys.stderr)
        return 1
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
