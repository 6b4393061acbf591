"""The part of a worker's heartbeats about its labels and resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from treadle.core.placement import Needs
from treadle.tasks.core import TaskCore
from treadle.worker.capacity import Capacity
from treadle.worker.config import WorkerConfig


class Placement(Struct, frozen=True, gc=False):
    """The fields of `Presence` with these names."""

    labels: tuple[tuple[str, str], ...] = ()
    resources: tuple[tuple[str, int, int], ...] = ()
    needs: tuple[Needs, ...] = ()
    reserved: str = ""
    versions: tuple[str, ...] = ()


def place_of(
    config: WorkerConfig,
    tasks: Mapping[str, TaskCore],
    capacity: Capacity | None,
    versions: Callable[[Sequence[str]], tuple[str, ...]],
    claimed: Sequence[str],
) -> Placement:
    """The labels of a worker, its resources and their use, the needs of the tasks of its code, and the versions of the
    claimed ones."""
    has, used = config.resources or {}, {} if capacity is None else capacity.use.used
    names = tasks if config.tasks is None else config.tasks
    needs = tuple(task.needs for name in names if (task := tasks.get(name)) is not None and task.needs is not None)
    return Placement(
        labels=tuple((config.labels or {}).items()),
        resources=tuple((name, amount, used.get(name, 0)) for name, amount in has.items()),
        needs=needs,
        reserved="" if capacity is None else capacity.reserved,
        versions=versions(claimed),
    )
