"""The name of a worker in a claim id."""

from __future__ import annotations

import pytest

from treadle.core.claim_ids import worker_name


@pytest.mark.parametrize(
    ("claim_id", "name"),
    [
        ("mail-1#7", "mail-1"),
        ("mail#1#7", "mail#1"),
        ("phone", "phone"),  # a client of the worker protocol that claims without a number
        ("", ""),
        (None, None),
    ],
)
def test_the_number_of_the_claim_is_left_out(claim_id: str | None, name: str | None) -> None:
    assert worker_name(claim_id) == name
