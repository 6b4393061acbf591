"""The steps of a pipeline as they are written, and what travels from one to the next.

Pure: without it a step that names an unknown one would be found by a worker at night, not where it was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal

from msgspec import Struct

from treadle.core import defaults
from treadle.core.model import Record, State
from treadle.errors import BadOption, error_line
from treadle.policy.retry import Retry
from treadle.tasks.options import Options, name_of

OnChildFailure = Literal["continue", "fail", "cancel"]

URGENT: Final = 1  # the most urgent priority of a pipeline
LEAST: Final = -defaults.PRIORITY_RANGE[0]  # the least urgent
MOST_LABELS: Final = 100  # declared values one run may be found by


class Step(Struct, frozen=True):
    """One step of a pipeline: a queue, and the policy of the jobs in it.

    name              the step, and unless `queue` says otherwise its queue; a child's is "step:child"
    children          the child queues it may fan out to
    on_child_failure  "continue": the next step gets what the children came to, and which failed; "fail": the run
                      fails, the other children go on; "cancel": it fails, and the other children are cancelled
    next              the step after it, where it is not the next one in the list; None: the run ends
    priority_shift    added to the run's priority on entering the step: 1 is the most urgent, so -1 is more urgent
    retry, timeout, lease   as for a task; they hold for its children too
    limits            as for a task; "discord:{guildId}" is the partition of the limit "discord" for that field's value
    delay             s between the step before it and this one
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
        """What its tasks are declared with."""
        found: Options = {"queue": self.queue_name if child is None else f"{self.queue_name}:{child}"}
        if self.retry is not None:
            found["retry"] = self.retry
        if self.timeout is not None:
            found["timeout"] = self.timeout
        if self.limits:
            found["limits"] = list(self.limits)
        if self.lease is not None:
            found["lease"] = self.lease
        return found


class Travel(Struct, frozen=True, omit_defaults=True):
    """What a job of a pipeline carries: the state as the step before left it.

    given      of a child: the fields that are its own
    from_step  the step whose children it waited for; their results are merged in when it runs
    """

    fields: dict[str, Any]
    priority: int = URGENT
    given: dict[str, Any] = {}
    from_step: str | None = None


class StepStats(Struct, frozen=True, kw_only=True):
    """How many jobs of a step (or a child of one) are where.

    waiting     in line, or standing aside for a limit
    processing  at a worker
    delayed     not due yet
    blocked     done, or not begun, and waiting for others: children, or the rest of their run
    failed      dead letters
    """

    queue: str
    waiting: int = 0
    processing: int = 0
    delayed: int = 0
    blocked: int = 0
    failed: int = 0


def checked(steps: Iterable[Step]) -> dict[str, Step]:
    """The steps by name. Raises BadOption for what cannot be a pipeline."""
    found: dict[str, Step] = {}
    for step in steps:
        made: object = step
        if not isinstance(made, Step):
            raise BadOption("steps", f"expected Step(...), found {step!r}")
        name_of(step.name, "step")
        if ":" in step.name:
            raise BadOption("steps", f"{step.name!r}: a colon divides a step from its child: use children=")
        if step.name in found:
            raise BadOption("steps", f"there are two steps {step.name!r}")
        if isinstance(step.children, str) or len(set(step.children)) != len(step.children):
            raise BadOption("children", f"expected a list of different names, found {step.children!r}")
        for child in step.children:
            name_of(child, "children")
        if step.on_child_failure not in ("continue", "fail", "cancel"):
            problem = f'expected "continue", "fail" or "cancel", found {step.on_child_failure!r}'
            raise BadOption("on_child_failure", problem)
        found[step.name] = step
    if not found:
        raise BadOption("steps", "a pipeline needs at least one step")
    for step in found.values():
        if step.next and step.next not in found:
            raise BadOption("next", f"{step.name!r} goes on to {step.next!r}, which is no step; there are {[*found]}")
    return found


def following(steps: Mapping[str, Step], name: str) -> str | None:
    """The step after this one, if nobody chooses."""
    step = steps[name]
    if step.next != "":
        return step.next
    names = [*steps]
    at = names.index(name) + 1
    return names[at] if at < len(names) else None


def shifted(priority: int, step: Step) -> int:
    """The priority of a run on entering a step: 1 at the most urgent."""
    return min(max(priority + step.priority_shift, URGENT), LEAST)


def priority_of(value: object) -> int:
    """Raise BadOption unless it is a priority of a pipeline: 1, the most urgent, or more."""
    if isinstance(value, bool) or not isinstance(value, int) or not URGENT <= value <= LEAST:
        raise BadOption("priority", f"expected {URGENT} (the most urgent) to {LEAST:,}, found {value!r}")
    return value


def labels_of(pipeline: str, names: Iterable[str], fields: Mapping[str, Any]) -> tuple[str, ...]:
    """What a run is found by: the declared fields it begins with; each element of a list by itself."""
    found: dict[str, None] = {}
    for name in names:
        value = fields.get(name)
        for each in value if isinstance(value, list | tuple | set | frozenset) else [value]:
            if each is not None:
                found[label(pipeline, name, each)] = None
    if len(found) > MOST_LABELS:
        raise BadOption("labels", f"a run is found by at most {MOST_LABELS} values, found {len(found)}")
    return tuple(found)


def partition(limit: str, travel: Travel) -> str:
    """The name of a limit, with the fields it names. Raises BadOption for one the run has not."""
    try:
        return limit.format_map(travel.fields | travel.given)
    except (KeyError, ValueError, IndexError) as error:
        raise BadOption("limits", f"{limit!r} needs a field the run has not: {error}") from None


def label(pipeline: str, name: str, value: object) -> str:
    """The label of a run whose field has this value."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadOption(name, f"a run is found by texts and whole numbers, and lists of them; found {value!r}")
    return name_of(f"{pipeline}.{name}={value}", name)


def results_name(step: str) -> str:
    """The field in which the next step finds what the children of this one came to."""
    return f"{re.sub(r'[^0-9A-Za-z_]', '_', step)}_results"


def child_result(row: Record, child: str, given: dict[str, Any], result: Any) -> dict[str, Any]:
    """What the next step is told of a child: which, what it was given, and what became of it."""
    found = {"child": child, "given": given, "state": str(row.state), "result": result}
    if row.state is not State.SUCCEEDED:
        found |= {"reason": row.reason, "error": error_line(row.error)}
    return found
