"""The messages of the queue protocol, and the conversion of rows to them.

The protocol's attempts are derived, not stored: every claim but the current one ended in an expired lease. With the
counting "literal", a claim and an abandonment count one each, and a job fails beyond MAX_ATTEMPTS. With "claims", only
claims count, and a job fails when they reach MAX_ATTEMPTS.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treadle.core import defaults
from treadle.core.errors import UNREADABLE
from treadle.core.model import LOST, Record, State

ABANDONED_AGE: Final = 300.0  # s without a tickle after which a job counts as abandoned
MAX_ATTEMPTS: Final = 3
UUID: Final = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")

Counting = Literal["literal", "claims"]
Failing = Literal["reported", "abandoned", "cancelled"]
Address = Annotated[str, Meta(min_length=1, max_length=512)]
Uuid = Annotated[str, Meta(pattern=f"^{UUID.pattern}$")]
Priority = Annotated[int, Meta(ge=defaults.PRIORITY_RANGE[0], le=defaults.PRIORITY_RANGE[1])]
Delay = Annotated[float, Meta(ge=0, le=defaults.MAX_DELAY)]


_addresses = msgspec.json.Decoder(tuple[str, str | None]).decode
_address = msgspec.json.Decoder(str | None).decode


class Rules(Struct, frozen=True, kw_only=True):
    """The settings of the queue.

    abandoned_age     seconds without a tickle after which a job counts as abandoned
    max_attempts      attempts of one job
    counting          the events that count as an attempt; see the top of this module
    verify_addresses  whether a job is accepted only if its blobs exist
    """

    abandoned_age: float = ABANDONED_AGE
    max_attempts: int = MAX_ATTEMPTS
    counting: Counting = "literal"
    verify_addresses: bool = False

    def attempts(self, row: Record) -> int:
        """The protocol's `run_attempts` of a row."""
        return claims(row) + (row.lost if self.counting == "literal" else 0)

    def spent(self, row: Record) -> bool:
        """Whether an abandoned job has used up its attempts."""
        claimed = row.lost
        if self.counting == "literal":
            return claimed + row.lost > self.max_attempts
        return claimed >= self.max_attempts

    def heard(self, row: Record) -> float | None:
        """The time of the last tickle of the job's runner."""
        return None if row.due_at is None else row.due_at - self.abandoned_age


class Create(Struct, frozen=True):
    """A job to store. `priority` (higher first) and `delay` (seconds) extend the original protocol."""

    binary_addr: Address
    input_addr: Address | None = None
    priority: Priority = 0
    delay: Delay = 0.0


class ClaimAsked(Struct, frozen=True):
    runner_id: Uuid


class Tickle(Struct, frozen=True):
    runner_id: Uuid | None = None


class Complete(Struct, frozen=True):
    status: str
    output_addr: Address | None = None
    runner_id: Uuid | None = None


class JobJson(Struct, frozen=True, kw_only=True):
    """A job in responses. Times are whole milliseconds since 1970.

    failure  why it failed: the runner reported a failure, it was abandoned too often, or it was cancelled
    """

    job_id: str
    binary_addr: str
    input_addr: str | None
    output_addr: str | None
    created_at: int
    updated_at: int
    completed_at: int | None
    status: str
    run_attempts: int
    abandon_count: int
    failure: Failing | None
    runner_id: str | None


class Listing(Struct, frozen=True):
    status: Literal["pending", "active", "completed", "failed"] | None = None
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 100
    after: str | None = None


class Ending(Struct, frozen=True, omit_defaults=True):
    """The note of a row: the runner of its last run if the claim id spells it differently; and of an ended row, always
    the runner, and the time of its last tickle."""

    runner: str | None = None
    heard: float | None = None


def claims(row: Record) -> int:
    """The number of claims of a job: one per expired lease, and one more if a runner has it or has completed it."""
    had_runner = row.state.final and _failing(row) not in ("abandoned", "cancelled")
    return row.lost + (1 if row.state is State.RUNNING or had_runner else 0)


def view(row: Record, rules: Rules) -> JobJson:
    """The current state of a job as the protocol shows it."""
    binary, input_addr = _addresses(row.job.payload)
    status = {State.RUNNING: "active", State.SUCCEEDED: "completed"}.get(row.state)
    if status is None:
        status = "failed" if row.state.final else "pending"
    ending, heard = ending_of(row), row.updated_at
    if row.state is State.RUNNING:
        heard = rules.heard(row) or heard
    elif ending.heard is not None:
        heard = ending.heard
    runner = runner_of(row) if row.state is State.RUNNING else ending.runner
    return JobJson(
        job_id=row.id,
        binary_addr=binary,
        input_addr=input_addr,
        created_at=_ms(row.created_at),
        updated_at=_ms(heard),
        completed_at=None if row.ended_at is None else _ms(row.ended_at),
        status=status,
        run_attempts=rules.attempts(row),
        abandon_count=row.lost,
        failure=_failing(row),
        runner_id=runner,
        output_addr=_output(row.result),
    )


def is_ours(row: Record) -> bool:
    """Whether the row has the form of this protocol: a program may have stored other rows of its task."""
    try:
        _addresses(row.job.payload)
    except UNREADABLE:
        return False
    return UUID.fullmatch(row.id) is not None


def _output(result: str | None) -> str | None:
    """The output address of a run; None if the result is not an address."""
    try:
        return None if result is None else _address(result)
    except UNREADABLE:
        return None


def _failing(row: Record) -> Failing | None:
    if not row.state.final or row.state is State.SUCCEEDED:
        return None
    if row.state is State.CANCELLED:
        return "cancelled"
    return "abandoned" if row.reason == LOST else "reported"


def is_runner(row: Record, runner: str) -> bool:
    """Whether this runner has the job, or has completed it. The case of its UUID does not matter."""
    return (runner_of(row) or "").lower() == runner.lower()


def runner_of(row: Record) -> str | None:
    """The runner that has the job, or has completed it, as its claim has spelled it."""
    noted = ending_of(row).runner
    if row.state.final:
        return noted
    claimed = None if row.worker is None else row.worker.partition("#")[0]
    return noted if (noted or "").lower() == (claimed or "").lower() else claimed


def ending_of(row: Record) -> Ending:
    """The decoded note of a row; empty if it has none."""
    if row.note is None:
        return Ending()
    try:
        return msgspec.json.decode(row.note, type=Ending)
    except UNREADABLE:
        return Ending()


def _ms(at: float) -> int:
    return int(at * 1000)
