"""Ids: rising, well-formed, and refused when they are not."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from treadle.core.ids import UuidV7, derived, problem
from treadle_testkit.shows import shows


def test_ids_are_uuids_of_version_7_that_only_rise() -> None:
    moments = iter([5.0, 5.0, 4.0, 6.0, 6.0])
    new_id = UuidV7(lambda: next(moments))
    ids = [new_id() for _ in range(5)]
    assert ids == sorted(set(ids))
    assert {UUID(id).version for id in ids} == {7}
    assert UUID(ids[0]).int >> 80 == 5_000


def test_a_burst_within_a_millisecond_stays_in_order() -> None:
    new_id = UuidV7(lambda: 1.0)
    ids = [new_id() for _ in range(300_000)]  # more than the counter's 18 bits: it carries into the milliseconds
    assert ids == sorted(set(ids))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_makes_other_ids() -> None:
    """Also while the clock stands still or was set back: parent and child must not both continue the parent's
    counter."""
    new_id = UuidV7(lambda: 1.0)
    before = new_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, new_id().encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    os.close(writing)
    assert UUID(theirs).version == 7
    assert len({before, theirs, new_id()}) == 3


def test_threads_get_rising_ids_and_none_twice() -> None:
    new_id = UuidV7()
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: [new_id() for _ in range(2_000)], range(8)))
    assert all(ids == sorted(ids) for ids in made)
    assert len({id for ids in made for id in ids}) == 16_000


OURS = [derived("job", 3), f"{derived('job', 3)}-000001", f"{derived('job', 3)}-0123456789ab-000001"]


def test_derived_ids_are_the_same_for_the_same_parts_only() -> None:
    assert derived("job", 3, 1) == derived("job", 3, 1)
    assert len({derived("a", 1), derived("a", 2), derived("a1"), derived("a", "", 1)}) == 4


@pytest.mark.parametrize("id", ["a", "A-z_0.9:@", "x" * 255, "0" * 32, f"{derived(1)}:mail", f"{derived(1)}-000001-x"])
def test_a_valid_id_is_accepted(id: str) -> None:
    assert problem(id) is None


@shows("an id with forbidden characters, or of a reserved form, is refused", area="Keys and ids")
@pytest.mark.parametrize("id", ["", "x" * 256, "a b", "ä", "a/b", "cron:daily:1", "treadle:x", None, 7, "a\n", *OURS])
def test_an_invalid_id_is_refused(id: object) -> None:
    assert problem(id) is not None
