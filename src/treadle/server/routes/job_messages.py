"""What the operations on jobs read from requests, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from treadle.server.views import (
    Id,
    Name,
    moment_of,
)

if TYPE_CHECKING:
    pass


class Listing(Struct, frozen=True, kw_only=True):
    """Which jobs. `state` may name several, with commas; `before` is seconds since 1970."""

    state: str | None = None
    task: Name | None = None
    queue: Name | None = None
    workflow: Id | None = None
    parent: Id | None = None
    label: Name | None = None
    before: Annotated[float, Meta(ge=0)] | None = None
    order: Literal["newest", "oldest", "ended", "line"] = "newest"
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 50
    count: bool = False

    def filters(self) -> dict[str, Any]:
        """As `app.jobs.list` takes them."""
        found: dict[str, Any] = {
            "task": self.task,
            "queue": self.queue,
            "workflow": self.workflow,
            "parent": self.parent,
            "label": self.label,
        }
        if self.state is not None:
            found["state"] = tuple(each.strip() for each in self.state.split(","))
        if self.before is not None:
            found["before"] = moment_of(self.before)
        return {name: value for name, value in found.items() if value is not None}


class Patience(Struct, frozen=True):
    timeout: Annotated[float, Meta(ge=0, description="Seconds.")] = 20.0


class Cancel(Struct, frozen=True, forbid_unknown_fields=True):
    tree: bool = True


class Signal(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a signal, and any JSON as its value."""

    name: Name
    value: Any = None


class Acted(Struct, frozen=True):
    """How many jobs it acted on. warning: what seems wrong with the name that was given."""

    jobs: int
    warning: str | UnsetType = UNSET


class Explained(Struct, frozen=True):
    """In one sentence: why it is not running, or what became of it."""

    text: str
    position: int | None
