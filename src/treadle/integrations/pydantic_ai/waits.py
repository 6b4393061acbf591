"""Waits of an agent for people and for events: the job waits without a slot, and each answer counts once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final

import msgspec
from msgspec import Struct
from pydantic import JsonValue
from pydantic_ai.durable_exec import ExternalEventError, ExternalEventWaiter
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import DeferredToolRequests, DeferredToolResults, RunContext, ToolApproved, ToolDenied

from treadle.app import App
from treadle.core.errors import UNREADABLE
from treadle.execution.context import Context
from treadle.integrations.pydantic_ai.agent_runs import act_name
from treadle.integrations.pydantic_ai.options import Approve, approve_of_tool

UNDECIDED: Final = "Nobody has decided about this tool call in time."


async def approved(
    here: Context, agent: str, ctx: RunContext[Any], requests: DeferredToolRequests, default: Approve | None
) -> DeferredToolResults | None:
    """Ask people about the tool calls that need approval and say by whom, all at once. None: there is none."""
    asked: dict[str, Awaitable[ToolApproved | ToolDenied]] = {}
    answered_by = dict[str, str]()
    for call in requests.approvals:
        tool = ctx.tools.get(call.tool_name)
        options = approve_of_tool(default, None if tool is None else tool.metadata, call.tool_name)
        if options is not None:
            name = act_name(agent, here, ctx, f"{call.tool_name}:{call.tool_call_id}")
            asked[call.tool_call_id] = _decision(here, name, call, options, answered_by)
    if not asked:
        return None
    found = await asyncio.gather(*asked.values())
    return requests.build_results(approvals=dict(zip(asked, found, strict=True)), answered_by=answered_by)


async def _decision(
    here: Context, name: str, call: ToolCallPart, options: Approve, answered_by: dict[str, str]
) -> ToolApproved | ToolDenied:
    shown = {"tool": call.tool_name, "arguments": call.args_as_dict()}
    try:
        decision = await here.approve(name, by=options.get("by", ""), until=options.get("until"), show=shown)
    except TimeoutError:
        return ToolDenied(UNDECIDED)
    answered_by[call.tool_call_id] = decision.by
    if decision.approved:
        return ToolApproved()
    return ToolDenied(decision.reason) if decision.reason else ToolDenied()


class Token(Struct, frozen=True, array_like=True):
    """The job that waits for an event, and the name of the signal."""

    job: str
    signal: str


class Answer(Struct, frozen=True, omit_defaults=True):
    """The value of the signal: what was answered, or why there is no answer."""

    value: Any = None
    failed: str | None = None


class SignalWaiter(ExternalEventWaiter):
    """Waits for external events by signals of the job: `ask` is a step, and receives the token of the wait."""

    def __init__(self, here: Context, numbered: Callable[[str], str]) -> None:
        self._here, self._numbered = here, numbered

    async def wait(
        self, name: str, *, ask: Callable[[str], Awaitable[JsonValue]], timeout: timedelta | None
    ) -> JsonValue:
        """See `ExternalEventWaiter`."""
        here, signal = self._here, self._numbered(name)
        token = msgspec.json.encode(Token(here.id, signal)).decode()

        async def asking() -> Any:
            return await ask(token)

        answered: JsonValue = await here.step(f"{signal}.ask", asking)
        if answered is not None:
            return answered
        try:
            answer = await here.wait_for(signal, timeout, returns=Answer)
        except TimeoutError:
            raise ExternalEventError(f"no answer has arrived within {timeout}") from None
        if answer.failed is not None:
            raise ExternalEventError(answer.failed)
        found: JsonValue = answer.value
        return found


async def resolve_external_event(app: App, token: str, payload: Any) -> None:
    """Answer the wait of an agent in a job, such as that of `RequestInput`, with JSON. `token`: as `ask` received it.
    Raises UserError for another text, and what `app.jobs.signal` raises: Signalled if there is an answer already."""
    await _signal(app, token, Answer(payload))


async def fail_external_event(app: App, token: str, reason: str) -> None:
    """End the wait of an agent in a job without an answer: it raises ExternalEventError with this reason. See
    `resolve_external_event`."""
    await _signal(app, token, Answer(failed=reason))


async def _signal(app: App, token: str, answer: Answer) -> None:
    try:
        at = msgspec.json.decode(token, type=Token)
    except UNREADABLE:
        raise UserError(f"expected the token that `ask` received in a job, found {token!r:.60}") from None
    await app.jobs.signal(at.job, at.signal, msgspec.to_builtins(answer))
