"""The options of a job as JSON: type, bounds, default and description of each.

The HTTP request of a job extends `JobOptions`, and `treadle enqueue --help` shows the same descriptions. The options as
Python code gives them, and what they become in the row, are in `tasks/options.py`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import fields

from treadle.core import defaults
from treadle.core.ranges import MOST_AFTER
from treadle.policy.retry import Retry
from treadle.tasks.options import Key
from treadle.tasks.when import When

MANY: Final = 1_000  # limits, labels or headers of one job; the checks of the options allow fewer
LEAST: Final = f"{defaults.KEEP_LEAST:g} at least"

ID: Final = Meta(pattern=r"^[A-Za-z0-9._:@-]{1,255}$")
Id = Annotated[str, ID, Meta(description="The id of a job.")]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Span = Annotated[float, Meta(ge=0, le=defaults.MAX_DELAY)]
Priority = Annotated[int, Meta(ge=defaults.PRIORITY_RANGE[0], le=defaults.PRIORITY_RANGE[1])]
Count = Annotated[int, Meta(ge=1, le=defaults.MAX_COUNT)]
Names = Annotated[list[Name], Meta(max_length=MANY)]
Pairs = Annotated[dict[str, str], Meta(max_length=MANY)]
Costs = Annotated[dict[str, Count], Meta(max_length=MANY)]


def about(sentence: str, default: object) -> Meta:
    """The description of a field, with the default that holds if nothing gives a value."""
    return Meta(description=f"{sentence} [default: {str(default).removesuffix('.0')}]")


class KeyAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """At most one unfinished job of a task per key.

    conflict  keep: the job that has the key is returned; replace: it is cancelled, or waited for if it is running;
              raise: the request is refused
    until     ended, or started: the key is free as soon as the job runs
    """

    key: Name
    conflict: Literal["keep", "replace", "raise"] = "keep"
    window: Annotated[
        Span | None, about("Seconds after its creation during which even an ended job has the key.", "none")
    ] = None
    until: Literal["ended", "started"] = "ended"
    shared: Annotated[bool, about("Whether the key counts across all tasks.", "false")] = False


class RetryAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """When a failed attempt is retried. Fields not given are the task's, then the app's."""

    attempts: Annotated[
        Count | UnsetType | None,
        about("Attempts in all, the first one included; null: no limit.", defaults.RETRY_ATTEMPTS),
    ] = UNSET
    base: Annotated[Span | UnsetType, about("Seconds before the second attempt.", defaults.RETRY_BASE)] = UNSET
    factor: Annotated[
        Annotated[float, Meta(ge=1)] | UnsetType,
        about("Factor by which each delay is longer than the one before.", defaults.RETRY_FACTOR),
    ] = UNSET
    max: Annotated[Span | UnsetType, about("Longest delay in seconds.", defaults.RETRY_MAX)] = UNSET
    jitter: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | UnsetType,
        about("Largest share of a delay that is taken off at random, from 0 to 1.", defaults.RETRY_JITTER),
    ] = UNSET
    then: Annotated[
        Literal["fail", "pause"] | UnsetType,
        about("Fail or pause the job when its attempts are used up.", "fail"),
    ] = UNSET


class WhenAsked(Struct, frozen=True, forbid_unknown_fields=True):
    """How many of the jobs in `after` must have ended. With `of` as done, failed and cancelled ones count too."""

    required: Annotated[
        Annotated[int, Meta(ge=1)] | None, about("Number of jobs that must have ended; null: all.", "all")
    ] = None
    of: Literal["succeeded", "done"] = "succeeded"


class JobOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a job as JSON. A default holds if the task does not give the option either."""

    queue: Annotated[Name | UnsetType, about("Queue of the job.", defaults.QUEUE)] = UNSET
    priority: Annotated[Priority | UnsetType, about("Priority; jobs with a higher one run first.", 0)] = UNSET
    delay: Annotated[Span | UnsetType, about("Seconds until the job may start.", 0)] = UNSET
    run_at: Annotated[
        float | UnsetType,
        about("Time from which the job may start, in seconds since 1970; overrides `delay`.", "now"),
    ] = UNSET
    deadline: Annotated[
        float | UnsetType,
        about("Time by which the job must have ended, in seconds since 1970; overrides `expires`.", "none"),
    ] = UNSET
    expires: Annotated[
        Span | UnsetType,
        about("Seconds from the enqueue in which the job must end, retries included; otherwise it fails.", "no limit"),
    ] = UNSET
    timeout: Annotated[Span | UnsetType | None, about("Seconds that one attempt may take.", "no limit")] = UNSET
    retry: Annotated[
        RetryAsked | UnsetType,
        about("Number of attempts and the delays between them.", f"{defaults.RETRY_ATTEMPTS} attempts"),
    ] = UNSET
    lease: Annotated[
        Span | UnsetType,
        about("Seconds that a claim lasts without a heartbeat.", f"the worker's, {defaults.LEASE:g}"),
    ] = UNSET
    max_lost: Annotated[
        Annotated[int, Meta(ge=0)] | UnsetType,
        about("Expired leases after which the job fails as poison; 0: any number.", defaults.MAX_LOST),
    ] = UNSET
    key: Annotated[
        KeyAsked | Name | UnsetType, about("Unique key; at most one unfinished job of the task has it.", "none")
    ] = UNSET
    lane: Annotated[Name | UnsetType, about("Fairness lane, such as a tenant; lanes take turns.", "none")] = UNSET
    limits: Annotated[
        Names | Costs | UnsetType,
        about("Limits that the job obeys: name or name:partition; or an object with the cost of each.", "none"),
    ] = UNSET
    cost: Annotated[
        Count | UnsetType, about("Slots and starts that the job takes of each limit without a cost of its own.", 1)
    ] = UNSET
    aging: Annotated[
        Span | UnsetType,
        about("Seconds of waiting that raise the priority by one step; 0: waiting does not raise it.", 0),
    ] = UNSET
    keep: Annotated[
        Span | UnsetType,
        about(f"Seconds that the job stays stored after success or cancellation, {LEAST}.", defaults.KEEP),
    ] = UNSET
    keep_failed: Annotated[
        Span | UnsetType,
        about(f"Seconds that the job stays stored after failure, {LEAST}.", defaults.KEEP_FAILED),
    ] = UNSET
    after: Annotated[
        Annotated[list[Id], Meta(max_length=MOST_AFTER)] | UnsetType,
        about("Ids of the jobs that must succeed first.", "none"),
    ] = UNSET
    when: Annotated[
        WhenAsked | UnsetType, about("How many of the jobs in `after` must have ended.", "all must succeed")
    ] = UNSET
    wait_timeout: Annotated[
        Span | UnsetType,
        about("Seconds to wait for the jobs in `after`; if given, they need not be stored yet.", "no limit"),
    ] = UNSET
    pass_result: Annotated[
        bool | UnsetType,
        about("Whether the result of the one job in `after` is the first argument; null unless it succeeded.", "false"),
    ] = UNSET
    labels: Annotated[
        Names | Pairs | UnsetType,
        about(f"Labels for finding the job later, {defaults.MAX_LABELS} at most.", "none"),
    ] = UNSET
    headers: Annotated[
        Pairs | UnsetType,
        about(f"Headers for the task and middleware, {defaults.MAX_HEADERS:,} bytes at most.", "none"),
    ] = UNSET
    id: Annotated[
        Annotated[str, ID] | UnsetType,
        about("Id of the job. The same job is not stored twice; an id that another job has is an error.", "a new UUID"),
    ] = UNSET


DESCRIPTIONS: Final[dict[str, str]] = {
    field.name: field.type.__metadata__[0].description for field in fields(JobOptions)
}


def options_of(request: JobOptions) -> dict[str, Any]:
    """The options as `task.options()` takes them."""
    options = {name: getattr(request, name) for name in JobOptions.__struct_fields__}
    return {name: _option(name, value) for name, value in options.items() if value is not UNSET}


def _option(name: str, value: Any) -> Any:
    if name in ("run_at", "deadline"):
        return moment_of(value)
    if isinstance(value, KeyAsked):
        return Key(value.key, value.conflict, value.window, value.until, value.shared)
    if isinstance(value, RetryAsked):
        return Retry(value.attempts, value.base, value.factor, value.max, value.jitter, value.then)
    if isinstance(value, WhenAsked):
        return When(value.required, value.of)
    return value


def moment_of(seconds: float) -> datetime:
    """A moment in range: a moment before 1970 is past all the same, one beyond the year 9000 is a mistake."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), 2.2e11), UTC)
