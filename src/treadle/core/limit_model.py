"""The data of limits: rules, the changes that operators and code make to them, and their use."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from treadle.core.argument_names import Spelled

WhenFull = Literal["refuse", "drop_oldest", "drop_lowest"]


class Limit(Spelled, frozen=True, gc=False):
    """A rule for the jobs that name it, or `name:partition` of it. A queue obeys "queue:<its name>", otherwise "queue".

    slots   how many may run at once, per partition; 0 is a pause; None: any number
    rate    how many may start within `per` seconds; None: any number
    how     "window": exact, over every rolling window; "bucket": `burst` at once, refilled at rate / per
    hold    "running": the slot is free when the run ends; "ended": only when the job has ended

    Only for the rule of a queue:

    max_waiting  how many of its jobs may wait to be started, 1 to 1,000,000,000; None: any number. Waiting jobs are the
                 queued, the scheduled and the blocked ones
    when_full    what becomes of a call that enqueues more. "refuse": it raises QueueFull, and none of its jobs is
                 stored; "drop_oldest": it cancels the jobs that were queued first; "drop_lowest": it cancels the last
                 jobs of a lower priority
    A rule with none of slots, rate and max_waiting is removed.
    """

    name: str
    slots: int | None = None
    rate: int | None = None
    per: float = 1.0
    how: Literal["window", "bucket"] = "window"
    burst: int | None = None
    hold: Literal["running", "ended"] = "running"
    max_waiting: int | None = None
    when_full: WhenFull = "refuse"

    @property
    def empty(self) -> bool:
        """Whether this rule limits nothing: setting it removes the stored one."""
        return self.slots is None and self.rate is None and self.max_waiting is None


Why = Literal["paused", "held"]
"""An operator paused the limit, or ("held") a job deferred with it, until the deferral is over."""


class Declare(Struct, frozen=True, gc=False, tag="declare"):
    """The rule that code declares for a limit. It applies while no operator has set one."""

    rule: Limit


class Pause(Struct, frozen=True, gc=False, tag="pause"):
    """A reason why a limit starts no job. `until` is when its author intends to resume. The storage does not act on it:
    a worker's maintenance removes a "held" pause once `until` has passed by the storage's clock."""

    name: str
    why: Why = "paused"
    until: float | None = None


class Resume(Struct, frozen=True, gc=False, tag="resume"):
    """Remove one reason for which a limit is paused; with `until`, only a pause that ends at this instant or earlier.
    "paused" also removes a rule with 0 slots, except for its `max_waiting` and `when_full`."""

    name: str
    why: Why = "paused"
    until: float | None = None


LimitChange = Limit | Declare | Pause | Resume
"""One change of the limits. A `Limit` is the operator's rule; an empty one removes this rule and the declared
one."""


class LimitFacts(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """Everything that is stored of one limit. The facts are independent: each change writes its own."""

    name: str
    set: Limit | None = None  # the rule of an operator
    declared: Limit | None = None  # the rule that code declares
    pauses: tuple[Pause, ...] = ()  # at most one per reason


class LimitUse(Struct, frozen=True, gc=False, kw_only=True):
    """One limit, or one partition of it that is in use.

    key         the name of the limit, or of the partition, such as "tenant:ada"
    rule        the rule that applies now. While the limit is paused, it has 0 slots
    used        slots in use; a job uses as many as its cost
    blocked     jobs that it blocks
    starts      starts that count towards its rate now, each with its cost
    next_start  when a used-up rate admits the next job, in seconds since 1970; None: now
    opens       when its rate admits the first job that it blocks; None: no rate blocks a job
    pauses      the pauses of operators and the rests that jobs have asked for
    behind      of a paused limit: the rule that applies again when nothing pauses it; None: there is none
    declared    code declares this rule, and no operator has set another
    """

    key: str
    rule: Limit
    used: int = 0
    blocked: int = 0
    starts: int = 0
    next_start: float | None = None
    opens: float | None = None
    pauses: tuple[Pause, ...] = ()
    behind: Limit | None = None
    declared: bool = False

    @property
    def unpaused(self) -> Limit | None:
        """The rule without its pauses; None: it consists of pauses only."""
        return self.behind if self.pauses else self.rule
