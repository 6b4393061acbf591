"""Histograms of durations on a logarithmic scale, as plain dicts from bucket to count.

A bucket has a quarter of an octave of microseconds, so a quantile differs from the exact one by at most 12 %. Adding
the counts of two histograms gives the histogram of both samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Histogram = dict[int, int]

LARGEST: Final = 4 * 62 + 3  # the last bucket: durations of 2^63 us and more
MOST: Final = 2**53 - 1  # the largest count, also in JSON: sums stay there


def bucket_of(seconds: float) -> int:
    """The bucket of a duration; a negative one counts as 0."""
    us = int(seconds * 1e6)
    if us < 4:
        return max(us, 0)
    bits = us.bit_length()
    return min((bits - 2 << 2) + (us >> bits - 3 & 3), LARGEST)


def middle(bucket: int) -> float:
    """The duration in seconds that stands for a bucket: its harmonic middle, 11.2 % from either end at most."""
    if bucket < 8:
        return bucket / 1e6  # the bucket has one whole microsecond
    octave, quarter = divmod(bucket, 4)
    low, high = 4 + quarter << octave - 1, 5 + quarter << octave - 1
    return 2 * low * high / (low + high) / 1e6


def add(into: Histogram, more: Mapping[int, int]) -> None:
    """Add the counts of another histogram."""
    for bucket, count in more.items():
        into[bucket] = min(into.get(bucket, 0) + count, MOST)


def quantiles(histogram: Mapping[int, int], ranks: tuple[float, ...]) -> tuple[float | None, ...]:
    """The durations in seconds at these ranks, in rising order between 0 and 1; None for an empty histogram."""
    whole = sum(histogram.values())
    if not whole:
        return (None,) * len(ranks)
    buckets, durations, seen = iter(sorted(histogram.items())), list[float | None](), 0
    bucket, count = next(buckets)
    for rank in ranks:
        while seen + count < rank * whole:
            seen += count
            bucket, count = next(buckets, (bucket, whole))
        durations.append(middle(bucket))
    return tuple(durations)


def edges(bucket: int) -> tuple[float, float]:
    """The shortest and the longest duration in seconds that a bucket stands for."""
    if bucket < 8:
        return bucket / 1e6, (bucket + 1) / 1e6  # the bucket has one whole microsecond
    octave, quarter = divmod(bucket, 4)
    return (4 + quarter << octave - 1) / 1e6, (5 + quarter << octave - 1) / 1e6
