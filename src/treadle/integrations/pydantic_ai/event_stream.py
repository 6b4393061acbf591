"""The events of an agent run as chunks of a stream of its job.

They are written in the step that they belong to. If the step runs again, readers get a reset.
"""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from pydantic import TypeAdapter
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

from treadle.integrations.pydantic_ai.agent_runs import job_here

_events: TypeAdapter[AgentStreamEvent] = TypeAdapter(AgentStreamEvent)


def writing_to(stream: str) -> EventStreamHandler[Any]:
    """A handler that writes each event to this stream of the job."""

    async def write(_: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        here = job_here()
        out = None if here is None else here.stream(stream)
        async for event in events:
            if out is not None:
                await out.write(_events.dump_python(event, mode="json"))

    return write
