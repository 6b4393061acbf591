"""An agent whose process is killed by SIGKILL at random moments.

`python -m tests.faults.agent_kills URL FOLDER KILLS SEED` prints the extra calls of the model and of the tools. Each
process is forked, as importing the framework takes a second.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from pydantic_ai.usage import UsageLimits

from tests.waiting import random_moment, until_blocking
from treadle import App, Worker
from treadle.integrations.pydantic_ai import TreadleDurability

LEASE = 1.0  # s until another worker takes the job of one that was killed


def effects(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().splitlines() if ledger.exists() else []


async def life(url: str, folder: Path, turns: int) -> None:
    """A worker that runs the agent to its end."""
    tools = FunctionToolset[Any](id="tools")

    async def effect(name: str) -> None:
        with (folder / "ledger").open("a") as out:
            out.write(f"{name}\n")
        await random_moment(random.Random(0), 0.01, 0.03)  # a call takes its time

    @tools.tool_plain
    async def look(what: str) -> str:
        await effect(f"tool {what}")
        return what

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        turn = sum(isinstance(message, ModelResponse) for message in messages)
        await effect(f"model {turn}")
        if turn == turns:
            return ModelResponse(parts=[TextPart(f"after {turn} turns")])
        return ModelResponse(parts=[ToolCallPart("look", {"what": f"{turn}{side}"}) for side in "ab"])

    agent = Agent(FunctionModel(answer), name="analyst", toolsets=[tools], capabilities=[TreadleDurability()])
    app = App(url)

    @app.task(max_lost=0)
    async def analyse() -> str:
        return (await agent.run("why?", usage_limits=UsageLimits(request_limit=None))).output

    async with Worker(app, lease=LEASE, poll=0.05):
        result = await (await app.enqueue(analyse.options(id="the-agent").job())).result(timeout=600)
    (folder / "result").write_text(result)


def born(url: str, folder: Path, turns: int) -> int:
    """Fork a process that lives it."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        asyncio.run(life(url, folder, turns))
        code = 0
    finally:
        os._exit(code)


def killed(url: str, folder: Path, kills: int, seed: int) -> dict[str, Any]:
    """Kill the agent at random moments, each after some progress, and let it end."""
    rng, turns = random.Random(seed), kills
    for _ in range(kills):
        before, child = len(effects(folder)), born(url, folder, turns)
        until_blocking(lambda before=before: len(effects(folder)) > before, "a call of this life")
        asyncio.run(random_moment(rng, 0.0, 0.08))
        os.kill(child, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    child = born(url, folder, turns)
    assert os.waitpid(child, 0)[1] == 0
    found = Counter(effects(folder))
    expected = {f"model {turn}" for turn in range(turns + 1)}
    expected |= {f"tool {turn}{side}" for turn in range(turns) for side in "ab"}
    more = {kind: sum(n - 1 for name, n in found.items() if name.startswith(kind)) for kind in ("model", "tool")}
    missing = sorted(expected - found.keys())
    return {"missing": missing, "more": more, "result": (folder / "result").read_text(), "calls": len(expected)}


if __name__ == "__main__":
    url, folder, kills, seed = sys.argv[1:]
    print(json.dumps(killed(url, Path(folder), int(kills), int(seed))))
