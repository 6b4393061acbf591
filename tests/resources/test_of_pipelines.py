"""Handlers of pipelines have dependencies too: a dependency is no field of the run."""

from __future__ import annotations

from typing import Any

from treadle import App, depends
from treadle.contrib.pipeline import Pipeline, Step


async def pool() -> str:
    return "pool"


async def test_handlers_of_each_kind() -> None:
    async with App("memory://") as app:
        p = Pipeline("p", [Step("one", children=["child"]), Step("two"), Step("three")], app=app)

        @p.handler("one")
        async def one(n: int, on: str = depends(pool)) -> dict[str, Any]:
            return {"one": f"{n} {on}", "children": {"child": [{}]}}

        @p.handler("one:child")
        def child(n: int, on: str = depends(pool)) -> str:
            return f"{n} {on}"

        @p.handler("two")
        def two(on: str = depends(pool), **rest: Any) -> dict[str, Any]:
            [result] = rest["one_results"]
            return {"two": [on, result["result"]]}

        @p.batch_handler("three", max_wait=0)
        async def three(items: list[dict[str, Any]], on: str = depends(pool)) -> list[dict[str, Any]]:
            return [{"three": on} for _ in items]

        async with p.worker():
            found = await (await p.start(n=1)).result(60)
        assert (found["one"], found["two"], found["three"]) == ("1 pool", ["pool", "1 pool"], "pool")
