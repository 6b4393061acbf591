"""Wrong argument names of Retry, Limit and other classes: the error names the right one."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from treadle import (
    Abort,
    App,
    BadOption,
    Defer,
    Key,
    Limit,
    Redrive,
    Retry,
    Sizes,
)
from treadle.core.argument_names import ELSEWHERE
from treadle.tasks.when import When

KINDS: dict[str, Any] = {
    each.__name__: each
    for each in (
        Key,
        Limit,
        Redrive,
        Retry,
        Sizes,
        When,
    )
}


@pytest.mark.parametrize(
    ("kind", "args", "wrong", "meant"),
    [
        (Retry, (), "max_retries", "did you mean attempts=, which also counts the first attempt?"),  # Celery, dramatiq
        (Retry, (), "max", None),
        (Retry, (), "attempt", "attempts="),
        (Retry, (), "interval", "base="),
        (Retry, (), "retry_backoff_max", "max="),  # RQ, Celery
        (Retry, (), "max_backoff", "max="),
        (Retry, (), "min_backoff", "base="),  # dramatiq
        (Limit, ("a",), "concurrency", "slots="),
        (Limit, ("a",), "window", "per="),
        (Limit, ("a",), "slot", "slots="),
        (Key, ("a",), "ttl", "window="),
        (Redrive, (), "max_retries", "max_times="),
        (Sizes, (), "payloads", "payload="),
        (When, (), "needs", "required="),
    ],
)
def test_an_error_of_a_wrong_name_has_the_right_one(kind: Any, args: Any, wrong: str, meant: str | None) -> None:
    if meant is None:
        kind(*args, **{wrong: 3})
        return
    with pytest.raises(BadOption) as caught:
        kind(*args, **{wrong: 3})
    assert f"unknown argument {wrong}=" in str(caught.value)
    assert meant in str(caught.value).partition("; there are ")[0]


def test_an_error_of_an_unknown_name_lists_the_arguments() -> None:
    with pytest.raises(BadOption, match=r"unknown argument zzz=; expected attempts=, base=, factor=, max=, jitter="):
        Retry(zzz=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_name_of_another_library_is_no_argument_of_ours(name: str) -> None:
    assert not {*ELSEWHERE[name]} & {*inspect.signature(KINDS[name]).parameters}


def test_other_wrong_calls_stay_type_errors() -> None:
    for call in (lambda: Retry(1, 2, 3, 4, 0.5, "fail", 7), Limit, lambda: Key("a", key="b"), lambda: Defer(1, 2)):
        with pytest.raises(TypeError):
            call()  # type: ignore[operator]


def test_argument_values_can_be_copied_pickled_and_encoded() -> None:
    retry = Retry(attempts=3, base=1)
    assert pickle.loads(pickle.dumps(retry)) == copy.copy(retry) == retry
    assert msgspec.json.decode(msgspec.json.encode(retry), type=Retry) == retry
    assert msgspec.structs.replace(retry, attempts=4).attempts == 4
    assert str(pickle.loads(pickle.dumps(Abort("no")))) == "no"
    assert list(inspect.signature(Defer).parameters) == ["seconds_", "until", "limit"]


APP = App("memory://")
CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "task": (lambda: APP.task(name="x", kinds="async")(lambda: None), "kind="),
    "batch": (lambda: APP.batch(name="x", max_wit=1)(lambda items: items), "max_wait="),
    "jobs.list": (lambda: APP.sync.jobs.list(queu="mail"), "'queue'"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_name_in_a_call_of_an_app(name: str) -> None:
    call, meant = CALLS[name]
    with pytest.raises(BadOption, match=f"did you mean {re.escape(meant)}"):
        call()
    APP.sync.close()


def test_the_file_of_an_app_is_that_of_the_code_that_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file of the code that makes the app, not of the code that checks its arguments."""
    monkeypatch.delenv("TREADLE_URL", raising=False)
    assert App().url == f"sqlite:///{Path(__file__).parent / 'treadle.db'}"
