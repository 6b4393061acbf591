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

from treadle.core.errors import NotRunning
from treadle.integrations.pydantic_ai.agent_runs import job_here, step_name
from treadle.integrations.pydantic_ai.options import Options, options_of_tool

ParamsT = TypeVar("ParamsT")
WireT = TypeVar("WireT")
ResultT = TypeVar("ResultT")


class Steps(DurableOperationBackend[Options]):
    """Binds the operations of one agent to steps. `options`: by the role of an operation."""

    def __init__(self, agent: str, options: Mapping[str, Options]) -> None:
        self._agent, self._options = agent, options

    def bind(
        self, operation: DurableOperation[ParamsT, WireT, ResultT]
    ) -> BoundDurableOperation[ParamsT, WireT, ResultT]:
        """The operation as a step."""
        return StepOperation(self._agent, operation, self._options.get(operation.config_role, {}))

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

    def __init__(self, agent: str, operation: DurableOperation[ParamsT, WireT, ResultT], options: Options) -> None:
        self._agent, self._operation, self._options = agent, operation, options

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
            with durable_unit_scope():
                return operation.result_codec.dump(await operation.handler(params))

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
