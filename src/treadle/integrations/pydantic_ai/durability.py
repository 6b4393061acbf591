"""The capability that makes the runs of an agent durable inside a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar, Final

from pydantic_ai import Agent
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.capabilities.abstract import WrapRunHandler
from pydantic_ai.durable_exec import (
    JSON_CODEC,
    BaseDurabilityCapability,
    DurabilityEngineSpec,
    DurableOperationBackend,
    conversation_id_from_run_id,
    external_event_scope,
    replay_scope,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import AgentDepsT, DeferredToolRequests, DeferredToolResults, RunContext

from treadle.core.clock import moment
from treadle.core.errors import BadOption, BadResult, NotRunning
from treadle.integrations.pydantic_ai.agent_runs import AgentRuns, job_here, why_not_durable, within_round
from treadle.integrations.pydantic_ai.backend import Steps
from treadle.integrations.pydantic_ai.event_stream import writing_to
from treadle.integrations.pydantic_ai.options import METADATA, Approve, Options, checked, checked_approve
from treadle.integrations.pydantic_ai.waits import SignalWaiter, approved

# With "parallel_ordered_events" they continue in the order of the calls, whichever ends first.
PACKAGES: Final = ("pydantic_ai", "pydantic_graph")


class TreadleDurability(BaseDurabilityCapability[AgentDepsT]):
    """Makes an agent durable: `Agent(..., name="analyst", capabilities=[TreadleDurability()])`. In an async task, each
    model request and each tool call of `await agent.run(...)` is a step of the job.

    models         further models by the names with which a run selects them
    event_stream_handler  receives the events of a run: those of a model during its step, each other one in a step
    stream         in place of a handler: the stream of the job to which these events are written, as JSON
    name           for the steps; None: the agent's name
    model_options  options of the steps of model requests, such as `{"retry": Retry(attempts=5), "limits": ["openai"]}`
    tool_options   the same for tools; `metadata={"treadle": {...}}` of a tool overrides single ones, and
                   `metadata={"treadle": False}` makes its calls part of the job's function instead of steps
    tokens         the name of a limit, before ":": model requests say that they have spent their tokens of it, see
                   `current().spent`. Each step, or the job if that has no limits, must name it. None: they do not
    approve        the persons that approve tool calls, such as `{"by": "group:finance", "until": 86_400}`, see
                   `current().approve`. `metadata={"treadle": {"approve": {...}}}` of a tool comes before it. None: tool
                   calls that need approval are left to the agent's other handlers
    outside_jobs   False: a run outside of a job raises NotRunning. True: it is allowed, and is not durable
    Raises BadOption.
    """

    engine_spec: ClassVar[DurabilityEngineSpec] = DurabilityEngineSpec(
        engine_name="Treadle",
        durable_unit_noun="step",
        durable_container_noun="job",
        codec=JSON_CODEC,
        serialization_failure=lambda error: BadResult("agent", f"cannot be stored: {error}"),
        unsupported_runtime_toolset_kinds=frozenset({"function", "mcp", "dynamic"}),
        toolset_lifecycles={"function": "enter-always", "mcp": "enter-in-durable-unit", "dynamic": "enter-never"},
        tool_config_key=METADATA,
    )

    def __init__(
        self,
        *,
        models: Mapping[str, Model] | None = None,
        event_stream_handler: EventStreamHandler[AgentDepsT] | None = None,
        stream: str | None = None,
        name: str | None = None,
        model_options: Options | None = None,
        tool_options: Options | None = None,
        tokens: str | None = None,
        approve: Approve | None = None,
        outside_jobs: bool = False,
    ) -> None:
        if stream is not None:
            if event_stream_handler is not None:
                raise BadOption("stream", "expected it or event_stream_handler: a handler can write to a stream itself")
            event_stream_handler = writing_to(stream)
        super().__init__(models=models, event_stream_handler=event_stream_handler, name=name)
        self._options = {
            "model": checked(model_options or {}, "model_options"),
            "tool": checked(tool_options or {}, "tool_options"),
        }
        self._approve = None if approve is None else checked_approve(approve, "approve")
        self._tokens, self._outside_jobs = tokens, outside_jobs
        self._runs = AgentRuns()

    @property
    def in_durable_context(self) -> bool:
        """Whether a job runs here whose steps can be taken."""
        return job_here() is not None

    def get_durable_operation_backend(self) -> DurableOperationBackend[Any]:
        """The steps of the job."""
        return Steps(self.name, self._options, self._tokens)

    def get_default_run_id(self) -> str | None:
        """The id of an agent run, the same in every run of the job."""
        here = job_here()
        return None if here is None else self._runs.started(here, self.name)

    def get_default_conversation_id(self, run_id: str) -> str | None:
        """The id of a conversation that this run begins."""
        return conversation_id_from_run_id(run_id) if self.in_durable_context else None

    async def get_run_start_time(self, run_id: str) -> datetime | None:
        """The first start of an agent run with a timeout, which is a step."""
        if (here := job_here()) is None:
            return None
        durable = here._durably()

        def start() -> datetime:
            return moment(durable.latest_moment())

        return await here.step(f"{within_round(here, run_id)}.start", start)

    async def wrap_run(self, ctx: RunContext[AgentDepsT], *, handler: WrapRunHandler) -> AgentRunResult[Any]:
        """Run the agent in the job. Raises NotRunning outside of one."""
        here = job_here()
        if here is None:
            if not self._outside_jobs and (why := why_not_durable()) is not None:
                raise NotRunning(
                    f"the agent {self.name!r} is not durable here: {why}. Run it in an async task, or pass "
                    "TreadleDurability(outside_jobs=True) if it need not be durable"
                )
            return await super().wrap_run(ctx, handler=handler)

        here._durably().trust(*PACKAGES)

        async def sleep(delay: float) -> None:
            await here.sleep(delay, name=f"{self.name}.poll")

        ordered = Agent.parallel_tool_call_execution_mode("parallel_ordered_events")
        waiter = SignalWaiter(here, partial(self._runs.numbered, here))
        with replay_scope(), Agent.using_sleep(sleep), external_event_scope(waiter), ordered:
            return await super().wrap_run(ctx, handler=handler)

    async def handle_deferred_tool_calls(
        self, ctx: RunContext[AgentDepsT], *, requests: DeferredToolRequests
    ) -> DeferredToolResults | None:
        """Ask people about the tool calls that need approval."""
        here = job_here()
        return None if here is None else await approved(here, self.name, ctx, requests, self._approve)
