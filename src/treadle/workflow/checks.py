"""Checks jobs that are combined, in the call that combines them: cycles, duplicates, and jobs of other apps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.core.errors import CODE, BadOption
from treadle.core.job import JobSpec, Source
from treadle.core.model import NewJob


def miscombined(where: str, problem: str) -> BadOption:
    """The error for jobs that no program can combine. A job whose run raises it fails at once."""
    error = BadOption(where, problem)
    error.fails_as = CODE
    return error


def usable(specs: Sequence[JobSpec[Any, Any]], where: str, source: Source | None = None) -> None:
    """Raise BadOption for a spec that was sent already, is given twice or belongs to another app, and BadArgument for
    one that lacks its first argument."""
    seen: set[str] = set()
    others = "the specs before it" if source is None else "the task that returns it"
    for spec in specs:
        if spec.lacks is not None:
            raise spec.lacks
        if spec.sent:
            raise miscombined(where, f"{spec!r} was already enqueued; make another one, or wait for it with after=")
        if spec.id in seen:
            raise miscombined(where, f"{spec!r} is given twice; make one spec for each run")
        if source is not None and spec.source is not None and spec.source is not source:
            raise miscombined(where, f"{spec!r} belongs to another app than {others}; enqueue it there")
        seen.add(spec.id)
        source = source or spec.source


def acyclic(jobs: Iterable[NewJob]) -> None:
    """Raise BadOption, which names the cycle, if some of these jobs wait for each other."""
    waits = {new.id: new.after for new in jobs if new.after}
    done: set[str] = set()
    for start in waits:
        path: list[str] = []  # from `start` downwards; an explicit stack, because chains may be long
        on_path: set[str] = set()
        stack: list[tuple[str, int]] = [(start, 0)]
        while stack:
            id, index = stack.pop()
            if index == 0:
                if id in done:
                    continue
                path.append(id)
                on_path.add(id)
            ups = waits.get(id, ())
            if index < len(ups):
                stack.append((id, index + 1))
                if ups[index] in on_path:
                    circle = [*path[path.index(ups[index]) :], ups[index]]
                    raise miscombined("after", f"these jobs wait for each other: {' -> '.join(circle)}")
                if ups[index] in waits:
                    stack.append((ups[index], 0))
            else:
                done.add(id)
                on_path.discard(path.pop())
