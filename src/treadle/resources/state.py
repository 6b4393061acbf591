"""The state of the lifespan, as the code of a running job reads it."""

from __future__ import annotations

from typing import Any, Final, Protocol

from treadle.core import ids
from treadle.core.errors import NotRunning

NONE: Final[Any] = object()
"""The state of an app without a lifespan."""


class HasState(Protocol):
    """An object with the state of a lifespan; NONE without a lifespan."""

    state: Any


class HasLife(Protocol):
    """Where a job runs."""

    @property
    def life(self) -> HasState: ...


def state_of(site: HasLife | None) -> Any:
    """The state of the lifespan there. Raises NotRunning if there is none."""
    state = NONE if site is None else site.life.state
    if state is NONE:
        raise NotRunning(
            'the app of this job has no lifespan: declare one with @app.lifespan, and a task of kind="process" at the '
            "top level of its module"
        )
    return state


def state_here() -> Any:
    """The state of the lifespan, in a running job. Raises NotRunning."""
    run = ids.running.get(None)
    if run is None:
        raise NotRunning("the state of a lifespan was read outside a job: read it in a task while a worker runs it")
    return state_of(run.site)
