"""Jobs that a limit of theirs or of their queue holds back."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.admin.situations.stage import START, Sentence, Situations, Stage
from treadle import Limit, State

situations = Situations()
SINCE = f" It has waited since {START}."


@situations.add
async def an_operator_paused_the_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.queues.pause("default")
    yield "a", "Its queue 'default' is paused: `treadle queues resume default` resumes it."


@situations.add
async def the_queue_rests(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.limits.hold("queue:default", stage.clock() + 60, held=True)
    yield (
        "a",
        f"Its queue 'default' rests until {stage.at(60)} because a job requested that (`Defer(limit=...)`, as "
        "after a "
        "429); it resumes by itself.",
    )


@situations.add
async def the_queue_rests_and_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.limits.hold("queue:default", stage.clock() + 60, held=True)
    await stage.app.queues.pause("default")
    yield (
        "a",
        "Its queue 'default' is paused: `treadle queues resume default` resumes it; it also rests until "
        f"{stage.at(60)}, because a job requested that.",
    )


@situations.of_queue
async def the_slots_of_the_queue_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", slots=1))
    await stage.job("runs")
    await stage.claim()
    await stage.job()
    yield (
        "a",
        f"Its queue 'default' runs 1 of at most 1 jobs at once: t runs has held it longest, on w1 since {START}; "
        "`treadle limits set queue:default --slots 2` lets one more run.",
    )


@situations.of_queue
async def the_slots_of_every_queue_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue", slots=1))
    await stage.job("runs")
    await stage.claim()
    await stage.job()
    # The rule has no key of its own in use: each queue has its partition, as tenants have.
    said = await stage.app.jobs.explain("a")
    assert said.startswith("Its queue 'default' runs 1 of at most 1 jobs at once: t runs has held it longest")
    yield "a", said


@situations.of_queue
async def an_operator_paused_every_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.limits.set(Limit("queue", max_waiting=50))
    await stage.app.limits.pause("queue")
    yield "a", "Its queue 'default' is paused: `treadle limits resume queue` resumes it."


@situations.of_queue
async def a_queue_with_a_rule_of_its_own_while_every_queue_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.limits.set(Limit("queue:default", slots=5))
    await stage.app.limits.set(Limit("queue", max_waiting=50))
    await stage.app.limits.pause("queue")
    yield "a", "It is next in its queue; a worker of 'default' will claim it shortly."


@situations.of_queue
async def every_queue_rests(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job()
    await stage.app.limits.set(Limit("queue", max_waiting=50))
    await stage.app.limits.hold("queue", stage.clock() + 60, held=True)
    yield (
        "a",
        f"Its queue 'default' rests until {stage.at(60)} because a job requested that (`Defer(limit=...)`, as "
        "after a 429); it resumes by itself.",
    )


@situations.of_queue
async def the_rate_of_every_queue_is_used_up(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue", rate=1, per=100))
    await stage.job("first")
    await stage.claim()
    await stage.job()
    yield (
        "a",
        "It is queued, and the rate of its queue 'default' (1 start per 100 s) is used up; the next start is possible "
        f"at {stage.at(100)}, in 100 s; `treadle limits set queue --rate 2 --per 100` doubles the rate.",
    )


@situations.of_queue
async def the_slots_of_a_bounded_queue_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", slots=1, max_waiting=1, when_full="drop_oldest"))
    await stage.job("runs")
    await stage.claim()
    await stage.job()
    yield (
        "a",
        f"Its queue 'default' runs 1 of at most 1 jobs at once: t runs has held it longest, on w1 since {START}; "
        "`treadle limits set queue:default --slots 2 --max-waiting 1 --when-full drop_oldest` lets one more run.",
    )


@situations.of_queue
async def next_in_a_full_queue(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", max_waiting=1))
    await stage.job()
    yield "a", "It is next in its queue; a worker of 'default' will claim it shortly."


@situations.of_queue
async def the_rate_of_the_queue_is_used_up(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", rate=1, per=3600))
    await stage.job("first")
    await stage.job("second")
    await stage.job("third")
    await stage.claim(lease=9999)
    stage.clock.advance(100)
    await stage.beat()
    used_up = (
        "It is queued, and the rate of its queue 'default' (1 start per 3600 s) is used up; the next start is "
        "possible at "
        f"{stage.at(3600)}, in 3,500 s"
    )
    doubled = f"; `treadle limits set queue:default --rate 2 --per 3600` doubles the rate.{SINCE}"
    yield "third", f"{used_up}; 1 job is ahead of it{doubled}"


@situations.of_queue
async def the_bucket_of_the_queue_is_empty(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", rate=1, per=100, how="bucket", burst=1))
    await stage.job("first")
    await stage.job("second")
    await stage.claim()
    yield (
        "second",
        "It is queued, and the rate of its queue 'default' (1 start per 100 s) is used up; the next start is "
        "possible at "
        f"{stage.at(100)}, in 100 s; `treadle limits set queue:default --rate 2 --per 100 --how bucket --burst 2` "
        "doubles "
        "the rate.",
    )


@situations.add
async def the_limit_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=3))
    await stage.app.limits.pause("api")
    await stage.job(limits=["api"])
    await stage.claim()
    stage.clock.advance(7)
    yield "a", f"The limit 'api' is paused: `treadle limits resume api` resumes it.{SINCE}"


@situations.add
async def the_limit_has_no_slots(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=0))
    await stage.job(limits=["api"])
    await stage.claim()
    yield "a", "The limit 'api' is paused (0 slots): `treadle limits resume api` resumes it."


@situations.add
async def the_limit_rests(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=3))
    await stage.app.limits.hold("api", stage.clock() + 60, held=True)
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        f"The limit 'api' rests until {stage.at(60)} because a job requested that (`Defer(limit=...)`, as after a "
        "429); "
        "it resumes by itself.",
    )


@situations.add
async def the_limit_rests_and_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.hold("api", stage.clock() + 60, held=True)
    await stage.app.limits.pause("api")
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        f"The limit 'api' is paused: `treadle limits resume api` resumes it; it also rests until {stage.at(60)}, "
        "because "
        "a job requested that.",
    )


@situations.add
async def the_slots_of_the_limit_are_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=2))
    await stage.job("one", limits=["api"])
    await stage.claim()
    stage.clock.advance(3)
    await stage.job("two", limits=["api"])
    await stage.claim()
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'api' has room (2 of 2 slots in use, 1 job is blocked): t one has held it "
        "longest, "
        f"on w1 since {START}; others hold 1 more; `treadle limits set api --slots 3` makes room for it.",
    )


@situations.add
async def the_partition_is_taken(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("tenant", slots=1))
    await stage.job("one", limits=["tenant:acme"])
    await stage.claim()
    await stage.job(limits=["tenant:acme"])
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'tenant:acme' has room (1 of 1 slots in use, 1 job is blocked): t one has "
        "held it "
        f"longest, on w1 since {START}; `treadle limits set tenant --slots 2` makes room for it.",
    )


@situations.add
async def it_needs_more_than_is_free(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=3))
    await stage.job("one", limits=["api"])
    await stage.claim()
    await stage.job(limits=["api"], cost=3)
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'api' has room (1 of 3 slots in use, it needs 3, 1 job is blocked): t one "
        "has held "
        f"it longest, on w1 since {START}; `treadle limits set api --slots 4` makes room for it.",
    )


@situations.add
async def a_costly_job_is_ahead(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=3))
    await stage.job("one", limits=["api"], cost=2)
    await stage.job("two", limits=["api"])
    rows = {row.job.id: row for row in await stage.claim()}
    await stage.job("costly", limits=["api"], cost=3)
    stage.clock.advance(1)
    await stage.job("late", limits=["api"])
    await stage.claim()
    await stage.settle(rows["two"])
    yield (
        "late",
        "It is blocked until the limit 'api' has room (2 of 3 slots in use, 2 jobs are blocked): the room is kept "
        "for t "
        "costly, which is ahead of it and needs 3 at once; `treadle jobs explain costly` says what that job waits "
        "for.",
    )


@situations.add
async def the_rate_of_the_limit_is_used_up(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=5, rate=1, per=60))
    await stage.job("one", limits=["api"])
    await stage.job("two", limits=["api"])
    await stage.claim()
    stage.clock.advance(10)
    yield (
        "two",
        "It is blocked: the rate of the limit 'api' (1 start per 60 s) is used up; the next start is possible at "
        f"{stage.at(60)}, in 50 s; 1 job is blocked; `treadle limits set api --slots 5 --rate 2 --per 60` doubles "
        "the "
        f"rate.{SINCE}",
    )


@situations.add
async def a_slot_that_is_held_until_the_end(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=1, hold="ended"))
    await stage.job("one", limits=["api"])
    [row] = await stage.claim()
    await stage.settle(row, State.READY, delay=600.0)
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'api' has room (1 of 1 slots in use, 1 job is blocked) by jobs that keep it "
        "until "
        "they have ended; `treadle limits set api --slots 2 --hold ended` makes room for it.",
    )


@situations.add
async def a_rate_of_nothing(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.storage.set_limits([Limit("api", rate=0)])
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        "The limit 'api' lets no job start because its rate is 0: `treadle limits set api --rate 1 --per 1` lets "
        "one start.",
    )


@situations.add
async def room_is_kept_for_a_job_that_is_queued_again(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=1))
    await stage.job("one", limits=["api"])
    [row] = await stage.claim()
    await stage.job("two", limits=["api"])
    stage.clock.advance(1)
    await stage.job("three", limits=["api"])
    await stage.claim()
    await stage.settle(row)  # `two` is queued again; no worker has claimed it yet
    yield (
        "three",
        "It is blocked until the limit 'api' has room (0 of 1 slots in use, 1 job is blocked): the room is kept "
        "for t two, "
        "which is ahead of it and queued again; `treadle jobs explain two` says what that job waits for.",
    )


@situations.add
async def a_caller_who_may_not_see_the_limit(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=1))
    await stage.job("one", limits=["api"], queue="others")
    await stage.claim(queue="others")
    await stage.job(limits=["api"])
    await stage.claim()
    assert await stage.app.jobs.within(("default",)).explain("a") == (
        "It is blocked until the limit 'api' has room (its rule was removed, or this token does not show it)."
    )
    yield "a", await stage.app.jobs.explain("a")
