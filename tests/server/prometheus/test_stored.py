"""The scrape of stored jobs, queues, limits and schedules: bounded, escaped, and valid for a parser."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from treadle.core.limit_model import Limit, LimitUse, Pause
from treadle.core.model import Presence, State
from treadle.core.query_model import Count, Stats
from treadle.outbox.outbox import OutboxStats
from treadle.scheduling import Schedule
from treadle.server.prometheus import Names, Reading, Scrape, stored_samples, written

PAUSED = Limit("queue:bulk", slots=0)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def lines(reading: Reading | None, up: bool = True, age: float = 2.0, names: Names | None = None) -> dict[str, float]:
    """The exposition as a parser reads it: values by name and labels."""
    found = stored_samples(Scrape(reading=reading, age=age, up=up), names or Names())
    plain = written(found)
    open_ = written(found, OPENMETRICS)
    assert plain.content_type.startswith("text/plain; version=0.0.4")
    assert open_.content_type.startswith("application/openmetrics-text; version=1.0.0")
    both = [
        {
            name_of(sample.name, sample.labels): sample.value
            for family in families
            for sample in family.samples
            if not sample.name.endswith("_created")
        }
        for families in (
            text_string_to_metric_families(plain.body.decode()),
            openmetrics_families(open_.body.decode()),
        )
    ]
    assert both[0] == both[1]
    texts = [line.rpartition(" ")[0] for line in plain.body.decode().splitlines() if not line.startswith("#")]
    assert len(texts) == len(set(texts)), "a series occurs twice"
    return both[0]


def name_of(name: str, labels: dict[str, str]) -> str:
    return f"{name.removeprefix('treadle_')} {' '.join(labels[each] for each in sorted(labels))}".strip()


def count(queue: str, task: str, state: State = State.READY, jobs: int = 1, **more: object) -> Count:
    return Count(queue=queue, task=task, state=state, jobs=jobs, **more)  # type: ignore[arg-type]


def stats(*counts: Count, **more: object) -> Reading:
    return Reading(stats=Stats(counts=counts, **more))  # type: ignore[arg-type]


def test_jobs_are_shown_by_queue_task_and_state_also_those_of_no_state() -> None:
    found = lines(
        stats(
            count("mail", "send", jobs=5, queued=3, blocked=1, oldest=40.0),
            count("mail", "read", jobs=1, queued=1, oldest=70.0),
            count("mail", "send", State.FAILED, 2),
            count("treadle", "treadle.schedule"),
            count("mail", ""),
        )
    )
    assert [found[f"jobs mail {state} send"] for state in ("ready", "failed", "running")] == [5, 2, 0]
    assert (found["jobs_queued mail send"], found["jobs_blocked mail send"], found["jobs_queued mail read"]) == (
        3,
        1,
        1,
    )
    assert found["queue_oldest_seconds mail"] == 70
    assert not [name for name in found if "treadle" in name]
    assert (found["storage_up"], found["stats_age_seconds"]) == (1, 2)


def test_queues_are_shown_without_jobs_if_they_are_served_paused_or_declared() -> None:
    found = lines(
        Reading(
            stats=Stats(
                workers=(
                    Presence(worker="a", host="h", queues=("mail", "video"), slots=4, running=3),
                    Presence(worker="b", host="h", queues=("mail",), slots=2),
                ),
                limits=(LimitUse(key="queue:bulk", rule=Limit("queue:bulk", slots=0), pauses=(Pause("queue:bulk"),)),),
            ),
            queues=("letters",),
        )
    )
    assert [found[f"queue_workers {queue}"] for queue in ("bulk", "letters", "mail", "video")] == [0, 0, 2, 1]
    assert [found[f"queue_paused {queue}"] for queue in ("bulk", "letters", "mail", "video")] == [1, 0, 0, 0]
    assert (found["workers"], found["worker_slots"], found["worker_running"]) == (2, 6, 3)
    assert not [name for name in found if name.startswith("limit_")], "the pause of a queue is no limit"


def test_a_pause_of_the_limit_of_all_queues_pauses_those_without_their_own() -> None:
    shut = LimitUse(key="queue", rule=Limit("queue", slots=0), pauses=(Pause("queue"),))
    own = LimitUse(key="queue:own", rule=Limit("queue:own", slots=3))
    found = lines(Reading(stats=Stats(limits=(shut, own)), queues=("mail", "own")))
    assert (found["queue_paused mail"], found["queue_paused own"]) == (1, 0)


def test_the_bound_of_a_queue_is_shown_also_while_it_is_paused() -> None:
    own, every = Limit("queue:mail", max_waiting=5), Limit("queue", max_waiting=9)
    pause = LimitUse(key="queue:mail", rule=Limit("queue:mail", slots=0), behind=own, pauses=(Pause("queue:mail"),))
    found = lines(Reading(stats=Stats(limits=(pause, LimitUse(key="queue", rule=every))), queues=("mail", "video")))
    assert [found[f"queue_max_waiting {queue}"] for queue in ("mail", "video")] == [5, 9]
    assert not [name for name in lines(Reading(queues=("mail",))) if name.startswith("queue_max_waiting")]


def test_limits_are_shown_by_rule_never_by_partition() -> None:
    rule, own = Limit("tenant", slots=4), Limit("tenant:9", slots=7)
    found = lines(
        stats(
            limits=(
                LimitUse(key="tenant", rule=rule),
                LimitUse(key="tenant:7", rule=rule, used=4, blocked=10),
                LimitUse(key="tenant:8", rule=rule, used=1),
                LimitUse(key="tenant:9", rule=own, used=1),
                LimitUse(key="task:mail.send", rule=Limit("task:mail.send", slots=2), used=2, blocked=1),
                LimitUse(key="queue:mail", rule=Limit("queue", slots=3), used=3),
                LimitUse(
                    key="queue:bulk", rule=Limit("queue:bulk", slots=0), behind=Limit("queue", slots=3), blocked=5
                ),
                LimitUse(key="api", rule=Limit("api", rate=3), pauses=(Pause("api", "held", 60.0),)),
            )
        )
    )
    assert (found["limit_used tenant"], found["limit_blocked tenant"], found["limit_partitions tenant"]) == (6, 10, 3)
    assert found["limit_slots tenant"] == 7
    assert (found["limit_slots task:mail.send"], found["limit_used task:mail.send"]) == (2, 2)
    assert (found["limit_slots queue"], found["limit_used queue"], found["limit_blocked queue"]) == (3, 3, 5)
    assert (found["limit_paused queue"], found["limit_paused tenant"], found["limit_paused api"]) == (1, 0, 1)
    assert "limit_slots api" not in found, "a rate has no slots"
    assert not [name for name in found if "7" in name or "8" in name or "9" in name]


def test_schedules_and_the_outbox() -> None:
    fields = {"timing": "x", "task": "t", "catch_up": "one", "overlap": "allow", "last": None, "id": "i"}
    at = datetime(2030, 1, 1, tzinfo=UTC)
    found = lines(
        Reading(
            schedules=(
                Schedule(name="nightly", paused=False, next_at=at, error=None, **fields),  # type: ignore[arg-type]
                Schedule(name="hourly", paused=True, next_at=None, error="no", **fields),  # type: ignore[arg-type]
            ),
            outbox=OutboxStats(rows=3, oldest=8.5, failing=2, given_up=1, relay=None, storage=None),
            outbox_up=True,
            took=0.25,
        )
    )
    assert found["schedule_next_timestamp_seconds nightly"] == at.timestamp()
    assert "schedule_next_timestamp_seconds hourly" not in found
    assert (found["schedule_paused hourly"], found["schedule_failing hourly"], found["schedule_failing nightly"]) == (
        1,
        1,
        0,
    )
    names = ("rows", "oldest_seconds", "failing", "given_up", "relayed", "up")
    assert [found[f"outbox_{name}"] for name in names] == [3, 8.5, 2, 1, 0, 1]
    assert found["stats_seconds"] == 0.25
    away = lines(Reading(outbox_up=False))
    assert (away["outbox_up"], "outbox_rows" in away) == (0, False)


def test_a_storage_that_never_answered_is_down_and_has_no_values() -> None:
    assert lines(None, up=False) == {"storage_up": 0}


@pytest.mark.slow
def test_there_are_at_most_300_tasks_and_300_queues_the_first_ones_stay() -> None:
    names = Names()
    first = stats(*(count("mail", f"task {number:03}") for number in range(200)))
    many = stats(
        *(count("mail", f"new {number:03}") for number in range(10_000)),
        *(count(f"queue {number:03}", "t") for number in range(1_000)),
        *first.stats.counts,
        limits=tuple(LimitUse(key=f"limit {n}", rule=Limit(f"limit {n}", slots=1), used=1) for n in range(1_000)),
    )
    lines(first, names=names)
    found = lines(many, names=names)
    tasks = {name for name in found if name.startswith("jobs_queued")}
    assert len(tasks) == 300 + 300 + 1
    assert {f"jobs_queued mail task {number:03}" for number in range(200)} < tasks
    assert found["jobs mail ready other"] == 9_900
    assert sum(value for name, value in found.items() if name.startswith("jobs ")) == 11_200
    assert len([name for name in found if name.startswith("queue_paused")]) == 301
    assert len([name for name in found if name.startswith("limit_used")]) == 301
    assert found["limit_used other"] == 700
    assert lines(many, names=names).keys() == found.keys()


def test_hostile_names_are_text_on_one_line() -> None:
    names = ('say "hi"', "back\\slash", "a\nb", "a\rb", "\x1b[31m", "\ud800", "other", "\u2028", "naïve", '"} 1\nx{a="')
    found = stored_samples(
        Scrape(reading=stats(*(count(name, name, queued=1) for name in names)), age=0.0, up=True), Names()
    )
    text = written(found).body.decode()
    assert "\x1b" not in text
    assert "\r" not in text
    samples = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "treadle_jobs_queued"
    ]
    assert len(samples) == len(names)
    assert {'say "hi"', "back\\slash", "a\\nb", "\\x1b[31m", "\\ud800", "other", "naïve"} < {
        sample.labels["task"] for sample in samples
    }


def test_a_task_called_other_shares_its_series_with_the_tasks_beyond_the_bound() -> None:
    names = Names(2)
    found = lines(stats(count("q", "other"), count("q", "a"), count("q", "b"), count("q", "c")), names=names)
    assert found["jobs q ready other"] == 3
