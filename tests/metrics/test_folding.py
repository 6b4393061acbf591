"""Folding: sums are kept, a second leader changes nothing, late rows are added, old rows are deleted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.query_model import MetricsRow
from treadle.metrics import Cell, Cells, decode, encode, fold, windows
from treadle.metrics.folding import AGES, DAY, HOUR, KEPT

Stored = dict[tuple[float, float, str], MetricsRow]
NOW = 500 * DAY

names = st.sampled_from(["a", "b", "c"])
histograms = st.dictionaries(st.integers(0, 200), st.integers(1, 50), max_size=4)
cells = st.builds(
    Cell,
    queue=names,
    task=names,
    succeeded=st.integers(0, 1_000),
    failed=st.integers(0, 9),
    retried=st.integers(0, 9),
    other=st.integers(0, 9),
    run=histograms,
    wait=histograms,
)
rows = st.lists(
    st.builds(
        lambda minute, source, found: MetricsRow(at=minute * 60.0, span=60.0, source=source, data=encode(found)),
        st.integers(int((NOW - 4 * DAY) // 60), int(NOW // 60)),
        st.sampled_from(["w1", "w2", "w3"]),
        st.lists(cells, max_size=3),
    ),
    max_size=30,
)


def stored(rows: list[MetricsRow]) -> Stored:
    return {(row.at, row.span, row.source): row for row in rows}


def folded(state: Stored, now: float) -> Stored:
    state = dict(state)
    for step in fold(list(state.values()), now):
        for row in step.remove:
            del state[row.at, row.span, row.source]
        state |= stored(list(step.store))
    return state


def whole(state: Stored) -> dict[tuple[str, str], Cell]:
    found = Cells(1_000)
    for row in state.values():
        found.add(decode(row.data) or [])
    return {name: cell for name, cell in found.by_name.items() if cell != Cell(*name)}


@pytest.mark.slow
@given(rows)
def test_the_fold_of_the_parts_is_the_fold_of_the_whole(found: list[MetricsRow]) -> None:
    before = stored(found)
    after = folded(before, NOW)
    assert whole(after) == whole(before)
    assert all(row.span >= span for row in after.values() for age, span in AGES if row.at + HOUR <= NOW - age)
    assert folded(after, NOW) == after


@pytest.mark.slow
@given(rows, rows)
def test_rows_that_arrive_late_are_added(first: list[MetricsRow], late: list[MetricsRow]) -> None:
    before, more = stored(first), stored(late)
    new = {key: row for key, row in more.items() if key not in before}
    assert whole(folded(folded(before, NOW) | new, NOW)) == whole(before | new)


@pytest.mark.slow
@given(rows)
def test_two_leaders_that_fold_at_the_same_time_store_the_same(found: list[MetricsRow]) -> None:
    state, one = stored(found), stored(found)
    for step in fold(stored(found).values(), NOW):
        for _ in range(2):
            for row in step.remove:
                state.pop((row.at, row.span, row.source), None)
            state |= stored(list(step.store))
    assert state == folded(one, NOW)


def test_old_rows_are_deleted_and_unreadable_ones_stay_until_then() -> None:
    old = MetricsRow(at=NOW - KEPT - HOUR, span=HOUR, source="", data=b"from the future")
    newer = MetricsRow(at=NOW - 3 * HOUR, span=60.0, source="w", data=b"\xffzzz")
    [step] = fold([old, newer], NOW)
    assert [(row.at, row.data) for row in step.remove] == [(old.at, b"")]
    assert step.store == ()


def test_data_that_cannot_be_read_is_not_overwritten() -> None:
    target = MetricsRow(at=NOW - 3 * HOUR, span=600.0, source="", data=b"\xff")
    minute = MetricsRow(at=NOW - 3 * HOUR, span=60.0, source="w", data=encode([Cell("q", "t", 1)]))
    assert list(fold([target, minute], NOW)) == []


def test_a_pass_reads_whole_hours_and_a_sweep_everything() -> None:
    for every in (windows(NOW + 1_234, False), windows(NOW + 1_234, True)):
        found = list(every)
        assert all(since % HOUR == 0 and until % HOUR == 0 and since < until for since, until in found)
    assert all(before[1] == after[0] for before, after in itertools.pairwise(found))
    assert found[0][0] == 0.0
    assert found[-1][1] > NOW + 1_234 - 2 * HOUR
