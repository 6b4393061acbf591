"""When a job that waits for others may start: after all of them, after some, whatever became of them."""

from __future__ import annotations

from typing import Literal, Protocol

from treadle.core.argument_names import Spelled, spelled_call
from treadle.errors import BadOption


class HasId(Protocol):
    """A job or a spec: whatever has an id."""

    @property
    def id(self) -> str: ...


class When(Spelled, frozen=True):
    """How many of the jobs waited for must have ended, and whether failures count. See `all_succeeded` and friends."""

    need: int | None = None
    of: Literal["succeeded", "done"] = "succeeded"

    def threshold(self, upstreams: int) -> tuple[int, int | None]:
        """(need, slack) for this many upstreams; raises BadOption if they can never be enough."""
        need = upstreams if self.need is None else self.need
        if need > upstreams:
            raise BadOption("when", f"at_least({need}) of {upstreams} jobs can never be")
        return need, (None if self.of == "done" else upstreams - need)


def all_succeeded() -> When:
    """Every one of them succeeded (the default); when one did not, the waiting job is cancelled."""
    return When()


def all_done() -> When:
    """Every one of them has ended, however."""
    return When(of="done")


@spelled_call
def at_least(n: int, of: Literal["succeeded", "done"] = "succeeded") -> When:
    """`n` of them succeeded, or ended in any way with `of="done"`."""
    number: object = n
    if isinstance(number, bool) or not isinstance(number, int) or n < 1 or of not in ("succeeded", "done"):
        raise BadOption("when", f'expected at_least(1 or more, of="succeeded" or "done"), found ({n!r}, of={of!r})')
    return When(n, of)
