"""The benchmark's own arithmetic, and our own adapter with a handful of jobs, so that its figures can be trusted."""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.harness import cells, environments, goals, page, plots, procs, run
from benchmarks.harness.cells import CELLS, TINY, Work, percentile
from benchmarks.harness.environments import PEERS, needs
from benchmarks.harness.goals import Verdict
from benchmarks.harness.keep import Figure, Results
from benchmarks.harness.marks import Marks
from benchmarks.harness.places import SqlitePlace
from benchmarks.harness.session import CellFailed, about, opened
from benchmarks.harness.systems import SYSTEMS, NoSuch, chosen
from tests.waiting import until_blocking

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
OURS = next(it for it in SYSTEMS if it.name == "treadle@sqlite-normal")


# --- arithmetic


def test_a_percentile_is_a_value_that_was_measured() -> None:
    times = [float(n) for n in range(1, 101)]
    assert percentile(times, 0.99) == 99.0
    assert percentile(times, 0.5) == 50.0
    assert percentile(times, 1.0) == 100.0
    assert percentile([7.0], 0.99) == 7.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0


def test_a_figure_is_the_median_and_how_far_the_rounds_lie_apart() -> None:
    figure = Figure.of([120.0, 100.0, 90.0])
    assert (figure.median, figure.low, figure.high, figure.rounds) == (100.0, 90.0, 120.0, 3)
    assert figure.spread == pytest.approx(0.3)
    assert Figure.of([0.0]).spread == 0.0


@pytest.mark.parametrize(
    ("figure", "against", "needed", "lower", "reached"),
    [
        (150.0, 100.0, 1.5, False, True),
        (149.0, 100.0, 1.5, False, False),
        (1.2, 1.3, 1.0, True, True),
        (1.4, 1.3, 1.0, True, False),
        (None, 100.0, 1.5, False, None),
        (100.0, None, 1.5, False, None),
    ],
)
def test_a_goal_is_reached_missed_or_unknown(
    figure: float | None, against: float | None, needed: float, lower: bool, reached: bool | None
) -> None:
    assert Verdict("drain", "", figure, against, needed, lower, whom="somebody").reached is reached


def test_a_goal_without_a_peer_is_a_figure() -> None:
    assert Verdict("enqueue", "", 70_000.0, None, 60_000.0).reached is True
    assert Verdict("pick-up", "", 3.5, None, 3.0, lower=True).reached is False
    assert Verdict("pick-up", "", None, None, 3.0, lower=True).reached is None


def test_numbers_have_three_digits() -> None:
    assert [goals.number(it) for it in (None, 0.03412, 12.345, 999.0, 1234.0, 117_654.0)] == [
        "-",
        "0.0341",
        "12.3",
        "999",
        "1,230",
        "118,000",
    ]


# --- systems and cells


def test_systems_are_chosen_by_peer_storage_or_both() -> None:
    assert {it.name for it in chosen(["huey"], ["sqlite"])} == {"huey@sqlite-off", "huey@sqlite-full"}
    assert [it.name for it in chosen(["huey@redis"], [])] == ["huey@redis"]
    assert {it.storage for it in chosen(["treadle"], [])} == {
        "postgres",
        "redis",
        "redis-aof",
        "sqlite-normal",
        "sqlite-full",
    }
    with pytest.raises(NoSuch, match="there are arq, celery"):
        chosen(["huye"], [])
    with pytest.raises(NoSuch, match="expected some of postgres"):
        chosen([], ["mysql"])


def test_systems_take_turns_within_a_measure_and_measures_within_a_round() -> None:
    pair = chosen(["treadle@redis", "saq@redis"], [])
    steps = [(turn, cell.name, system.peer) for turn, cell, system in run.plan(pair, ["core", "both"], 2, "full")]
    assert steps == [(turn, cell, peer) for turn in (1, 2) for cell in ("core", "both") for peer in ("treadle", "saq")]


