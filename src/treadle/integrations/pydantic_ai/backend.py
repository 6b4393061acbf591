"""Model requests, tool calls and the other operations of an agent, each as a step of the job that runs here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

from pydantic_ai.durable_exec import (
    BoundDurableOperation,
    DurableOperation,
    DurableOperationBackend,
    durable_unit_scope,
    record_durable_unit,
)
from pydantic_ai.messages import ModelResponse

from treadle.core.errors import NotRunning
from treadle.execution.context import current
from treadle.integrations.pydantic_ai.agent_runs import job_here, step_name
from treadle.integrations.pydantic_ai.options import Options, options_of_tool

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")


class Steps(DurableOperationBackend[Options]):
    """Binds the operations of one agent to steps.

    options  by the role of an operation
    tokens   the name of the limit to which the tokens of model requests are counted; None: none
    """

    def __init__(self, agent: str, options: Mapping[str, Options], tokens: str | None = None) -> None:
        self._agent, self._options, self._tokens = agent, options, tokens

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """The operation as a step."""
        tokens = self._tokens if operation.config_role == "model" else None
        return StepOperation(self._agent, operation, self._options.get(operation.config_role, {}), tokens)

    def config_for_tool(
        self, operation: DurableOperation[ParamsT, WireT, ResultT], *, tool: object | None, tool_name: str
    ) -> Options | Literal[False]:
        """The options of a tool's step; False: its calls are no steps."""
        return options_of_tool(self._options.get("tool", {}), tool, tool_name)

    def registrations(self) -> Sequence[Callable[..., object]]:
        """None: a step needs no registration."""
        return ()


class StepOperation(BoundDurableOperation[ParamsT, WireT, ResultT]):
    """One operation of an agent, whose calls are steps."""

    def __init__(
        self,
        agent: str,
        operation: DurableOperation[ParamsT, WireT, ResultT],
        options: Options,
        tokens: str | None = None,
    ) -> None:
        self._agent, self._operation, self._options, self._tokens = agent, operation, options, tokens

    @property
    def operation(self) -> DurableOperation[ParamsT, WireT, ResultT]:
        """The operation of the agent."""
        return self._operation

    async def __call__(self, params: ParamsT, *, config: object | None = None) -> ResultT:
        """The result of the operation, from the history of the job if it is there."""
        operation, executed = self._operation, False

        async def body() -> Any:
            nonlocal executed
            executed = True
            if self._tokens is not None:
                current().spent(**{self._tokens: 0})  # raises BadOption before the request is paid
            with durable_unit_scope():
                result = await operation.handler(params)
            if self._tokens is not None and isinstance(result, ModelResponse):
                current().spent(**{self._tokens: result.usage.total_tokens})
            return operation.result_codec.dump(result)

        here = job_here()
        if here is None:
            raise NotRunning(f"the agent {self._agent!r} has left its job: steps are taken while it runs")
        options = self._options if config is None else cast("Options", config)
        name = step_name(self._agent, here, operation.operation_id, params)
        try:
            payload = await here.step.options(**options)(name, body)
        except Exception:
            record_durable_unit(executed=executed)
            raise
        record_durable_unit(executed=executed)
        return operation.result_codec.load(payload)
