"""The recipe of the guide: a graph of LangGraph inside one job, its nodes as steps."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

import pytest

from treadle import App, Retry, current
from treadle.testing import drain

graphs = pytest.importorskip("langgraph.graph", reason="langgraph is not among the pins")


class State(TypedDict):
    topic: str
    found: Annotated[list[str], operator.add]


def as_step(name: str, node: Callable[[State], Awaitable[dict[str, Any]]]) -> Callable[[State], Any]:
    async def step(state: State) -> dict[str, Any]:
        return await current().step(name, node, state)

    return step


async def test_nodes_are_steps(app: App) -> None:
    effects, fail = Counter[str](), Counter[str]({"web": 2, "write": 1})

    def node(name: str) -> Callable[[State], Awaitable[dict[str, Any]]]:
        async def run(state: State) -> dict[str, Any]:
            effects[name] += 1
            if fail[name] > 0:
                fail[name] -= 1
                raise ConnectionError(name)
            return {"found": [f"{name} of {state['topic']} after {len(state['found'])}"]}

        return run

    graph = graphs.StateGraph(State)
    for name in ("plan", "web", "papers", "write"):
        graph.add_node(name, as_step(name, node(name)))
    graph.add_edge(graphs.START, "plan")
    for name in ("web", "papers"):
        graph.add_edge("plan", name)
        graph.add_edge(name, "write")
    graph.add_edge("write", graphs.END)
    compiled = graph.compile()

    @app.task(retry=Retry(attempts=5, base=0))
    async def research(topic: str) -> list[str]:
        ended = await compiled.ainvoke({"topic": topic, "found": []})
        return list(ended["found"])

    job = await research.enqueue("bees")
    await drain(app)
    assert len(await job.result(0)) == 4
    assert (await job.result(0))[-1] == "write of bees after 3"
    assert effects == {"plan": 1, "web": 3, "papers": 1, "write": 2}
