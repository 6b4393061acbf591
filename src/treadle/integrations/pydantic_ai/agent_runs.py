"""The runs of agents in one job, and the names of their steps.

A step must have the same name in each run of the job. It is made from the agent's name, the number of the agent run in
the job, and the id of the tool call, which is in the stored response of the model.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai.durable_exec import (
    CapabilityOperationId,
    DurableOperationId,
    EventStreamHandlerId,
    ModelCancelSuspendedResponseId,
    ModelCompactMessagesId,
    ModelRequestId,
    ToolsetCallToolId,
    ToolsetGetInstructionsId,
    ToolsetGetToolsId,
    ToolsetValidateToolArgumentsId,
)
from pydantic_ai.tools import RunContext

from treadle.core import defaults
from treadle.core.errors import BadStep, NotRunning
from treadle.durable import Durable
from treadle.execution.context import Context, current

DIGITS = 16  # of the checksum in the name of a step whose own name is too long


def job_here() -> Context | None:
    """The job whose steps can be taken here; None: there is none, or its function is not async, or another event loop
    runs here."""
    try:
        here = current()
    except NotRunning:
        return None
    if here.kind != "async":
        return None
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return here if here._durably().backend.loop is loop else None


def within_round(here: Context, key: str) -> str:
    """The id of an agent run, or the key of a step, without the job and its round."""
    return key.removeprefix(here.step_key(".").removesuffix("."))


def in_step(here: Context) -> str | None:
    """The key of the step whose function runs here; None: outside of steps."""
    try:
        return within_round(here, here.step_key())
    except BadStep:
        return None


def why_not_durable() -> str | None:
    """Why an agent that runs here is not durable; None: it runs in a step, which is."""
    try:
        here = current()
    except NotRunning as error:
        return str(error)
    if here.kind != "async":
        return f'it runs in a function of kind="{here.kind}": make the task an async function'
    if in_step(here) is None:
        return "it runs on another event loop than its job: await agent.run(...) in the job's own function"
    return None


class AgentRuns:
    """Numbers the runs of agents in each run of a job, in the order in which they start."""

    def __init__(self) -> None:
        self._started: WeakKeyDictionary[Durable, dict[str, int]] = WeakKeyDictionary()

    def started(self, here: Context, agent: str) -> str:
        """The id of an agent run that starts here. It is the same in every run of this round of the job."""
        return here.step_key(self.numbered(here, agent))

    def numbered(self, here: Context, name: str) -> str:
        """The name with a number, from the second time on that it is used in this run of the job. Inside of a step it
        begins with the key of that."""
        step = in_step(here)
        name = name if step is None else f"{step}/{name}"
        used = self._started.setdefault(here._durably(), {})
        number = used[name] = used.get(name, 0) + 1
        return _as_name(name if number == 1 else f"{name}~{number}")


def step_name(agent: str, here: Context, operation: DurableOperationId, params: Any) -> str:
    """The name of the step for this operation of an agent run."""
    context: RunContext[Any] | None = getattr(params, "ctx", None) or getattr(params, "run_context", None)
    return act_name(agent, here, context, _act(operation, params, context))


def act_name(agent: str, here: Context, context: RunContext[Any] | None, act: str) -> str:
    """The name of an act of an agent run."""
    run_id = agent if context is None or context.run_id is None else context.run_id
    own = within_round(here, run_id)
    if own == run_id != agent:  # an id of the caller
        own = f"{agent}~{own}"
    return _as_name(f"{own}.{act}")


def _act(operation: object, params: Any, context: RunContext[Any] | None) -> str:
    call = "" if context is None or context.tool_call_id is None else f":{context.tool_call_id}"
    match operation:
        case ModelRequestId(model_id=model):
            return f"model{_of_model(model)}"
        case ModelCompactMessagesId(model_id=model):
            return f"compact{_of_model(model)}"
        case ModelCancelSuspendedResponseId(model_id=model):
            return f"withdraw{_of_model(model)}"
        case EventStreamHandlerId():
            return "event"
        case ToolsetCallToolId():
            return f"{params.name}{call}"
        case ToolsetValidateToolArgumentsId():
            return f"{params.name}.check{call}"
        case ToolsetGetToolsId(toolset_id=toolset):
            return f"{toolset}.tools"
        case ToolsetGetInstructionsId(toolset_id=toolset):
            return f"{toolset}.instructions"
        case CapabilityOperationId(capability_id=capability, operation=act):
            return f"{capability}.{act}{call}"
        case _:  # a kind of operation that a later release adds
            return f"{type(operation).__name__}{call}"


def _of_model(model: str | None) -> str:
    return "" if model is None else f":{model}"


def _as_name(text: str) -> str:
    """The text as the name of a step: without the marks that Treadle puts into names, and not too long."""
    name = "".join([c if c.isprintable() and c != "#" else "~" for c in text])
    if len(name) > defaults.MAX_NAME - DIGITS:
        digest = hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
        name = f"{name[: defaults.MAX_NAME - 2 * DIGITS]}~{digest}"
    return name