def test_every_system_has_an_adapter_and_pins_with_hashes_and_without_an_index() -> None:
    for system in SYSTEMS:
        assert (ROOT / f"benchmarks/adapters/{system.adapter}.py").exists(), system
        if system.environment:
            pins = (PEERS / f"{system.environment}.txt").read_text()
            assert "--hash=sha256:" in pins, system
            assert "://" not in "".join(line for line in pins.splitlines() if not line.lstrip().startswith("#")), system
            assert needs(system.environment) >= (3, 11)


def test_goals_name_figures_that_are_measured() -> None:
    names = {system.name for system in SYSTEMS}
    for goal in goals.GOALS:
        assert f"treadle@{goal.storage}" in names, goal
        assert not goal.says.endswith("/s") or goal.needed >= 1_000, goal


# --- stored results, and the page


@pytest.fixture
def results(tmp_path: Path) -> Results:
    found = Results(tmp_path / "tiny.json")
    found.machine = run.machine("tiny", "3.11.7") | {
        "places": {"redis": "Valkey 9"},
        "probes": {"postgres": {"insert": 1e5}},
    }
    common = {"at": "2026-11-21 12:00", "commit": "abc", "others": 0.1, "took": 2.0}
    for turn, ours, theirs in ((1, 40_000.0, 4_000.0), (2, 44_000.0, 3_800.0)):
        found.put("treadle@redis", "core", turn, {**common, "figures": {goals.DRAIN: ours}})
        found.put("huey@redis", "core", turn, {**common, "figures": {goals.DRAIN: theirs}})
    found.put("saq@redis", "core", 1, {**common, "error": "gave up after 60 s | 3 jobs had run"})
    found.put("saq@redis", "limits", 1, {**common, "absent": True})
    return found


def test_kept_figures_are_found_again_and_failures_are_repeated(results: Results) -> None:
    again = Results(results.path)
    assert again.median("treadle@redis", goals.DRAIN) == 42_000.0
    assert again.has("treadle@redis", "core", 2)
    assert not again.has("treadle@redis", "core", 3)
    assert not again.has("saq@redis", "core", 1)
    assert again.has("saq@redis", "limits", 1)


def test_a_goal_is_judged_by_the_best_peer(results: Results) -> None:
    verdict = next(it for it in goals.judged(results) if it.what == "drain, redis")
    assert verdict.whom == "huey@redis"
    assert verdict.ratio == pytest.approx(42_000 / 3_900)
    assert verdict.reached is True


def test_the_page_changes_between_its_marks_only(results: Results, tmp_path: Path) -> None:
    target = tmp_path / "docs/benchmarks.md"
    target.parent.mkdir()
    start, end = page.part("3.11")
    target.write_text(f"# By hand\n\n{start}old\n{end}\n\nmore by hand\n")
    for _ in range(2):
        page.write(results, target)
    words = target.read_text()
    assert words.startswith("# By hand\n")
    assert f"{end}\n\nmore by hand\n" in words
    assert [words.count(mark) for mark in (start, end, *page.GOALS)] == [1, 1, 1, 1]
    assert "| drain, jobs/s | 42,000 ±5 % | 3,900 ±3 % |" in words
    assert "* saq@redis, core: gave up after 60 s / 3 jobs had run" in words
    assert "![Drain of no-op jobs](plots/3.11/drain.svg)" in words
    ElementTree.parse(target.parent / "plots/3.11/drain.svg")


def test_each_python_has_its_part_and_the_goals_are_side_by_side(results: Results, tmp_path: Path) -> None:
    target = tmp_path / "docs/benchmarks.md"
    target.parent.mkdir()
    target.write_text("# By hand\n\n" + "".join(page.GOALS) + "\n\nmore by hand\n")
    newer = Results(tmp_path / "newer.json")
    newer.machine = results.machine | {"python": "3.13.0"}
    newer.cells, newer.about = results.cells, results.about
    page.write(results, target)
    page.write(newer, target, [results])
    page.write(results, target, [newer])
    words = target.read_text()
    assert words.index("| | goal | Python 3.11 | Python 3.13 |") < words.index("### With CPython 3.11\n")
    assert words.index("### With CPython 3.11\n") < words.index("### With CPython 3.13\n") < words.index("more by hand")
    assert "| drain, redis | >= 10 x the best peer | 10.77 x, reached | 10.77 x, reached |" in words
    assert words.count("### With CPython") == 2


