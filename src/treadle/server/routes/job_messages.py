"""The request and response types of the operations on jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from treadle.tasks.json_options import Id, Name, moment_of

if TYPE_CHECKING:
    pass


class Listing(Struct, frozen=True, kw_only=True):
    """Filters for jobs. `state`: one or several, separated by commas. `before`: seconds since 1970."""

    state: str | None = None
    task: Name | None = None
    queue: Name | None = None
    workflow: Id | None = None
    parent: Id | None = None
    label: Name | None = None
    before: Annotated[float, Meta(ge=0)] | None = None
    order: Literal["newest", "oldest", "ended", "queue"] = "newest"
    cursor: str | None = None
    limit: Annotated[int, Meta(ge=0, le=1_000)] = 50
    count: bool = False

    def filters(self) -> dict[str, Any]:
        """The filters as arguments of `app.jobs.list`."""
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
    """The name of a signal, and its value, any JSON."""

    name: Name
    value: Any = None


class Acted(Struct, frozen=True):
    """The number of jobs that were changed. warning: a hint that the given name may be mistyped."""

    jobs: int
    warning: str | UnsetType = UNSET


class Explained(Struct, frozen=True):
    """One sentence: why the job is not running, or how it ended."""

    text: str
    position: int | None
