"""The guarantees that a namespace of several shards lacks, and how the suite runs on one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from treadle.storage.contract import Storage
from treadle.storage.redis import ShardedRedis
from treadle.testing import HandClock
from treadle_testkit.conformance.run import MakeStorage

SHARDS = 3

ORDER = "queue order, lanes and room for a task are exact within a shard only"
QUEUES = "a queue can be paused, but not limited: its jobs are in several shards (Unsupported)"
REFUSED = {
    "test_law02_a_claim_takes_no_more_of_a_task_than_there_is_room_for": ORDER,
    "test_law02_room_spans_queues": ORDER,
    "test_law02_a_claim_finds_jobs_behind_a_batch_task_without_room": ORDER,
    "test_law02_lanes_take_turns": ORDER,
    "test_law02_a_job_is_placed_one_stride_behind_the_last_of_its_lane": ORDER,
    "test_law02_an_empty_lane_joins_at_the_head": ORDER,
    "test_law02_lanes_share_the_queue_by_weight": ORDER,
    "test_law02_jobs_without_a_lane_are_queued_by_their_time": ORDER,
    "test_law02_a_lane_counts_its_queued_jobs_only": ORDER,
    "test_law02_a_delayed_job_takes_its_lanes_turn_when_due": ORDER,
    "test_law02_the_job_that_became_due_first_is_queued_first": ORDER,
    "test_more_ahead_of_finds_the_jobs_before_a_job_among_lanes": ORDER,
    "test_law08_a_claim_behind_many_blocked_jobs_takes_no_more_than_its_limit": ORDER,
    "test_law08_a_queue_with_slots_runs_no_more_jobs": QUEUES,
    "test_law08_queues_with_room_share_what_others_cannot_use": QUEUES,
    "test_law08_slots_of_queues_with_several_workers": QUEUES,
    "test_law08_every_queue_obeys_the_common_rule": QUEUES,
    "test_law08_a_queue_with_a_rate_blocks_no_job": QUEUES,
    "test_law08_a_claim_returns_when_the_rate_of_a_queue_opens": QUEUES,
    "test_law08_a_job_whose_function_is_done_takes_the_slot_it_keeps": QUEUES,
    "test_law08_queue_limits_are_shown_in_use": QUEUES,
    "test_law08_the_use_of_the_rate_of_a_queue_is_shown[queue]": QUEUES,
    "test_law08_the_use_of_the_rate_of_a_queue_is_shown[queue:mail]": QUEUES,
    "test_law08_a_rule_holds_for_what_is_sent_after_it[queue]": QUEUES,
    "test_law16_a_full_queue_refuses": QUEUES,
    "test_law16_jobs_of_every_form_need_room": QUEUES,
    "test_law16_jobs_that_do_not_wait_in_the_queue_need_no_room": QUEUES,
    "test_law16_a_job_that_replaces_a_ready_one_needs_no_room": QUEUES,
    "test_law16_other_refusals_take_precedence": QUEUES,
    "test_law16_accepted_jobs_are_never_refused": QUEUES,
    "test_law16_blocked_jobs_wait": QUEUES,
    "test_law16_the_rule_of_a_queue_replaces_the_common_bound": QUEUES,
    "test_law16_a_bound_limits_no_claim": QUEUES,
    "test_law16_resuming_keeps_a_bound": QUEUES,
    "test_law16_the_oldest_are_shed": QUEUES,
    "test_law16_the_lowest_are_shed": QUEUES,
    "test_law16_jobs_that_are_never_shed": QUEUES,
    "test_law16_rows_that_a_call_needs_are_not_shed": QUEUES,
    "test_law16_a_shed_job_ends_like_a_cancelled_one": QUEUES,
    "test_law16_a_lowered_bound_ends_no_job": QUEUES,
    "test_law16_the_search_for_jobs_to_shed_is_bounded": QUEUES,
    "test_law16_each_queue_of_a_call_obeys_its_own_bound": QUEUES,
    "test_law16_many_producers_do_not_exceed_a_bound": QUEUES,
    "test_law16_calls_of_many_producers_that_shed_are_accepted": QUEUES,
    "test_law16_no_job_is_lost_between_claims_and_sheds": QUEUES,
    "test_law16_a_repeated_call_needs_no_room": QUEUES,
    "test_law16_moved_rows_need_no_room": QUEUES,
    "test_law16_shed_outcomes_are_final": QUEUES,
    "test_law08_a_call_advances_few_due_jobs": "each shard advances as many",
    "test_more_a_glance_equals_the_counts": QUEUES,
    "test_more_changes_between_pages_hide_and_repeat_no_row": (
        "prune goes shard by shard, not by the order of endings over all"
    ),
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
