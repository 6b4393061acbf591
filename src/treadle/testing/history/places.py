"""The checker's rules about the workers on which jobs run: their labels and their resources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from treadle.core.placement import Needs
from treadle.testing.history.entries import Entry
from treadle.testing.history.evidence import Evidence, Violation


def check(it: Evidence) -> Iterator[Violation]:
    """Apply all rules of this module."""
    places = {entry.actor: entry.facts for entry in it.entries if entry.what == "worker"}
    if places:
        yield from labels(it, places)
        yield from resources(it, places)


def labels(it: Evidence, places: Mapping[str, Mapping[str, Any]]) -> Iterator[Violation]:
    """No job runs on a worker that lacks a label that it requires."""
    for entry in it.entries:
        if entry.what != "began" or entry.actor not in places or "requires" not in entry.facts:
            continue
        requires = tuple((name, tuple(values)) for name, values in entry.facts["requires"])
        has = places[entry.actor].get("labels", {})
        unmet = Needs(entry.name, requires).unmet(has)
        if unmet is not None:
            yield it.violation("labels", f"{entry.id} ran on {entry.actor}, which lacks {unmet}", entry.id)


def resources(it: Evidence, places: Mapping[str, Mapping[str, Any]]) -> Iterator[Violation]:
    """The jobs that run on a worker at the same time use no more than its resources."""
    used: dict[str, Counter[str]] = {actor: Counter() for actor in places}
    open_runs: dict[tuple[str, str, int], Entry] = {}
    for entry in it.entries:
        key = entry.actor, entry.id, entry.version
        if entry.what == "ended" and key in open_runs:
            used[entry.actor].subtract(open_runs.pop(key).facts["uses"])
        elif entry.what == "began" and entry.actor in places and "uses" in entry.facts:
            open_runs[key] = entry
            used[entry.actor].update(entry.facts["uses"])
            has = places[entry.actor].get("resources", {})
            for name, amount in used[entry.actor].items():
                if amount > has.get(name, 0):
                    ids = sorted(id for actor, id, _ in open_runs if actor == entry.actor)
                    text = f"the jobs on {entry.actor} used {amount} of {has.get(name, 0)} {name}"
                    yield it.violation("resources", text, *ids)
                    return
