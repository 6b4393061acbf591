"""The HTTP messages of the steps that runners in other languages take."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from treadle.core import defaults
from treadle.core.model import NewJob


class SignalAsked(Struct, frozen=True, omit_defaults=True):
    """`timeout`: seconds that a step waits for a signal; None: without end."""

    timeout: float | None = None


class StepCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of a durable function in another language: the next one of this name, after the step `after`. It has at
    most one of

    result   any JSON: the effect has run
    failure  the effect has failed with this text, and the function has caught that
    sleep    seconds to sleep
    wait     for the signal `name`
    call     a job that runs as a child; the step has its result
    lock     true: wait for the lock `name`; the step has its number. false: leave it; this is no step of its own

    With none of them the call asks whether the step is in the history, before the runner runs its effect.
    """

    id: str
    version: int
    name: str
    after: str = ""
    lease: float = defaults.LEASE
    result: Raw | UnsetType = UNSET
    failure: str | None = None
    sleep: float | None = None
    wait: SignalAsked | None = None
    call: NewJob | None = None
    lock: bool | None = None


class StepFailure(Struct, frozen=True):
    """The failure of a step: the name of its class, and its text."""

    type: str
    message: str


Fate = Literal["suspended", "lost"]


class StepResult(Struct, frozen=True, omit_defaults=True):
    """The answer to a step.

    status   new: the step is not in the history, run its effect; done: it has its result or its failure, in this run
             and in every later one; suspended: drop the job, a later claim returns it; lost: drop the job, it is no
             longer of this run
    step     its key: `after` of the next step
    result   any JSON
    """

    status: Literal["new", "done"] | Fate
    step: str = ""
    result: Raw | UnsetType = UNSET
    failure: StepFailure | UnsetType = UNSET
