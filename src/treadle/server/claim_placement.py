"""Limits a runner's claim to the tasks that can run with its labels and free resources.

Treadle's own workers plan their claims themselves. A runner sends what it has, and this server does the same for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from treadle.core.errors import BadOption
from treadle.core.model import Claim
from treadle.core.placement import Needs, amounts, check_needs, labels_of, needs_of, runs_of_any
from treadle.storage import messages


def placed(call: messages.ClaimCall, tasks: Mapping[str, Any]) -> Claim:
    """The claim of a request, of which any jobs fit together. Raises BadOption.

    tasks  those of the server's app, which may declare needs; those in the request come first
    """
    ask = call.ask()
    if call.labels is None and call.resources is None and not call.needs:
        return ask
    labels, free = labels_of(call.labels or {}), amounts(call.resources or {}, "resources")
    if ask.tasks is None:
        raise BadOption("tasks", "labels, resources and needs are of the tasks that a claim names; name them")
    own = {name: _needs(name, need) for name, need in call.needs.items()}
    able: dict[str, tuple[int | None, float | None]] = {}
    uses = []
    for name, room in ask.tasks.items():
        needs: Needs | None = own[name] if name in own else getattr(tasks.get(name), "needs", None)
        if needs is None:
            able[name] = room
        elif needs.unmet(labels) is None and needs.excess(free) is None:
            able[name] = room
            uses.append(needs.uses)
    return replace(ask, tasks=able, limit=min(ask.limit, runs_of_any(uses, free)))


def _needs(task: str, sent: messages.TaskNeeds) -> Needs | None:
    """The needs that a request names, checked. Raises BadOption."""
    check_needs(Needs(task, tuple(sent.requires.items())))
    named = {name: values for name, values in sent.requires.items() if values}
    listed = needs_of(task, named, sent.uses)
    anything = needs_of(task, [name for name, values in sent.requires.items() if not values], None)
    if anything is None:
        return listed
    return anything if listed is None else Needs(task, anything.requires + listed.requires, listed.uses)
