"""Numbers with more digits than Python reads are found in every JSON text, and digits within its strings are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.core.long_numbers import MOST_DIGITS, has_long_number

runs = st.integers(MOST_DIGITS - 3, MOST_DIGITS + 3) | st.integers(1, 300)
numbers = runs.map(lambda count: "7" * count)
strings = st.builds(lambda text, run: json.dumps(text + run + text), st.text(max_size=5), numbers)
leaves = numbers | strings | numbers.map("-{}".format) | st.sampled_from(["null", "[]", '"\\\\"', '"\\""', '"7,7"'])
texts = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda each: f"[{','.join(each)}]")
        | st.lists(st.tuples(strings, inner), max_size=3).map(
            lambda pairs: f"{{{','.join(f'{name}: {value}' for name, value in pairs)}}}"
        )
    ),
    max_leaves=8,
)


@settings(deadline=None)  # other processes of a test run take the processor, too
@given(texts)
def test_such_numbers_are_found_outside_of_strings_only(text: str) -> None:
    longest = 0

    def seen(digits: str) -> Any:
        nonlocal longest
        longest = max(longest, len(digits.lstrip("-")))

    json.loads(text, parse_int=seen)
    assert has_long_number(text) is (longest > MOST_DIGITS)


@pytest.mark.parametrize(
    "text", ['"' + "7" * 9_000, "7" * 9_000 + '"', '"\\"' + "7" * 9_000, '"' * 9_001 + "7" * 9_000]
)
def test_a_text_that_is_no_json_is_looked_at_too(text: str) -> None:
    assert has_long_number(text) is (text[0] == "7")
