"""The options of the step of a model request or of a tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, cast

from pydantic.errors import PydanticUserError
from pydantic_ai import ToolsetTool
from pydantic_ai.exceptions import UnexpectedModelBehavior, UserError

from treadle.core.errors import BadOption
from treadle.durable import step_options
from treadle.policy.judge import Failure, OnError, Verdict
from treadle.policy.retry import Abort, Retry
from treadle.workflow.approvals import check_by

METADATA: Final = "treadle"  # the key of these options in the metadata of a tool
NEVER_BETTER: Final = (UserError, PydanticUserError, UnexpectedModelBehavior)  # the same code would raise them again


class Options(TypedDict, total=False):
    """The arguments of `current().step.options`, for the step of a model request or a tool call."""

    retry: Retry
    timeout: float | timedelta
    on_error: OnError
    limits: Sequence[str] | Mapping[str, int]
    cost: int


class Approve(TypedDict, total=False):
    """The persons that may approve a tool call, and seconds, a duration or an instant after which it is denied: see
    `current().approve`."""

    by: str
    until: float | timedelta | datetime | None


def checked(options: Mapping[str, Any], where: str) -> Options:
    """The options of a step, if they are valid. With a `retry`, an error of the agent's code is final. Raises
    BadOption."""
    if unknown := sorted(options.keys() - Options.__annotations__.keys()):
        raise BadOption(where, f"expected options of {sorted(Options.__annotations__)}, found {unknown}")
    found = cast("Options", dict(options))
    step_options(
        found.get("retry"),
        found.get("timeout"),
        found.get("on_error"),
        found.get("limits", ()),
        found.get("cost", 1),
    )
    if "retry" in found and "on_error" not in found:
        found["on_error"] = _on_error
    return found


def options_of_tool(defaults: Options, tool: object, name: str) -> Options | Literal[False]:
    """The options of a tool: those in its metadata over the defaults. False: its calls are no steps. Raises
    BadOption."""
    metadata = tool.tool_def.metadata if isinstance(tool, ToolsetTool) else None
    own: Any = {} if metadata is None else metadata.get(METADATA, {})
    if own is False:
        return False
    where = f"metadata of the tool {name!r}"
    if not isinstance(own, Mapping):
        raise BadOption(where, f"expected options of a step, or False, found {own!r:.60}")
    return checked({**defaults, **{key: value for key, value in own.items() if key != "approve"}}, where)


def checked_approve(options: object, where: str) -> Approve:
    """Raises BadOption."""
    if not isinstance(options, Mapping) or options.keys() - Approve.__annotations__.keys():
        raise BadOption(where, f"expected by= and until= in a dictionary, found {options!r:.60}")
    check_by(options.get("by", ""))
    return cast("Approve", dict(options))


def approve_of_tool(default: Approve | None, metadata: Mapping[str, Any] | None, name: str) -> Approve | None:
    """The persons that approve the calls of a tool, as its metadata or the default say; None: neither does. Raises
    BadOption."""
    own = (metadata or {}).get(METADATA, {})
    if isinstance(own, Mapping) and "approve" in own:
        return checked_approve(own["approve"], f"metadata of the tool {name!r}")
    return default


def _on_error(error: BaseException, failure: Failure) -> Verdict:
    return Abort(str(error)) if isinstance(error, NEVER_BETTER) else None