def test_the_page_of_the_documentation_has_the_marks() -> None:
    words = (ROOT / "docs/benchmarks.md").read_text()
    assert all(words.count(mark) == 1 for mark in page.GOALS)
    assert all(words.count(mark) == 1 for mark in page.part("3.11"))


def test_a_run_for_the_goals_measures_what_each_of_them_is_computed_of() -> None:
    """Every system in a goal is measured with the same cell; long cells are measured once."""
    steps = run.plan(SYSTEMS, [], 2, "goals")
    ours = {(cell.name, system.storage) for _, cell, system in steps if system.ours}
    peers = {(cell.name, system.name) for _, cell, system in steps if not system.ours}
    for cell, (storages, others) in goals.WANTED.items():
        assert {(cell, storage) for storage in storages} <= ours
        for other in others:
            named = [it.name for it in SYSTEMS if not it.ours and other in (it.name, it.storage)]
            assert named
            assert {(cell, it) for it in named} <= peers
    assert {goal.storage for goal in goals.GOALS} <= {storage for _, storage in ours}
    for name in run.ONCE:
        assert {turn for turn, cell, _ in steps if cell.name == name} == {1}


def test_a_python_is_named_by_its_version_or_its_path(tmp_path: Path) -> None:
    ours = environments.OURS
    assert environments.named(ours.minor) == ours
    # sys.executable names the environment from which this one was made
    assert environments.named(sys.executable).version == ours.version
    for wrong in ("3.5", str(tmp_path / "nobody")):
        with pytest.raises(environments.Unavailable, match="--python"):
            environments.named(wrong)
    assert environments.newer((3, 11), ours) == ours
    with pytest.raises(environments.Unavailable, match=r"needs Python 3\.99"):
        environments.newer((3, 99), ours)


