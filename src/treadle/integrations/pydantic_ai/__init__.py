"""Pydantic AI agents whose model requests and tool calls are steps of a job.

Agent(..., name="analyst", capabilities=[TreadleDurability()])
"""

from treadle.core.extras import needing

with needing(__name__, "pydantic_ai", "pydantic-ai-slim>=2.68", "pydantic-ai"):
    from treadle.integrations.pydantic_ai.durability import TreadleDurability
    from treadle.integrations.pydantic_ai.options import Approve, Options
    from treadle.integrations.pydantic_ai.waits import fail_external_event, resolve_external_event

__all__ = ["Approve", "Options", "TreadleDurability", "fail_external_event", "resolve_external_event"]
