"""The guarantees that a namespace of several shards lacks, and how the suite runs on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from treadle.storage.contract import Storage
from treadle.storage.redis import ShardedRedis
from treadle.testing import HandClock
from treadle.testing.conformance.run import MakeStorage

SHARDS = 3

ORDER = "queue order, lanes and room for a task are exact within a shard only"
QUEUES = "a queue can be paused, but not limited: its jobs are in several shards (Unsupported)"
REFUSED = {
    "test_law02_within_the_room_of_each_task": ORDER,
    "test_law02_room_spans_queues": ORDER,
    "test_law02_behind_a_batch_task_without_room": ORDER,
    "test_law02_lanes_take_turns": ORDER,
    "test_law02_a_lane_stands_a_stride_behind_its_last": ORDER,
    "test_law02_an_empty_lane_joins_at_the_head": ORDER,
    "test_law02_lanes_share_the_queue_by_weight": ORDER,
    "test_law02_jobs_without_a_lane_stand_by_their_moment": ORDER,
    "test_law02_a_lane_counts_its_queued_jobs_only": ORDER,
    "test_law02_a_delayed_job_takes_its_lanes_turn_when_due": ORDER,
    "test_law02_the_job_that_became_due_first_is_queued_first": ORDER,
    "test_more_how_many_stand_before_me_among_lanes": ORDER,
    "test_law08_a_claim_of_few_behind_many_takes_no_more_than_asked": ORDER,
    "test_law08_a_queue_of_so_many_slots": QUEUES,
    "test_law08_queues_with_much_little_and_no_room_side_by_side": QUEUES,
    "test_law08_slots_of_queues_with_several_workers": QUEUES,
    "test_law08_every_queue_obeys_the_common_rule": QUEUES,
    "test_law08_a_queue_of_a_pace": QUEUES,
    "test_law08_the_moment_the_pace_of_a_queue_allows_is_told": QUEUES,
    "test_law08_a_job_whose_function_is_done_takes_the_slot_it_keeps": QUEUES,
    "test_law08_queue_limits_are_shown_in_use": QUEUES,
    "test_law08_the_use_of_the_rate_of_a_queue_is_shown[queue]": QUEUES,
    "test_law08_the_use_of_the_rate_of_a_queue_is_shown[queue:mail]": QUEUES,
    "test_law08_a_rule_holds_for_what_is_sent_after_it[queue]": QUEUES,
    "test_law16_a_full_queue_refuses": QUEUES,
    "test_law16_jobs_of_every_form_need_room": QUEUES,
    "test_law16_jobs_that_need_no_room": QUEUES,
    "test_law16_a_job_that_replaces_a_ready_one_needs_no_room": QUEUES,
    "test_law16_other_refusals_come_first": QUEUES,
    "test_law16_accepted_jobs_are_never_refused": QUEUES,
    "test_law16_blocked_jobs_wait": QUEUES,
    "test_law16_the_rule_of_a_queue": QUEUES,
    "test_law16_a_bound_limits_no_claim": QUEUES,
    "test_law16_resuming_keeps_a_bound": QUEUES,
    "test_law16_the_oldest_are_shed": QUEUES,
    "test_law16_the_lowest_are_shed": QUEUES,
    "test_law16_jobs_that_are_never_shed": QUEUES,
    "test_law16_rows_that_a_call_needs_are_not_shed": QUEUES,
    "test_law16_a_shed_job_ends_like_a_cancelled_one": QUEUES,
    "test_law16_a_lowered_bound_ends_no_job": QUEUES,
    "test_law16_a_look_is_bounded": QUEUES,
    "test_law16_of_several_queues": QUEUES,
    "test_law16_many_producers_at_once": QUEUES,
    "test_law16_many_producers_that_shed": QUEUES,
    "test_law16_producers_and_workers_at_once": QUEUES,
    "test_law16_a_repeated_call": QUEUES,
    "test_law16_moved_rows_need_no_room": QUEUES,
    "test_law16_shed_outcomes_are_final": QUEUES,
    "test_more_a_glance_equals_the_counts": QUEUES,
    "test_more_a_cursor_outlives_changes": "prune goes shard by shard, not by the order of endings over all",
}


def any_id(id: str) -> bool:
    """Spread every id over the shards, although the laws choose their ids."""
    return True


def makes(url: Callable[[], str], names: Iterator[str], alone: int | None = None) -> MakeStorage:
    """A function that makes storages with several shards. `alone`: all workflows begin in this shard."""
    made: list[str] = []

    async def make(clock: HandClock, share: bool = False) -> Storage:
        if not share:
            made.append(f"{os.getpid()}-{next(names)}")
        storage = ShardedRedis(url(), ns=made[-1], shards=SHARDS, now=clock, spreads=any_id)
        if alone is not None:
            storage._layout.of = lambda id: alone  # type: ignore[method-assign]
        await storage.open()
        return storage

    return make


def expect(request: pytest.FixtureRequest, refused: dict[str, str]) -> None:
    """Expect each law of the list to fail: one that passes after all must be removed from it."""
    why = refused.get(request.node.originalname, refused.get(request.node.name))
    if why is not None:
        request.node.add_marker(pytest.mark.xfail(reason=why, strict=True))