def test_bars_are_as_long_as_their_figures() -> None:
    found = [plots.Bar("a", Figure.of([100.0]), True), plots.Bar("<b>", Figure.of([25.0]), False)]
    root = ElementTree.fromstring(plots.bars("Title", "jobs/s", [plots.Panel("here", found)]))
    rects = [float(it.attrib["width"]) for it in root.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert rects[0] == pytest.approx(4 * rects[1], rel=0.01)


# --- marks and sessions


def test_marks_are_counted_as_they_come_from_several_processes(tmp_path: Path) -> None:
    folder = tmp_path / "marks"
    folder.mkdir()
    marks = Marks(folder)
    (folder / "1.marks").write_bytes(struct.pack("dd", 5.0, 0.0) + bytes(160))
    assert marks.look() == 1
    (folder / "2.marks").write_bytes(struct.pack("dddd", 6.0, 1.0, 7.0, 2.0) + bytes(160))
    with (folder / "1.marks").open("r+b") as file:
        file.write(struct.pack("dddd", 5.0, 0.0, 8.0, 0.0))
    assert marks.look() == 4
    assert sorted(marks.read()) == [(5.0, 0.0), (6.0, 1.0), (7.0, 2.0), (8.0, 0.0)]
    assert sorted(marks.read(6.0)) == [(7.0, 2.0), (8.0, 0.0)]
    marks.close()


@pytest.mark.parametrize("count", [*range(12), 63, 64, 65, 100])
def test_marks_are_counted_without_reading_them_all(tmp_path: Path, count: int) -> None:
    file = tmp_path / "1.marks"
    file.write_bytes(struct.pack("dd", 1.0, 0.0) * count + bytes(16 * (100 - count)))
    marks = Marks(tmp_path)
    assert marks.look() == count
    assert len(list(marks.read())) == count
    if count < 100:
        with file.open("r+b") as more:
            more.write(struct.pack("dd", 1.0, 0.0) * (count + 1))
        assert marks.look() == count + 1
    marks.close()


@pytest.mark.skipif(not procs.known(), reason="there is no /proc here")
def test_the_cpu_of_a_process_is_read_from_outside() -> None:
    begun, spent = procs.cpu([os.getpid()]), time.process_time()
    while time.process_time() < spent + 0.2:
        pass
    assert procs.cpu([os.getpid()]) - begun >= 0.15
    assert procs.memory([os.getpid()]) > 10
    assert os.getpid() in procs.tree([os.getppid()])


@pytest.fixture
def place() -> Iterator[SqlitePlace]:
    found = SqlitePlace("sqlite-normal")
    yield found
    found.close()


@functools.cache
def of_ours() -> dict[str, Any]:
    return about(OURS, sys.executable, "sqlite:///not-opened.db")


def work(place: SqlitePlace) -> Work:
    return Work(OURS, place, sys.executable, of_ours(), TINY)


def test_our_own_adapter_is_measured_whole(place: SqlitePlace) -> None:
    figures = cells.core(work(place)) | cells.pick_up(work(place))
    names = {goals.ONE, goals.TOGETHER, goals.BULK, goals.DRAIN, goals.PICK, "stored, bytes a job"}
    assert names <= figures.keys()
    assert {name: figures[name] for name in names if figures[name] <= 0} == {}  # a few bytes may all stay in the cache


@pytest.mark.parametrize("name", ["results", "fan-in"])
def test_our_own_adapter_has_the_features(place: SqlitePlace, name: str) -> None:
    assert CELLS[name].needs in of_ours()["can"]
    assert CELLS[name].measure(work(place))


def test_a_drain_ends_when_nothing_is_left_in_the_storage_and_is_given_up_otherwise(place: SqlitePlace) -> None:
    ours = work(place)
    with opened(ours.session(50)) as session:
        cells.fill(session, 50)
        assert place.left(ours.about["settled"]) == 50
        session.start_workers()
        drained = session.finish(50)
        assert place.left(ours.about["settled"]) == 0
        assert drained.settled >= max(ran for ran, _ in drained.marks)
        assert drained.rate == pytest.approx(50 / (drained.settled - drained.first))
        session.about = {**ours.about, "settled": "SELECT 3"}  # as if three jobs were never settled
        session.order("one", n=5)
        while session.marks.look() < 55:
            session.left("a test")
        session.end = time.monotonic() + 0.1
        with pytest.raises(CellFailed, match="waiting for 3 jobs to be settled"):
            session.finish(5)


def test_a_worker_that_ends_is_a_failure_with_its_last_output(place: SqlitePlace) -> None:
    ours = work(place)
    session = ours.session(10)
    with opened(session):
        cells.fill(session, 10)
        session.environment["BENCH"] = json.dumps({"kind": "nonsense"})
        session.start_workers()
        with pytest.raises(CellFailed, match=r"a worker ended with exit code 1: .*nonsense"):
            session.finish(10)


def test_processes_end_with_the_harness(place: SqlitePlace, tmp_path: Path) -> None:
    """A worker whose parent is killed ends by itself, even one that would run for ever."""
    place.reset()
    words = {"url": place.url, "storage": "sqlite-normal", "marks": str(tmp_path)}
    start = "import os, signal, subprocess, sys; os.environ['BENCH_PARENT'] = str(os.getpid()); "
    start += "print(subprocess.Popen(sys.argv[1:]).pid, flush=True); signal.pause()"
    parent = subprocess.Popen(
        [sys.executable, "-c", start, sys.executable, "-m", "benchmarks.adapters.treadle", "worker"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "BENCH": json.dumps(words), "PYTHONPATH": str(ROOT)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    words_of = Path(f"/proc/{child}/cmdline")
    until_blocking(lambda: not (words_of.exists() and words_of.read_bytes()), "the end of the worker")


# --- the command line


def test_an_error_of_a_wrong_name_lists_the_right_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--tiny", "--peers", "nobody"]) == 2
    assert "nobody is called 'nobody'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.main(["--rounds", "0"])


def test_the_bench_of_checks_finds_the_job_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks import checking

    assert checking.main(["--url", f"sqlite:///{tmp_path}/jobs.db", "--rows", "1000"]) == 0
    out = capsys.readouterr().out
    assert "1,000 jobs looked at in" in out
    assert "1 findings" in out
