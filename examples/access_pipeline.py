"""Access to servers, granted by a pipeline over named queues: steps, children of steps, one state for each run.

    treadle worker examples/access_pipeline.py:app
    python examples/access_pipeline.py

preparation -> access-check (children) -> access-logic -> prepare-manage-reward -> manage-reward (children) ->
access-result. The checks run concurrently, at most five in five seconds for each server. The run continues when all of
them have ended, even if one of them failed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from treadle import Abort, App, Limit, Retry
from treadle.contrib.pipeline import Pipeline, Step

app = App()

access = Pipeline(
    "access",
    [
        Step("preparation"),
        Step(
            "access-check",
            children=["discord", "chain"],
            on_child_failure="continue",
            limits=["checks:{guildId}"],
            retry=Retry(attempts=2, base=0.05),
        ),
        Step("access-logic"),
        Step("prepare-manage-reward", priority_shift=-1),
        Step("manage-reward", children=["discord"], on_child_failure="fail", retry=Retry(attempts=10, base=0.05)),
        Step("access-result"),
    ],
    labels=["userId", "roleIds", "guildId"],
    app=app,
)


@access.handler("preparation")
async def preparation(userId: int, roleIds: list[int]) -> dict[str, Any]:
    return {"requirements": [{"role": role, "on": "discord" if role % 2 else "chain"} for role in roleIds]}


@access.handler("access-check")
async def access_check(requirements: list[dict[str, Any]]) -> dict[str, Any]:
    children: dict[str, list[dict[str, Any]]] = {"discord": [], "chain": []}
    for each in requirements:
        children[each["on"]].append({"role": each["role"]})
    return {"children": children}


@access.handler("access-check:discord")
async def check_discord(userId: int, role: int) -> bool:
    return userId % 2 == 0


@access.handler("access-check:chain")
async def check_chain(role: int) -> bool:
    if role == 4:
        raise Abort("the node does not answer")
    return True


@access.handler("access-logic")
async def access_logic(access_check_results: list[dict[str, Any]]) -> dict[str, Any]:
    granted = [each["given"]["role"] for each in access_check_results if each["result"]]
    return {"granted": granted} if granted else {"granted": [], "next_step": "access-result"}


@access.handler("prepare-manage-reward")
async def prepare(granted: list[int]) -> dict[str, Any]:
    return {"actions": [{"role": role, "action": "ADD"} for role in granted]}


@access.handler("manage-reward")
async def manage(actions: list[dict[str, Any]]) -> dict[str, Any]:
    return {"children": {"discord": actions}}


@access.handler("manage-reward:discord")
def give_role(userId: int, role: int, action: str) -> str:
    return f"{action} {role} for {userId}"


@access.handler("access-result")
async def access_result(
    granted: list[int], manage_reward_results: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    return {"done": [each["result"] for each in manage_reward_results or []]}


access.complete()


async def main() -> None:
    async with app:
        await app.limits.set(Limit("checks", rate=5, per=5))
        runs = [await access.start(userId=user, roleIds=[1, 2, 4], guildId=1985) for user in (62, 63)]
        runs.append(await access.start(userId=65, roleIds=[4], guildId=7))
        for run in runs:
            state = await run.result(timeout=30)
            print(state["userId"], "got", state["granted"], state["done"])
        print(len(await access.find(guildId=1985)), "runs for 1985,", len(await access.find(roleIds=2)), "for role 2")


if __name__ == "__main__":
    asyncio.run(main())
