"""`dev.py bench fleet`: every feature ends as many jobs as its row says, and marks without a reason fail the run."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fleet import run, table
from benchmarks.fleet.calls import GROUPS
from benchmarks.fleet.drain import fill
from benchmarks.fleet.features import FEATURES
from benchmarks.fleet.judge import Cell, Figure, Known, Misnamed, judged, load, outlived
from benchmarks.fleet.tasks import QUEUES, RESOURCE, UNCOUNTED, WAYS, make, schedule
from treadle import Worker
from treadle.core.events import Event

ONE = Cell("sqlite", "tenants", "noop", 1, 20)
FOUR = ONE._replace(workers=4)
NAMES = {"storages": ["sqlite", "postgres"], "rows": list(FEATURES), "kinds": ["noop", "nap", "calls"]}


# --- the verdict, on recorded figures


def marks(*rounds: Figure) -> dict[str, str]:
    return {each.mark: each.says for each in judged({ONE: rounds}, [])}


def test_a_cell_under_a_third_of_plain_is_marked() -> None:
    assert marks(Figure(rate=33.0, plain=100.0)) == {"slow": "0.33 of plain"}
    assert marks(Figure(rate=34.0, plain=100.0)) == {}
    assert marks(Figure(rate=1.0)) == {}, "nothing to compare with"


def test_a_mark_counts_if_every_round_has_it() -> None:
    slow, fast = Figure(rate=10.0, plain=100.0), Figure(rate=90.0, plain=100.0)
    assert list(marks(slow, slow)) == ["slow"]
    assert marks(slow, fast) == {}
    assert marks(Figure(error="no server"), fast) == {}
    assert marks(Figure(error="no server"), Figure(error="no disk")) == {"failed": "no disk"}


def test_a_cell_that_is_slower_with_more_workers_is_marked() -> None:
    found = judged({ONE: [Figure(rate=1_000.0)], FOUR: [Figure(rate=700.0)]}, [])
    assert [(each.cell, each.mark, each.says) for each in found] == [(FOUR, "more", "700/s, with 1 1,000/s")]
    assert judged({ONE: [Figure(rate=1_000.0)], FOUR: [Figure(rate=900.0)]}, []) == [], "a tenth is noise"
    wide = FOUR._replace(concurrency=100)
    assert judged({ONE: [Figure(rate=1_000.0)], wide: [Figure(rate=700.0)]}, []) == [], "another concurrency"


def test_jobs_that_are_left_and_do_not_end_are_stuck_and_a_cut_alone_is_not() -> None:
    assert marks(Figure(rate=1.0, left=3, quiet=9.0)) == {"stuck": "3 jobs left, none ended for 9 s"}
    assert marks(Figure(rate=1.0, left=3, quiet=0.1)) == {}


def test_a_known_mark_has_its_reason_and_covers_nothing_else() -> None:
    slow = Figure(rate=10.0, plain=100.0)
    known = Known("slow", "a slot is a row", rows=("tenants",), workers=(4,))
    found = judged({ONE: [slow], FOUR: [slow]}, [known])
    assert [(each.cell, each.known) for each in found] == [(ONE, None), (FOUR, known)]
    assert [each.known for each in judged({FOUR: [Figure(error="no server")]}, [known])] == [None]


def test_a_reason_covers_no_slower_figure_than_its_bound() -> None:
    known = Known("slow", "a slot is a row", least=0.2)
    slow, slower = Figure(rate=25.0, plain=100.0), Figure(rate=15.0, plain=100.0)
    assert [each.known for each in judged({ONE: [slow]}, [known])] == [known]
    assert [each.known for each in judged({ONE: [slower]}, [known])] == [None]


def test_a_reason_that_nothing_needs_any_more_is_named() -> None:
    known = Known("slow", "a slot is a row", rows=("tenants",))
    figures = {ONE: [Figure(rate=90.0, plain=100.0)]}
    assert outlived(judged(figures, [known]), figures, [known]) == [known]
    assert outlived([], {ONE._replace(row="keys"): figures[ONE]}, [known]) == [], "its cells were not measured"


# --- the file of known marks


def test_the_committed_reasons_can_be_read() -> None:
    rows = [*FEATURES, *(row for _, rows in GROUPS.values() for row in rows)]
    load(run.KNOWN, {"storages": list(run.STORAGES), "rows": rows, "kinds": ["noop", "nap", "calls"]})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('mark = "slow"\nreason = "why"\nrows = ["tenant"]', "did you mean 'tenants'"),
        ('mark = "slow"\nreason = "why"\nrow = ["tenants"]', "did you mean 'rows'"),
        ('mark = "slo"\nreason = "why"', "did you mean 'slow'"),
        ('mark = "slow"\nreason = " "', "no reason"),
    ],
)
def test_a_wrong_entry_is_refused_with_the_nearest_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(f"[[known]]\n{text}\n")
    with pytest.raises(Misnamed, match=says):
        load(path, NAMES)


# --- the table


def test_the_table_shows_ratios_marks_and_reasons_within_100_columns() -> None:
    plain = ONE._replace(row="plain")
    figures = {
        plain: [Figure(rate=12_345.0)],
        plain._replace(workers=4): [Figure(rate=20_000.0)],
        ONE: [Figure(rate=10.0, plain=100.0)],
        FOUR: [Figure(rate=95.0, plain=100.0)],
    }
    text = table.page(figures, judged(figures, []))
    assert "| plain   |  12,345 | 20,000 |" in text
    assert "| tenants | 0.10 <! |   0.95 |" in text
    assert "0.10 of plain" in text
    known = table.page(figures, judged(figures, [Known("slow", "a slot is a row " * 20)]))
    assert "0.10 < |" in known
    assert "a slot is a row" in known
    assert max(map(len, [*text.splitlines(), *known.splitlines()])) <= 100


def test_the_cpu_of_a_job_is_shown_of_the_round_that_took_least() -> None:
    figures = {ONE: [Figure(rate=1.0, server=90.0, workers=50.0), Figure(rate=1.0, server=70.0, workers=40.0)]}
    text = table.costs(figures)
    assert "| tenants | 70 + 40 |" in text
    assert max(map(len, text.splitlines())) <= 100


# --- what is measured


@pytest.mark.parametrize("name", FEATURES)
async def test_a_feature_ends_as_many_jobs_as_its_row_lists(name: str, tmp_path: Path) -> None:
    feature, units, ended = FEATURES[name], 3, list[Event]()
    app = make("memory://", tmp_path, feature.ways)
    resources = {RESOURCE: 20} if "resources" in feature.ways else {}
    if "scheduled" in feature.ways:
        schedule(app)
    done = asyncio.Event()

    @app.on("succeeded", "failed")
    def count(event: Event) -> None:
        if not event.task.startswith(UNCOUNTED):
            ended.append(event)
        if len(ended) == units * feature.ends:
            done.set()

    async with app:
        await fill(app, feature, 0.0, units)
        async with Worker(app, concurrency=20, queues=[*QUEUES, "default"], resources=resources):
            await asyncio.wait_for(done.wait(), 60)
    assert {event.name for event in ended} == ({"failed"} if name == "failures" else {"succeeded"})


def test_each_way_of_a_worker_is_one_of_a_feature() -> None:
    assert {way for feature in FEATURES.values() for way in feature.ways} == {*WAYS}


@pytest.mark.parametrize("name", FEATURES)
def test_a_feature_is_compared_with_an_earlier_one(name: str) -> None:
    names = list(FEATURES)
    assert names.index(FEATURES[name].against) <= names.index(name)


@pytest.mark.parametrize("name", ["acts", "looks", "waiting"])
def test_calls_are_measured(name: str, tmp_path: Path) -> None:
    numbers = iter(range(9))

    @contextlib.contextmanager
    def empty() -> Iterator[str]:
        yield f"sqlite:///{tmp_path}/{next(numbers)}.db?synchronous=normal"

    measure, rows = GROUPS[name]
    found = measure(empty, 1, run.TINY)
    assert tuple(found) == rows
    assert all(each.rate > 0 and each.plain for each in found.values())


# --- the command


def fleet(tmp_path: Path, known: str, *words: str) -> int:
    path = tmp_path / "known.toml"
    path.write_text(known)
    narrow = ["--tiny", "--url", "sqlite", "--only", "tenants", "--kinds", "noop"]
    return run.main([*narrow, "--file", str(tmp_path / "kept.json"), "--known", str(path), *words])


@pytest.mark.slow
def test_a_run_compares_and_fails_on_new_marks_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reason = '[[known]]\nmark = "slow"\nreason = "few jobs on a busy machine"\n'
    assert fleet(tmp_path, reason) == 0
    assert "| tenants |" in capsys.readouterr().out
    path = tmp_path / "kept.json"
    kept = json.loads(path.read_text())
    (cell,) = [cell for cell in kept["cells"].values() if cell["cell"].startswith("tenants")]
    assert cell["rows"]["tenants"]["plain"] > 0
    cell["rows"]["tenants"]["rate"] = cell["rows"]["tenants"]["plain"] / 100
    path.write_text(json.dumps(kept))

    assert fleet(tmp_path, reason, "--report") == 0
    assert "few jobs on a busy machine" in capsys.readouterr().out
    assert fleet(tmp_path, "", "--report") == 1
    assert "0.01 <!" in capsys.readouterr().out
    assert fleet(tmp_path, reason, "--resume") == 0
    assert "[1/" not in capsys.readouterr().err, "all of it was measured"


def test_new_marks_are_measured_again_with_their_base() -> None:
    steps = run.plan(run.parse(["--tiny", "--url", "sqlite", "--only", "tenants", "--workers", "1", "2", "4"]))
    two = ONE._replace(workers=2)
    figures = {ONE: [Figure(rate=1_000.0)], two: [Figure(rate=1_000.0)], FOUR: [Figure(rate=700.0)]}
    found = run.again(steps, judged(figures, []), figures)
    assert [cell for step in found for cell in step.cells()] == [ONE, FOUR]


def test_tables_are_written_between_their_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- fleet: written by `dev.py bench fleet` -->\nold\n<!-- /fleet -->\nafter\n")
    kept = Figure(rate=5.0)
    cell = {"system": "sqlite", "cell": "plain/noop/1/20", "round": 1, "rows": {"plain": run.asdict(kept)}}
    (tmp_path / "kept.json").write_text(json.dumps({"machine": {}, "about": {}, "cells": {"a": cell}}))
    assert fleet(tmp_path, "", "--report", "--write", str(page)) == 0
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("<!-- /fleet -->\nafter\n")
    assert "| plain |      5 |" in text
    assert "old" not in text


def test_a_page_without_marks_and_a_report_of_nothing_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks here\n")
    assert fleet(tmp_path, "", "--write", str(page)) == 2
    assert "between which the tables go" in capsys.readouterr().err
    assert fleet(tmp_path, "", "--report") == 2
    assert "run it without --report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "lane"], "did you mean 'lanes'"),
        (["--url", "sqllite"], "did you mean 'sqlite'"),
        (["--kinds", "naps"], "did you mean 'nap'"),
        (["--workers", "0"], "expected a number of 1 or more"),
    ],
)
def test_wrong_names_are_refused_with_the_nearest(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run.main(words)
    assert says in capsys.readouterr().err


def test_the_documentation_has_the_marks_for_the_table() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/benchmarks.md").read_text()
    assert "<!-- fleet: written by `dev.py bench fleet` -->" in page.split("<!-- /fleet -->")[0]
