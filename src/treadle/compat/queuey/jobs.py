"""The jobs of the queue face: what its messages look like, and what they say of a row.

Without it the shape of the protocol and the calls that change jobs would be one file that nobody reads to its end.

What the protocol calls attempts is derived, never stored: every claim but the current one ended in a lost lease.
Counted "literal"ly, a claim and an abandonment count one each and a job fails beyond MAX_ATTEMPTS; counted by
"claims", only claims count and it fails when they reach MAX_ATTEMPTS.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from treadle.core import defaults
from treadle.core.model import LOST, Record, State
from treadle.errors import UNREADABLE

ABANDONED_AGE: Final = 300.0  # s without a sign of life after which a runner counts as gone
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
    """What an operator may set: seconds without a sign of life, attempts, and what counts as one.

    verify_addresses  a job is only taken if the blobs it names are there
    """

    abandoned_age: float = ABANDONED_AGE
    max_attempts: int = MAX_ATTEMPTS
    counting: Counting = "literal"
    verify_addresses: bool = False

    def attempts(self, row: Record) -> int:
        """`run_attempts` of the protocol."""
        return claims(row) + (row.lost if self.counting == "literal" else 0)

    def spent(self, row: Record) -> bool:
        """Whether a job whose runner was lost just now is given up."""
        claimed = row.lost
        if self.counting == "literal":
            return claimed + row.lost > self.max_attempts
        return claimed >= self.max_attempts

    def heard(self, row: Record) -> float | None:
        """When the runner that has it was last heard of."""
        return None if row.due_at is None else row.due_at - self.abandoned_age


class Create(Struct, frozen=True):
    """`priority` (higher first) and `delay` (seconds) are ours; without them the oldest comes first, at once."""

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
    """A job as the protocol shows it; moments are whole milliseconds since 1970.

    failure  why it failed: its runner reported so, it was abandoned too often, or somebody cancelled it
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
    """What the row's note keeps of the last run: who ran it, and when he was last heard of."""

    runner: str | None = None
    heard: float | None = None


def claims(row: Record) -> int:
    """How often it was claimed: once for each lost lease, and once more if a runner has it or has completed it."""
    had_runner = row.state.final and _failing(row) not in ("abandoned", "cancelled")
    return row.lost + (1 if row.state is State.RUNNING or had_runner else 0)


def view(row: Record, rules: Rules) -> JobJson:
    """The job as it stands."""
    binary, given = _addresses(row.job.payload)
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
        input_addr=given,
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
    """Whether this protocol can show the row: a program may have stored another one of its task."""
    try:
        _addresses(row.job.payload)
    except UNREADABLE:
        return False
    return UUID.fullmatch(row.id) is not None


def _output(result: str | None) -> str | None:
    """The address a run gave; None where it gave something else."""
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


def runner_of(row: Record) -> str | None:
    """Who has it, or has completed it."""
    if row.state.final:
        return ending_of(row).runner
    return None if row.worker is None else row.worker.partition("#")[0]


def ending_of(row: Record) -> Ending:
    """What is kept of its last run."""
    if row.note is None:
        return Ending()
    try:
        return msgspec.json.decode(row.note, type=Ending)
    except UNREADABLE:
        return Ending()


def _ms(at: float) -> int:
    return int(at * 1000)
