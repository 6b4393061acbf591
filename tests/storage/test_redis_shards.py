"""A namespace spread over several hash tags, on one Valkey: compared with the memory storage, and the laws whose calls
differ from those to a cluster.

All laws run in `test_redis_shards_cluster.py`, where a script that reaches into another slot fails.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.servers import valkey
from tests.storage.redis_counts import spoil
from tests.storage.shards_kit import REFUSED, expect, makes
from treadle.core.limit_model import Limit
from treadle.storage.contract import Storage
from treadle.testing import HandClock
from treadle_testkit.conformance import (
    durable,
    laws_children,
    laws_counts,
    laws_followups,
    laws_glance,
    laws_handoff,
    laws_hints,
    laws_ids,
    laws_key_replacing,
    laws_keys,
    laws_metrics,
    laws_moving,
    laws_queue_order,
    laws_races,
    laws_scanning,
    laws_storing,
    laws_waiting,
    run,
    speaks,
    two_loops,
    user_transaction,
)
from treadle_testkit.conformance.property import Step, agrees_with_memory
from treadle_testkit.conformance.run import MakeStorage, SpoilCount
from treadle_testkit.shows import shows

__all__ = ["durable", "speaks", "two_loops", "user_transaction"]
for _laws in (
    laws_queue_order,
    laws_storing,
    laws_ids,
    laws_keys,
    laws_key_replacing,
    laws_waiting,
    laws_followups,
    laws_children,
    laws_hints,
    laws_handoff,
    laws_races,
    laws_moving,
    laws_glance,
    laws_counts,
    laws_scanning,
    laws_metrics,
):
    globals().update(run.tests_of(_laws))

_names = (f"s{n}" for n in itertools.count())


@pytest.fixture
def spoil_count() -> SpoilCount:
    return spoil


@pytest.fixture
def make_storage(request: pytest.FixtureRequest) -> MakeStorage:
    expect(request, REFUSED)
    return makes(valkey.url, _names)


def as_promised(step: Step) -> Step:
    """Calls without lanes; claims and prunes that take everything, so that the order of shards does not matter; queues
    that are paused or not. No repeated claim: it advances the due rows of the shards that have none of its jobs. All
    other answers must be those of one queue, including their order."""
    verb, words, *_ = step
    if verb == "enqueue":
        return verb, [_without_lane(spec) for spec in words]
    if verb == "settle":
        return verb, [
            {**each, "followups": [_without_lane(spec) for spec in each.get("followups", ())]} for each in words
        ]
    if verb == "claim":
        queues = tuple((queue, 100) for queue, _ in words.get("queues", (("q", 3), ("r", 2))))
        tasks = {task: (None, lease) for task, (_, lease) in words.get("tasks", {}).items()}
        return verb, {**words, "limit": 100, "queues": queues, **({"tasks": tasks} if tasks else {})}
    if verb == "limits":
        return verb, [_paused_or_not(rule) if rule.name.startswith("queue") else rule for rule in words]
    if verb == "prune":
        return verb, 100
    if verb == "again" and words in ("claim", "claim before"):
        return "advance", 0.0
    return step


def _without_lane(spec: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in spec.items() if name not in ("lane", "stride")}


def _paused_or_not(rule: Limit) -> Limit:
    return Limit(rule.name, slots=0 if rule.slots == 0 else None)


@pytest.mark.slow
@shows("the sharded Redis storage answers random calls as the memory storage does")
def test_random_calls_agree_with_memory() -> None:
    make = makes(valkey.url, _names)

    async def make_one(clock: HandClock) -> Storage:
        return await make(clock)

    agrees_with_memory(make_one, adapt=as_promised)
