"""Layers around enqueue and run: their order, and that an empty layer costs nothing."""

from __future__ import annotations

from typing import Any

import pytest

from treadle import BadTask, Middleware
from treadle.execution.middleware import around_enqueue, around_run, check, overrides
from treadle_testkit.shows import shows


class Noted(Middleware):
    def __init__(self, name: str, notes: list[str]) -> None:
        self.name, self.notes = name, notes

    async def enqueue(self, specs: Any, proceed: Any) -> Any:
        self.notes.append(f"{self.name} before")
        answer = await proceed(specs)
        self.notes.append(f"{self.name} after")
        return answer

    async def run(self, context: Any, proceed: Any) -> Any:
        self.notes.append(f"{self.name} before")
        answer = await proceed()
        self.notes.append(f"{self.name} after")
        return answer


ORDER = ["a before", "b before", "inside", "b after", "a after"]


@shows("the first middleware is the outermost around `enqueue`")
async def test_the_first_is_the_outermost_around_enqueue() -> None:
    notes: list[str] = []

    async def send(specs: Any) -> Any:
        notes.append("inside")
        return list(specs)

    sending: Any = around_enqueue([Noted("a", notes), Noted("b", notes)], send)
    assert await sending([1]) == [1]
    assert notes == ORDER


@shows("the first middleware is the outermost around a run")
async def test_the_first_is_the_outermost_around_run() -> None:
    notes: list[str] = []
    context: Any = None

    async def run() -> int:
        notes.append("inside")
        return 5

    assert await around_run([Noted("a", notes), Noted("b", notes)], context, run) == 5
    assert notes == ORDER


def test_only_overridden_methods_of_a_middleware_are_called() -> None:
    class OnlyRun(Middleware):
        async def run(self, context: Any, proceed: Any) -> Any:
            return await proceed()

    class Child(OnlyRun):
        pass

    layers = [Middleware(), OnlyRun(), Child()]
    assert overrides(layers, "run") == layers[1:]
    assert overrides(layers, "enqueue") == []


def test_a_class_or_an_instance_will_do() -> None:
    class Mine(Middleware):
        pass

    instance = Mine()
    assert check(instance) is instance
    assert isinstance(check(Mine), Mine)
    for wrong in (None, "x", object, lambda: None):
        with pytest.raises(BadTask, match="Middleware"):
            check(wrong)
