"""Codecs of an app and of its tasks, each with its own in one workflow: which codec writes a value, and which reads
it."""

from __future__ import annotations

import base64
from collections import Counter
from typing import Any

import pytest

from treadle import App, BadResult, DefaultCodec, Worker, flow


class Wrapped:
    """The tagged form in base 64, after a name; it counts what it writes and reads."""

    def __init__(self, name: str) -> None:
        self.name, self.inner = name, DefaultCodec()
        self.calls: Counter[str] = Counter()

    def encode(self, value: object) -> str:
        self.calls["encode"] += 1
        return self.name + base64.b64encode(self.inner.encode(value).encode()).decode()

    def decode(self, text: str) -> Any:
        self.calls["decode"] += 1
        name, rest = text[: len(self.name)], text[len(self.name) :]
        assert name == self.name, f"{self.name} was to read text that {name} wrote"
        return self.inner.decode(base64.b64decode(rest).decode())


@pytest.mark.parametrize("reduce", ["sum", "list", "last", "first"])
async def test_a_fold_is_written_by_the_folding_tasks_codec_and_its_parts_read_by_their_own(reduce: Any) -> None:
    of_app, of_one, of_parent = Wrapped("A."), Wrapped("B."), Wrapped("C.")
    app = App("memory://", codec=of_app)

    @app.task(codec=of_one)
    async def one(n: int) -> int:
        return n

    @app.task
    async def other(n: int) -> int:
        return n

    @app.task(codec=of_parent, reduce=reduce)
    async def parent() -> Any:
        return flow(one.job(1)).then(other.job(10)).then(one.job(100))

    @app.task(reduce=reduce)
    async def grand() -> Any:
        return flow(parent.job())

    async with app, Worker(app):
        job = await parent.enqueue()
        expected = {"sum": 111, "list": [1, 10, 100], "last": 100, "first": 1}[reduce]
        assert await job.workflow.result(30) == expected
        row = await app.jobs.get(job.id)
        if reduce in ("sum", "last", "first"):
            assert row.value is not None
        deep = await grand.enqueue()
        await deep.workflow.result(30)


class Losing(Wrapped):
    """Loses strings longer than any probe, which registration does not notice."""

    def encode(self, value: object) -> str:
        return super().encode(_cut(value))


def _cut(value: Any) -> Any:
    return value[:500] if isinstance(value, str) else value


async def test_under_testing_every_result_is_read_back() -> None:
    app = App("memory://", codec=Losing("L."))

    @app.task
    async def long() -> str:
        return "x" * 1000

    async with app.testing() as t:
        await long.enqueue()
        with pytest.raises(BadResult, match="does not survive its codec"):
            await t.drain(raise_errors=True)
