"""Wrong argument names of Retry, Limit and their like: the error says which name is meant."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import msgspec
import pytest

from treadle import AIMD, Abort, BadOption, Defer, Key, Limit, Redrive, Retry, Sizes
from treadle.words import ELSEWHERE

KINDS: dict[str, Any] = {each.__name__: each for each in (AIMD, Abort, Defer, Key, Limit, Redrive, Retry, Sizes)}


@pytest.mark.parametrize(
    ("kind", "args", "wrong", "meant"),
    [
        (Retry, (), "max_retries", "did you mean attempts=, which counts the first try too?"),  # Celery, dramatiq
        (Retry, (), "max", None), (Retry, (), "attempt", "attempts="),
        (Retry, (), "interval", "base="), (Retry, (), "retry_backoff_max", "max="),  # RQ, Celery
        (Retry, (), "max_backoff", "max="), (Retry, (), "min_backoff", "base="),  # dramatiq
        (Limit, ("a",), "concurrency", "slots="), (Limit, ("a",), "window", "per="), (Limit, ("a",), "slot", "slots="),
        (Key, ("a",), "ttl", "window="), (Defer, (), "countdown", "Defer(30)"), (Defer, (), "seconds", "Defer(30)"),
        (Defer, (), "eta", "until="), (Abort, (), "reason", "message="), (Redrive, (), "max_retries", "max_times="),
        (AIMD, (), "multiplier", "factor="), (Sizes, (), "payloads", "payload="),
    ],
)  # fmt: skip
def test_a_wrong_name_is_answered_with_the_right_one(kind: Any, args: Any, wrong: str, meant: str | None) -> None:
    if meant is None:
        kind(*args, **{wrong: 3})
        return
    with pytest.raises(BadOption) as caught:
        kind(*args, **{wrong: 3})
    assert f"there is no {wrong}=" in str(caught.value)
    assert meant in str(caught.value).partition("; there are ")[0]


def test_a_name_that_is_like_none_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadOption, match=r"there is no zzz=; there are attempts=, base=, factor=, max=, jitter="):
        Retry(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_word_of_others_is_none_of_ours(name: str) -> None:
    assert not {*ELSEWHERE[name]} & {*inspect.signature(KINDS[name]).parameters}


def test_other_wrong_calls_stay_type_errors() -> None:
    for call in (lambda: Retry(1, 2, 3, 4, 5, 6), Limit, lambda: Key("a", key="b"), lambda: Defer(1, 2)):
        with pytest.raises(TypeError):
            call()  # type: ignore[operator]


def test_they_are_values_as_before() -> None:
    retry = Retry(attempts=3, base=1)
    assert pickle.loads(pickle.dumps(retry)) == copy.copy(retry) == retry
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry
    assert msgspec.structs.replace(retry, attempts=4).attempts == 4
    assert str(pickle.loads(pickle.dumps(Abort("no")))) == "no"
    assert list(inspect.signature(Defer).parameters) == ["seconds_", "until", "limit"]
