"""Counts of a process for scrapers: they outlive minutes and workers, only grow, and name a bounded number of tasks."""

from __future__ import annotations

from treadle.core.model import NewJob
from treadle.metrics import NAMED, Cell, Numbers, NumbersSum, Pairs, ProcessCounts, Recorder, decode
from treadle.testing import HandClock


def runs(numbers: Numbers) -> dict[tuple[str, str], int]:
    return {(cell.queue, cell.task): cell.succeeded for cell in numbers.cells}


def test_runs_outlive_their_minute_and_their_worker() -> None:
    counts, clock = ProcessCounts(), HandClock(1_000.0)
    for _ in range(2):  # workers, one after the other
        recorder = Recorder("w", clock, counts)
        for _ in range(3):
            recorder.cell("q", "t").succeeded += 1
            recorder.cell("q", "t").time(0.5, 2.0)
            clock.advance(60)
            recorder.begin()
        recorder.cell("q", "t").succeeded += 1
        before = runs(counts.numbers())
        recorder.end()
        recorder.end()
        assert runs(counts.numbers()) == before
    numbers = counts.numbers()
    assert runs(numbers) == {("q", "t"): 8}
    assert [sum(cell.run.values()) for cell in numbers.cells] == [6]


def test_numbers_do_not_change_when_they_are_read() -> None:
    counts, clock = ProcessCounts(), HandClock(1_000.0)
    recorder = Recorder("w", clock, counts)
    cell = recorder.cell("q", "t")
    cell.succeeded, cell.run[7] = 1, 1
    first = counts.numbers()
    cell.succeeded, cell.run[7] = 2, 2
    counts.numbers()
    assert (runs(first), first.cells[0].run) == ({("q", "t"): 1}, {7: 1})
    assert runs(counts.numbers()) == {("q", "t"): 2}


def test_300_tasks_are_named_and_a_row_still_has_50() -> None:
    counts, clock = ProcessCounts(), HandClock(1_000.0)
    recorder = Recorder("w", clock, counts)
    for minute in range(3):
        recorder.begin()
        for number in range(200):
            recorder.cell("q", f"task {minute} {number}").succeeded += 1
        cells = decode(recorder.take()[-1].data)
        assert cells is not None
        assert [cell.task for cell in cells].count("") == 1
        assert len(cells) == 51
        assert sum(cell.succeeded for cell in cells) == 200
        clock.advance(60)
    found = runs(counts.numbers())
    assert len(found) == NAMED + 1
    assert found["q", ""] == 300
    assert found["q", "task 0 0"] == found["q", "task 1 99"] == 1


def test_treadles_own_jobs_and_rows_without_a_task_are_not_counted() -> None:
    counts = ProcessCounts()
    counts.enqueued.add_jobs(
        [
            NewJob(id="1", task="t", queue="q"),
            NewJob(id="2", task="treadle.flow", queue="q"),
            NewJob(id="3", task="", queue="q"),
            NewJob(id="4", task="treadle.schedule", queue="treadle"),
        ]
    )
    assert counts.numbers().enqueued == [("q", "t", 1)]


def test_the_sum_of_processes_names_the_same_pairs_each_time() -> None:
    pairs = Pairs(2)
    one = Numbers(
        cells=[Cell("q", "a", 1), Cell("q", "b", 1)],
        enqueued=[("q", "a", 4)],
        lag={3: 1},
        calls={"claim": {9: 2}},
        errors={"claim": 1},
    )
    two = Numbers(cells=[Cell("q", "c", 5), Cell("q", "a", 2)], calls={"claim": {9: 1}, "get": {1: 1}}, lag={3: 2})

    def added(*each: Numbers) -> Numbers:
        whole = NumbersSum(pairs)
        for numbers in each:
            whole.add(numbers)
        return whole.numbers()

    first = added(one, two)
    assert runs(first) == {("q", "a"): 3, ("q", "b"): 1, ("q", ""): 5}
    assert runs(added(two, one)) == runs(first)
    assert (first.lag, first.calls, first.errors) == ({3: 3}, {"claim": {9: 3}, "get": {1: 1}}, {"claim": 1})
    assert first.enqueued == [("q", "a", 4)]
    assert one.cells[0].succeeded == 1
