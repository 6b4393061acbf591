"""The declaration of a pipeline's steps, and the state that its jobs pass on.

An invalid step raises BadOption when the pipeline is created.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, cast

from msgspec import Struct

from treadle.core import defaults
from treadle.core.errors import BadOption, error_line
from treadle.core.model import Record, State
from treadle.policy.retry import Retry
from treadle.tasks.options import Options, name_of

OnChildFailure = Literal["continue", "fail", "cancel"]

URGENT: Final = 1  # the most urgent priority of a pipeline
LEAST: Final = -defaults.PRIORITY_RANGE[0]  # the least urgent
MOST_LABELS: Final = 100  # values of declared fields by which one run can be found


class Step(Struct, frozen=True):
    """One step of a pipeline: a queue, and the policy of its jobs.

    name              of the step, and of its queue unless `queue` is set; a child's queue is "step:child"
    children          the names of its children
    on_child_failure  "continue": the next step gets the results of all children, including failures; "fail": the run
                      fails, the other children continue; "cancel": it fails, and the other children are cancelled
    next              the following step, if it is not the next one in the list; None: the run ends
    priority_shift    added to the run's priority at this step: 1 is the most urgent, so -1 makes it more urgent
    retry, timeout, lease   as for a task; they apply to its children too
    limits            as for a task; "discord:{guildId}" is the partition of the limit "discord" for that field's value
    delay             s between the previous step and this one
    """

    name: str
    children: Sequence[str] = ()
    on_child_failure: OnChildFailure = "continue"
    next: str | None = ""
    priority_shift: int = 0
    retry: Retry | None = None
    timeout: float | timedelta | None = None
    limits: Sequence[str] = ()
    lease: float | timedelta | None = None
    delay: float | timedelta = 0.0
    queue: str | None = None

    @property
    def queue_name(self) -> str:
        return self.queue or self.name

    def options(self, child: str | None = None) -> Options:
        """The options of its task, or of the task of a child."""
        queue = self.queue_name if child is None else f"{self.queue_name}:{child}"
        limits = list(self.limits) or None
        policy = {"queue": queue, "retry": self.retry, "timeout": self.timeout, "limits": limits, "lease": self.lease}
        return cast("Options", {name: value for name, value in policy.items() if value is not None})


class Travel(Struct, frozen=True, omit_defaults=True):
    """The payload of a pipeline's job: the state after the previous step.

    given      a child's own fields
    from_step  the step whose children this job waited for; their results are merged in when it runs
    """

    fields: dict[str, Any]
    priority: int = URGENT
    given: dict[str, Any] = {}
    from_step: str | None = None


class StepStats(Struct, frozen=True, kw_only=True):
    """The number of jobs of a step (or of a child of it) by condition.

    waiting     queued, or blocked by a limit
    processing  running on a worker
    delayed     not due yet
    blocked     waiting for other jobs: its function is done and its children or the rest of the run are not, or it has
                not begun
    failed      dead letters
    """

    queue: str
    waiting: int = 0
    processing: int = 0
    delayed: int = 0
    blocked: int = 0
    failed: int = 0


def checked(steps: Iterable[Step]) -> dict[str, Step]:
    """The steps by name. Raises BadOption for invalid ones."""
    by_name: dict[str, Step] = {}
    for step in steps:
        candidate: object = step
        if not isinstance(candidate, Step):
            raise BadOption("steps", f"expected Step(...), found {step!r}")
        name_of(step.name, "step")
        if ":" in step.name:
            raise BadOption(
                "steps",
                f"{step.name!r}: expected a name without a colon, which separates a step and its child: use children=",
            )
        if step.name in by_name:
            raise BadOption("steps", f"expected different names, found two steps {step.name!r}")
        if isinstance(step.children, str) or len(set(step.children)) != len(step.children):
            raise BadOption("children", f"expected a list of different names, found {step.children!r}")
        for child in step.children:
            name_of(child, "children")
        if step.on_child_failure not in ("continue", "fail", "cancel"):
            problem = f'expected "continue", "fail" or "cancel", found {step.on_child_failure!r}'
            raise BadOption("on_child_failure", problem)
        by_name[step.name] = step
    if not by_name:
        raise BadOption("steps", "expected at least one step, found none")
    for step in by_name.values():
        if step.next and step.next not in by_name:
            raise BadOption(
                "next", f"{step.name!r} continues with the unknown step {step.next!r}; expected one of {[*by_name]}"
            )
    return by_name


def following(steps: Mapping[str, Step], name: str) -> str | None:
    """The step after this one, unless a handler chooses; None: the run ends."""
    step = steps[name]
    if step.next != "":
        return step.next
    names = [*steps]
    place = names.index(name) + 1
    return names[place] if place < len(names) else None


def shifted(priority: int, step: Step) -> int:
    """The priority of a run at this step, limited to the range of priorities."""
    return min(max(priority + step.priority_shift, URGENT), LEAST)


def priority_of(value: object) -> int:
    """The value, if it is a priority of a pipeline: 1, the most urgent, or more. Raises BadOption if not."""
    if isinstance(value, bool) or not isinstance(value, int) or not URGENT <= value <= LEAST:
        raise BadOption("priority", f"expected {URGENT} (the most urgent) to {LEAST:,}, found {value!r}")
    return value


def labels_of(pipeline: str, names: Iterable[str], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """The labels of a run: one for each declared field at its start; of a list, one for each element."""
    labels: dict[str, None] = {}
    for name in names:
        value = fields.get(name)
        for element in value if isinstance(value, list | tuple | set | frozenset) else [value]:
            if element is not None:
                labels[label(pipeline, name, element)] = None
    if len(labels) > MOST_LABELS:
        raise BadOption(
            "labels", f"expected at most {MOST_LABELS} values in the fields of labels=, found {len(labels)}"
        )
    return tuple(labels)


def partition(limit: str, travel: Travel) -> str:
    """The limit's name, with the run's values in place of field names. Raises BadOption for a missing field."""
    try:
        return limit.format_map(travel.fields | travel.given)
    except (KeyError, ValueError, IndexError) as error:
        raise BadOption("limits", f"{limit!r} needs a field that the run does not have: {error}") from None


def label(pipeline: str, name: str, value: object) -> str:
    """The label of a run whose field `name` has this value. Raises BadOption."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadOption(name, f"expected str or int, or a list of them, for a field of labels=, found {value!r}")
    return name_of(f"{pipeline}.{name}={value}", name)


def results_name(step: str) -> str:
    """The name of the field that holds the results of this step's children in the next step."""
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', step)}_results"


def child_result(row: Record, child: str, own_fields: dict[str, Any], result: Any) -> dict[str, Any]:
    """The entry for one child in that field: its name, its own fields, its state and its result."""
    entry = {"child": child, "given": own_fields, "state": str(row.state), "result": result}
    if row.state is not State.SUCCEEDED:
        entry |= {"reason": row.reason, "error": error_line(row.error)}
    return entry
