"""Conditions under which a job that waits for others starts: `all_succeeded`, `all_done` and `at_least`."""

from __future__ import annotations

from typing import Literal, Protocol

from treadle.core.argument_names import Spelled, spelled_call
from treadle.core.errors import BadOption


class HasId(Protocol):
    """A job, a spec or any other object with an id."""

    @property
    def id(self) -> str: ...


class When(Spelled, frozen=True):
    """How many of the upstream jobs must have ended, and whether failures count. See `all_succeeded`, `all_done` and
    `at_least`."""

    required: int | None = None
    of: Literal["succeeded", "done"] = "succeeded"

    def threshold(self, upstreams: int) -> tuple[int, int | None]:
        """`required` and `failures_allowed` of NewJob for this many upstreams. Raises BadOption if `required` is
        more."""
        required = upstreams if self.required is None else self.required
        if required > upstreams:
            raise BadOption(
                "when",
                f"expected at most as many as the jobs in after=, found at_least({required}) of {upstreams} jobs",
            )
        return required, (None if self.of == "done" else upstreams - required)


def all_succeeded() -> When:
    """All of them succeeded (the default). If one did not, the waiting job is cancelled."""
    return When()


def all_done() -> When:
    """All of them ended, in any state."""
    return When(of="done")


@spelled_call
def at_least(n: int, of: Literal["succeeded", "done"] = "succeeded") -> When:
    """`n` of them succeeded; with `of="done"`, `n` of them ended in any state. Raises BadOption unless n is 1 or
    more."""
    number: object = n
    if isinstance(number, bool) or not isinstance(number, int) or n < 1 or of not in ("succeeded", "done"):
        raise BadOption("when", f'expected at_least(1 or more, of="succeeded" or "done"), found ({n!r}, of={of!r})')
    return When(n, of)
