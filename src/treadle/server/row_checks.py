"""Checks the values of rows from outside: the rules of `core/ranges.py`, and those for fields of the engine.

The checks do no I/O and raise BadOption or TooLarge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec import UNSET

from treadle.core import ranges
from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.model import Claim, LeaseRenewal, NewJob, Outcome
from treadle.core.plain_json import refuse_deep
from treadle.core.ranges import MOST_QUEUES, at_most
from treadle.policy.retry import Policy

MOST_ROWS: Final = 12_000  # jobs, outcomes or leases per call: a flow of 10,000 jobs, and room for its own rows
MOST_UPSTREAMS: Final = MOST_ROWS  # jobs that one job waits for; a storage accepts `ranges.MOST_AFTER`
MOST_EDGES: Final = 2 * MOST_ROWS  # entries of `after` of all jobs of one call
MOST_CLAIM: Final = 5_000  # jobs per claim; a worker asks for 512
MOST_CHANGES: Final = 2_000  # changes of limits per call


def at_most_in_call(option: str, count: int, most: int) -> None:
    """Raise BadOption for more items than one call accepts; the error advises several calls."""
    if count > most:
        raise BadOption(option, f"expected at most {most:,} in one call, found {count:,}: send them in several calls")


def check_together(edges: Sequence[int]) -> None:
    """Raise BadOption for too many jobs in one call. `edges`: the number of `after` entries of each job."""
    at_most_in_call("jobs", len(edges), MOST_ROWS)
    if max(edges, default=0) > MOST_UPSTREAMS:
        advice = "let it wait for jobs that each wait for some of these"
        raise BadOption("after", f"expected at most {MOST_UPSTREAMS:,} per job, found {max(edges):,}: {advice}")
    at_most_in_call("after", sum(edges), MOST_EDGES)


def check_job(job: NewJob) -> None:
    """Raise BadOption or TooLarge for a job that Treadle itself would not store."""
    ranges.check_job(job)
    if job.retry is not None:
        _check_policy(job.retry)
    if job.reach:
        at_most("reach", job.reach, MOST_QUEUES)


def check_outcome(out: Outcome) -> None:
    """Raise BadOption or TooLarge for an outcome that no run produces, or for one of its follow-up jobs."""
    ranges.an_id("id", out.id)
    at_most("followups", out.followups, MOST_ROWS)
    edges = len(out.after) + sum(len(job.after) for job in out.followups)
    if edges > MOST_EDGES:
        raise BadOption("after", f"expected at most {MOST_EDGES:,} for an outcome and its jobs, found {edges:,}")
    at_most("after", out.after, MOST_UPSTREAMS)
    at_most("reach", out.reach, MOST_QUEUES)
    ranges.check_outcome(out)
    for job in out.followups:
        if job.retry is not None:
            _check_policy(job.retry)


def check_renewal(renewal: LeaseRenewal) -> None:
    ranges.an_id("id", renewal.id)
    ranges.check_renewal(renewal)
    at_most("reach", renewal.reach, MOST_QUEUES)


def check_claim(ask: Claim) -> None:
    """Raise BadOption for a claim that no worker makes."""
    ranges.check_claim(ask, MOST_CLAIM)
    at_most("running", ask.running, MOST_ROWS)
    at_most("reach", ask.reach, MOST_QUEUES)


def _check_policy(text: str) -> None:
    try:
        refuse_deep(text)
        _policy(text)
    except UNREADABLE as error:
        raise _misfit(error, text) from None


def _misfit(error: Exception, text: str) -> BadOption:
    """The error for an invalid policy, with the field, the expected and the found value."""
    if isinstance(own := error.__cause__, BadOption):
        return BadOption(own.option, own.problem)
    if not isinstance(error, msgspec.ValidationError):
        return BadOption("retry", f"expected the JSON text of a retry policy, found {ranges.shown(text)}")
    field, problem = misfit(error, given_in(text))
    return BadOption(field or "retry", problem)


def given_in(text: str | bytes | bytearray) -> object:
    """The value of a JSON text that has the wrong type; UNSET if it cannot be decoded."""
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return UNSET


def misfit(error: msgspec.ValidationError, sent: object) -> tuple[str, str]:
    """The wrong field, such as `jobs[3].queue` ("": the whole value), and the expected and found value.

    `sent`: the decoded value; UNSET: the text names only its type.
    """
    problem, _, path = str(error).partition(" - at `$")
    path = path.removesuffix("`").removeprefix(".")
    expected, _, kind = problem.partition(", got ")
    problem = f"{expected[:1].lower()}{expected[1:]}"
    if not expected.startswith(("Expected", "Invalid ISO")):  # msgspec already names the found value
        return path, problem
    value = kind
    if sent is not UNSET:
        with suppress(LookupError, TypeError, ValueError):  # values of mappings: the path omits the key
            value = _shown(_at(sent, path))
    return path, f"{problem}, found {value}" if value else problem


def _at(sent: Any, path: str) -> Any:
    for name, number in _STEP.findall(path):
        sent = sent[int(number)] if number else sent[name]
    return sent


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "an array"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


_STEP: Final = re.compile(r"([^.\[\]]+)|\[([0-9]+)\]")
SHOWN: Final = 60  # characters of a found value in an error


_policy: Final = msgspec.json.Decoder(Policy).decode
