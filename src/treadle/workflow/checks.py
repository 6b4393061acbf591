"""What can be wrong with jobs that are put together, found where they are written.

Without it a circle would be stored and wait for ever, and the same spec given twice would run once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.core.job import JobSpec, Source
from treadle.core.model import NewJob
from treadle.errors import BadOption


def usable(specs: Sequence[JobSpec[Any, Any]], where: str) -> None:
    """Raise BadOption for a spec that was sent already, stands here twice or is another app's, and BadArgument for
    one that lacks its first argument."""
    seen: set[str] = set()
    source: Source | None = None
    for spec in specs:
        if spec.lacks is not None:
            raise spec.lacks
        if spec.sent:
            raise BadOption(where, f"{spec!r} was sent already; make another one, or wait for it with after=")
        if spec.id in seen:
            raise BadOption(where, f"{spec!r} stands here twice; make a job of its own for each time it is to run")
        if source is not None and spec.source is not None and spec.source is not source:
            raise BadOption(where, f"{spec!r} belongs to another app than the specs before it")
        seen.add(spec.id)
        source = source or spec.source


def acyclic(jobs: Iterable[NewJob]) -> None:
    """Raise BadOption, naming the circle, if some of these jobs wait for each other."""
    waits = {new.id: new.after for new in jobs if new.after}
    done: set[str] = set()
    for start in waits:
        path: list[str] = []  # from `start` downwards; a stack of our own, as chains may be long
        on_path: set[str] = set()
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            id, at = stack.pop()
            if at == 0:
                if id in done:
                    continue
                path.append(id)
                on_path.add(id)
            ups = waits.get(id, ())
            if at < len(ups):
                stack.append((id, at + 1))
                if ups[at] in on_path:
                    circle = [*path[path.index(ups[at]) :], ups[at]]
                    raise BadOption("after", f"these jobs wait for each other: {' -> '.join(circle)}")
                if ups[at] in waits:
                    stack.append((ups[at], 0))
            else:
                done.add(id)
                on_path.discard(path.pop())
