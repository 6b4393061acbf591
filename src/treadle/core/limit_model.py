"""The data of limits: rules, the changes that operators and code make to them, and their use."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.core.argument_names import Spelled


class Limit(Spelled, frozen=True, gc=False):
    """A rule for the jobs that name it, or `name:partition` of it. A queue obeys "queue:<its name>", otherwise "queue".

    slots   how many may run at once, per partition; 0 is a pause; None: any number
    rate    how many may start within `per` seconds; None: any number
    how     "window": exact, over every rolling window; "bucket": `burst` at once, refilled at rate / per
    hold    "running": the slot is free when the run ends; "ended": only when the job has ended
    A rule with neither of slots and rate is removed.
    """

    name: str
    slots: int | None = None
    rate: int | None = None
    per: float = 1.0
    how: Literal["window", "bucket"] = "window"
    burst: int | None = None
    hold: Literal["running", "ended"] = "running"


Why = Literal["paused", "held"]
"""An operator paused the limit, or ("held") a job deferred with it, until the deferral is over."""


class Declare(Struct, frozen=True, gc=False, tag="declare"):
    """The rule that code declares for a limit. It applies while no operator has set one."""

    rule: Limit


class Pause(Struct, frozen=True, gc=False, tag="pause"):
    """A reason why a limit starts no job. `until` is when its author intends to resume; the storage does not act on
    it."""

    name: str
    why: Why = "paused"
    until: float | None = None


class Resume(Struct, frozen=True, gc=False, tag="resume"):
    """Remove one reason. With `until`, only a pause whose `until` is not later. "paused" also removes a rule of 0
    slots."""

    name: str
    why: Why = "paused"
    until: float | None = None


LimitChange = Limit | Declare | Pause | Resume
"""One change of the limits. A `Limit` is the operator's rule; without slots and rate it removes this rule and the
declared one."""


class LimitFacts(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everything that is stored of one limit. The facts are independent: each change writes its own."""

    name: str
    set: Limit | None = None  # by an operator
    declared: Limit | None = None  # by code
    pauses: tuple[Pause, ...] = ()  # at most one per reason


class LimitUse(Struct, frozen=True, gc=False, kw_only=True):
    """One limit, or one partition of it that is in use. While it is paused, `rule` has 0 slots."""

    key: str
    rule: Limit
    used: int = 0  # slots in use, in cost
    blocked: int = 0  # jobs blocked by it
    starts: int = 0  # starts that count towards its rate now, in cost
    next_start: float | None = None  # when an exhausted rate admits the next job; None: now
    pauses: tuple[Pause, ...] = ()
    behind: Limit | None = None  # the rule that applies again when nothing pauses the limit any more
    declared: bool = False  # code declares this rule, and no operator has set another
