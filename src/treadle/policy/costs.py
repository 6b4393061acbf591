"""Reads the real costs that a function reports: the limits of its job, by the names that the function uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from treadle.core import defaults
from treadle.core.errors import BadOption

Limits = tuple[tuple[str, int], ...]


def costs_of(limits: Limits, by_key: Mapping[str, int] | None, by_name: Mapping[str, int]) -> dict[str, int]:
    """The costs by limit. `by_key` has the limits as the job names them, `by_name` the part of a name before ":", which
    stands for each of the job's limits with that name. Raises BadOption."""
    keys = [key for key, _ in limits]
    costs = Counter[str]()
    for key, cost in (by_key or {}).items():
        costs.update(_charged(key, [key] if key in keys else [], keys, cost))
    for name, cost in by_name.items():
        costs.update(_charged(name, [key for key in keys if key.partition(":")[0] == name], keys, cost))
    return costs


def _charged(name: str, keys: list[str], known: list[str], cost: object) -> dict[str, int]:
    if not keys:
        named = f"its limits are {', '.join(known)}" if known else "give its task or the step limits="
        raise BadOption("spent", f"expected limits that the job names, found {name!r:.100}; {named}")
    if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= defaults.MAX_COUNT:
        raise BadOption("spent", f"{name}: expected a whole number of 0 to {defaults.MAX_COUNT:,}, found {cost!r:.60}")
    return dict.fromkeys(keys, cost)
