"""The law of arguments, with random values of random types: a call is accepted exactly if its values arrive equal."""

from __future__ import annotations

import dataclasses
from collections import Counter
from datetime import datetime, time
from enum import Enum
from typing import Any

import msgspec
import pydantic
import pytest

from tests.serialization.generated_types import Types
from tests.serialization.test_call_codec import one
from treadle.errors import BadArgument, BadResult
from treadle.serialization.call_codec import CallCodec
from treadle_testkit.shows import shows

PER_TYPE = 10


def written(value: Any) -> Any:
    """The types and contents of a value at every level, as text and tuples. It shares no code with the library."""
    kind = type(value)
    if isinstance(value, pydantic.BaseModel):
        state = {**value.__dict__, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
        parts: Any = {name: written(part) for name, part in state.items()}
    elif isinstance(value, msgspec.Struct):
        parts = {name: written(getattr(value, name)) for name in value.__struct_fields__}
    elif dataclasses.is_dataclass(value):
        parts = {field.name: written(getattr(value, field.name)) for field in dataclasses.fields(value)}
    elif isinstance(value, datetime | time):  # a zone arrives as its offset
        parts = repr([value.replace(tzinfo=None), value.utcoffset()])
    elif isinstance(value, Enum):
        parts = repr(value)
    elif isinstance(value, dict):
        parts = sorted(([written(key), written(part)] for key, part in value.items()), key=repr)
    elif isinstance(value, set | frozenset):
        parts = sorted(map(written, value), key=repr)
    elif isinstance(value, list | tuple):
        parts = list(map(written, value))
    else:
        parts = repr(value)
    return [f"{kind.__module__}.{kind.__qualname__}", parts]


def sent(task: CallCodec, value: object) -> str | BadArgument:
    try:
        return task.encode_call((value,), {})
    except BadArgument as error:
        return error


def count(seeds: range) -> Counter[str]:
    """Send each value and read it: accepted and equal, or refused. Raises AssertionError for anything else."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        made = Types(seed).any()
        task = one(made.hint)
        for _ in range(PER_TYPE):
            value = made.draw()
            before = repr(written(value))
            text = sent(task, value)
            if isinstance(text, BadArgument):
                counts["refused"] += 1
                assert not made.calm, f"seed {seed}: {made.hint}: {text}"
                with pytest.raises(BadResult):
                    task.encode_result(value)
                continue
            (back,), _ = task.decode_call(text)
            assert repr(written(back)) == before, f"seed {seed}: {made.hint} {value} {back} {text}"
            assert repr(written(task.decode_result(task.encode_result(value)))) == before, f"seed {seed}"
            counts["arrived equal"] += 1
    return counts


def test_generated_values_arrive_equal_or_are_refused() -> None:
    counts = count(range(40))
    assert counts["arrived equal"] > 100
    assert counts["refused"] > 10


@pytest.mark.slow
@shows("of 10,000 generated values of generated types, each arrives equal or is refused at the call")
def test_ten_thousand_generated_values() -> None:
    counts = count(range(1_000, 2_000))
    print(f"{counts.total():,} values: {dict(counts)}; 0 changed silently, 0 accepted that cannot run")
    assert counts["arrived equal"] + counts["refused"] == 10_000
