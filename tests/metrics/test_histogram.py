"""Histograms: a quantile is off by at most 12 %, and adding histograms is adding samples."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from treadle.metrics.histogram import LARGEST, add, bucket_of, middle, quantiles

durations = st.floats(min_value=1e-6, max_value=1e8)
RANKS = (0.5, 0.95, 0.99)


def histogram(sample: list[float]) -> dict[int, int]:
    found: dict[int, int] = {}
    for each in sample:
        add(found, {bucket_of(each): 1})
    return found


@given(st.lists(durations, min_size=1))
def test_a_quantile_is_off_by_twelve_per_cent_at_most(sample: list[float]) -> None:
    ordered = sorted(sample)
    for rank, found in zip(RANKS, quantiles(histogram(sample), RANKS), strict=True):
        exact = int(ordered[ceil(rank * len(sample)) - 1] * 1e6) / 1e6  # buckets count whole microseconds
        assert found is not None
        assert abs(found - exact) <= 0.12 * exact + 1e-12


@given(st.lists(st.lists(durations)))
def test_the_sum_of_histograms_is_the_histogram_of_all(parts: list[list[float]]) -> None:
    whole: dict[int, int] = {}
    for part in parts:
        add(whole, histogram(part))
    assert whole == histogram([each for part in parts for each in part])


@given(st.integers(min_value=0, max_value=2**62))
def test_buckets_rise_with_the_duration(us: int) -> None:
    assert bucket_of(us / 1e6) <= bucket_of((us + 1) * 1.01 / 1e6)


def test_durations_out_of_range_have_a_bucket_too() -> None:
    assert bucket_of(-5.0) == 0
    assert bucket_of(1e30) == LARGEST
    assert middle(LARGEST) > 1e12


def test_an_empty_histogram_has_no_quantile() -> None:
    assert quantiles({}, RANKS) == (None, None, None)
