"""The pure part of the overview: what a look, the rights of a caller and the metrics make of it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.server.test_crossing import token
from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import Presence, State
from treadle.core.placement import Needs
from treadle.core.query_model import Count, Glance, MetricsRow, QueueGlance
from treadle.metrics import Cell, encode
from treadle.metrics.histogram import bucket_of
from treadle.server.overview import Look, Overview, compose
from treadle.server.overview.activity import PERIODS, Recent
from treadle.server.overview.notices import MOST

NOW = 1_700_000_045.0  # 5 s into a minute: the last full one may lack its last counts
MINUTE = 1_699_999_980.0  # the last minute that all workers have stored
NOW_LATER = MINUTE + 60.0 + 20.0


def look(**fields: object) -> Look:
    glance = {name: fields.pop(name) for name in ("queues", "workers", "limits", "capped") if name in fields}
    return Look(glance=Glance(at=NOW, **glance), **fields)  # type: ignore[arg-type]


def pause(key: str, why: str = "paused", **more: object) -> LimitUse:
    until = 60.0 if why == "held" else None
    return LimitUse(key=key, rule=Limit(key, slots=0), pauses=(Pause(key, why, until),), **more)  # type: ignore[arg-type]


def texts(overview: Overview) -> list[str]:
    return [notice.text for notice in overview.notices]


def test_queues_workers_and_limits_make_the_totals() -> None:
    found = compose(
        look(
            queues=(
                QueueGlance(name="mail", queued=10, queued_capped=True, oldest=3.0, running=2, failed=1),
                QueueGlance(name="treadle", queued=9, running=9),
                QueueGlance(name="video", scheduled=4, blocked=5, waiting=6),
            ),
            workers=(
                Presence(worker="a", queues=("mail", "video"), slots=4),
                Presence(worker="b", queues=("mail",), slots=3),
            ),
            limits=(
                LimitUse(key="smtp", rule=Limit("smtp", slots=2)),
                LimitUse(key="treadle.x", rule=Limit("treadle.x")),
            ),
            capped=("failed",),
            leader="b",
        )
    )
    assert [(queue.name, queue.workers) for queue in found.queues] == [("mail", 2), ("video", 1)]
    totals = found.totals
    assert (totals.queued, totals.running, totals.scheduled, totals.blocked, totals.waiting) == (10, 2, 4, 5, 6)
    assert (totals.failed, totals.slots, totals.capped) == (1, 7, ("queued", "failed"))
    assert [use.key for use in found.limits] == ["smtp"]
    assert [(worker.worker, worker.leader) for worker in found.workers] == [("a", False), ("b", True)]
    assert (found.leader, found.at, found.rates.succeeded, found.queues[0].ended_rate) == ("b", NOW, None, None)
    assert found.notices == []


def test_a_queue_that_is_paused_or_served_is_shown_without_jobs() -> None:
    found = compose(look(limits=(pause("queue:mail"),), workers=(Presence(worker="a", queues=("video",)),)))
    assert [(queue.name, queue.paused, queue.workers) for queue in found.queues] == [
        ("mail", True, 0),
        ("video", False, 1),
    ]
    assert found.queues[0].pauses[0].why == "paused"


def test_a_bound_token_gets_its_queues_and_nothing_of_others() -> None:
    whole = look(
        queues=(
            QueueGlance(name="mine", queued=1),
            QueueGlance(name="S3CRET", queued=7, failed=2),
        ),
        workers=(
            Presence(worker="both", host="S3CRET", queues=("mine", "S3CRET"), tasks=("S3CRET",), slots=2),
            Presence(worker="S3CRET", queues=("S3CRET",), slots=5, age=80.0),
        ),
        limits=(
            LimitUse(key="S3CRET", rule=Limit("S3CRET", slots=0), blocked=3),
            pause("queue:S3CRET"),
            LimitUse(key="queue:mine", rule=Limit("queue:mine", slots=9)),
        ),
        leader="S3CRET",
        failing=("S3CRET",),
        capped=("failed",),
    )
    bound = token("bound", "read", queues=("mine",))
    found = compose(whole, bound)
    assert "S3CRET" not in msgspec.json.encode(found).decode()
    assert (found.totals.queued, found.totals.failed, found.totals.slots, found.leader) == (1, 0, 2, None)
    assert [use.key for use in found.limits] == ["queue:mine"]
    assert "S3CRET" in msgspec.json.encode(compose(whole)).decode()


def test_paused_queues_with_jobs_and_queues_without_workers_are_noticed() -> None:
    found = compose(
        look(
            queues=(
                QueueGlance(name="paused", queued=1),
                QueueGlance(name="rests", queued=2),
                QueueGlance(name="alone & far", queued=3, queued_capped=True),
                QueueGlance(name="served", queued=4),
                QueueGlance(name="empty", scheduled=5),
            ),
            limits=(pause("queue:paused"), pause("queue:rests", "held"), pause("queue:nothing queued")),
            workers=(Presence(worker="a", queues=("served", "alone & fat")),),
        )
    )
    assert [(notice.level, notice.href) for notice in found.notices] == [
        ("warning", "queues/alone%20%26%20far"),
        ("warning", "queues/paused"),
        ("info", "queues/rests"),
    ]
    assert texts(found) == [
        "No worker serves queue 'alone & far', which has 3+ queued jobs; did you mean 'alone & fat'?",
        "Queue 'paused' is paused with 1 queued job.",
        "Queue 'rests' rests, as a job asked, with 2 queued jobs.",
    ]
    assert "'alone & far'" in found.notices[0].advice


def test_a_worker_whose_heartbeat_is_overdue_is_noticed() -> None:
    fresh, late = Presence(worker="fresh", ttl=90.0, age=29.0), Presence(worker="late/1", ttl=90.0, age=45.0)
    found = compose(look(workers=(fresh, late)))
    assert texts(found) == ["Worker 'late/1' sent its last heartbeat 45 s ago."]
    assert found.notices[0].href == "workers/late%2F1"


def test_limits_that_block_jobs_while_they_are_paused_are_noticed() -> None:
    zero = LimitUse(key="zero", rule=Limit("zero", slots=0), blocked=1)
    found = compose(look(limits=(pause("smtp", blocked=3), pause("api", "held", blocked=1), pause("idle"), zero)))
    assert [(notice.level, notice.text) for notice in found.notices] == [
        ("warning", "Limit 'smtp' is paused and blocks 3 jobs."),
        ("warning", "Limit 'zero' has 0 slots and blocks 1 job."),
        ("info", "Limit 'api' rests, as a job asked, and blocks 1 job."),
    ]


def test_a_paused_queue_without_workers_is_paused_and_names_the_limit_to_resume() -> None:
    found = compose(look(queues=(QueueGlance(name="b", queued=1),), limits=(pause("queue"),)))
    assert texts(found) == ["Queue 'b' is paused with 1 queued job."]
    assert "'queue'" in found.notices[0].advice
    bound = compose(
        look(queues=(QueueGlance(name="b", queued=1),), limits=(pause("queue"), pause("queue:x"))),
        token("bound", "read", queues=("b",)),
    )
    assert [(queue.name, queue.paused_by) for queue in bound.queues] == [("b", "queue")]
    assert [use.key for use in bound.limits] == ["queue"]


def test_a_queue_is_full_by_the_exact_number_of_its_jobs() -> None:
    queues = (QueueGlance(name="mail", queued=10_000, queued_capped=True, scheduled=20),)
    limits = (LimitUse(key="queue", rule=Limit("queue", max_waiting=10_500)),)
    cut = compose(look(queues=queues, limits=limits)).queues[0]
    assert (cut.filled, cut.filled_capped, cut.full) == (10_020, True, False)
    found = compose(look(queues=queues, limits=limits, exact={"mail": 10_500}))
    assert (found.queues[0].filled, found.queues[0].filled_capped, found.queues[0].full) == (10_500, False, True)
    assert texts(found)[0] == "Queue 'mail' is full with 10,500 waiting jobs and refuses new jobs."


def test_jobs_that_no_running_worker_can_run_are_noticed() -> None:
    needs = Needs("train", (("gpu", ("a100",)),))
    worker = Presence(worker="cpu", queues=("ml",), tasks=("load",), needs=(needs,))
    counts = (
        Count(queue="ml", task="train", state=State.READY, jobs=3, queued=3),
        Count(queue="ml", task="load", state=State.READY, jobs=1, queued=1),
    )
    queues = (QueueGlance(name="ml", queued=4),)
    [notice] = compose(look(queues=queues, workers=(worker,), counts=counts)).notices
    assert (notice.level, notice.href) == ("warning", "jobs?task=train")
    assert notice.text == "No worker can run 3 jobs of task 'train': no running worker has label gpu=a100."
    assert notice.advice == "A worker started with --label gpu=a100 runs it."
    able = replace(worker, worker="gpu", tasks=("load", "train"), labels=(("gpu", "a100"),))
    assert compose(look(queues=queues, workers=(worker, able), counts=counts)).notices == []
    other = token("bound", "read", queues=("mail",))
    assert compose(look(queues=queues, workers=(worker,), counts=counts), other).notices == []


def test_the_number_of_warnings_is_for_tokens_that_see_the_checks() -> None:
    assert compose(look(health=3)).health == 3
    assert compose(look(health=3, outage=5.0)).health == 1, "the only check is then that of the storage"
    assert compose(look(health=3), token("bound", "read", queues=("mail",))).health is None


def test_a_slow_unavailable_or_moved_storage_is_noticed() -> None:
    slow = compose(look(cost=2.5, every=60.0))
    assert texts(slow) == ["The storage took 2.5 s to answer."]
    away = compose(look(cost=10.0, outage=12.4))
    assert (away.notices[0].level, texts(away)) == ("error", ["The storage has not answered for 12 s."])
    moved = compose(look(moved="the jobs of this storage were moved to redis://new"))
    assert (moved.notices[0].level, moved.notices[0].href) == ("error", "health")


def test_schedules_whose_last_job_could_not_be_made_are_noticed_first() -> None:
    found = compose(look(failing=("nightly",), cost=2.0))
    assert [(notice.level, notice.href) for notice in found.notices] == [
        ("error", "schedules/nightly"),
        ("warning", "health"),
    ]


def test_notices_are_bounded() -> None:
    assert len(compose(look(queues=[QueueGlance(name=f"q{n:03}", queued=1) for n in range(MOST + 9)])).notices) == MOST


# --- metrics


def row(at: float, source: str = "w", **jobs: int) -> MetricsRow:
    """A minute of a worker: succeeded jobs by queue."""
    cells = [
        Cell(queue, "t", succeeded=count, failed=1, retried=2, run={bucket_of(0.5): count}, wait={bucket_of(2.0): 1})
        for queue, count in jobs.items()
    ]
    return MetricsRow(at=at, span=60.0, source=source, data=encode(cells))


def test_rates_are_those_of_the_last_full_minute() -> None:
    recent = Recent()
    for each in (row(MINUTE, mail=59), row(MINUTE, "x", mail=119, video=29), row(MINUTE + 60, mail=6_000)):
        recent.add(each, NOW_LATER)
    activity = recent.activity(NOW_LATER)
    assert (activity.ended_rate("mail"), activity.ended_rate("video"), activity.ended_rate("none")) == (3.0, 0.5, 0.0)
    rates = activity.rates()
    assert rates.succeeded == pytest.approx((59 + 119 + 29) / 60)
    assert (rates.failed, rates.retried) == (3 / 60, 6 / 60)
    assert rates.run_p50 == pytest.approx(0.5, rel=0.13)
    assert rates.wait_p95 == pytest.approx(2.0, rel=0.13)
    of_one = activity.rates(("video",))
    assert of_one.succeeded == 29 / 60
    assert activity.rates(("unknown",)).run_p50 is None


def test_rows_added_since_the_last_look_count_in_the_periods_since_then() -> None:
    recent, at = Recent(), MINUTE
    assert recent.since(at) == at - 360.0
    recent.add(row(at, mail=5), at + 10)  # 6 ended: succeeded and failed
    recent.activity(at + 10)
    recent.add(row(at, mail=25), at + 20)
    spark = recent.activity(at + 20).spark("mail")
    assert len(spark) == PERIODS
    assert spark[-2:] == (6.0, 20.0)
    assert sum(spark) == 26
    assert recent.since(at + 30) < at
    spark = recent.activity(at + 40).spark("mail")
    assert spark[-4:] == (6.0, 20.0, 0.0, 0.0)
    assert sum(recent.activity(at + 400).spark("mail")) == 0


def test_minutes_of_before_the_first_look_are_spread() -> None:
    recent = Recent()
    recent.add(row(MINUTE, mail=59), NOW_LATER)
    assert recent.activity(NOW_LATER).spark("mail")[-8:] == (10.0,) * 6 + (0.0,) * 2


def test_rows_that_cannot_be_read_count_nothing() -> None:
    recent = Recent()
    assert not recent.add(MetricsRow(at=MINUTE, span=60.0, source="new", data=b"\x7fnewer"), NOW)
    assert not recent.has_any


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(0, 50)), max_size=20))
def test_no_job_is_lost_or_counted_twice(more: list[tuple[float, int]]) -> None:
    """However often a minute is stored again, the periods add up to its jobs."""
    recent, count, now = Recent(), 0, MINUTE
    for wait, jobs in more:
        now = min(now + wait, MINUTE + 200)
        count += jobs
        recent.add(row(MINUTE, mail=count), now)
        recent.activity(now)
    expected = count + 1 if more else 0
    assert sum(recent.activity(now + 10).spark("mail")) == pytest.approx(expected, abs=0.2)
