"""Jobs that two or three causes hold back at once, whose deadline has passed, or whose names a shell would misread."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.admin.situations.stage import START, Sentence, Situations, Stage
from treadle import Key, Limit, at_least
from treadle.core.model import NewJob

situations = Situations()
SINCE = f" It has waited since {START}."
NO_WORKER = "no worker serves its queue 'default': `treadle worker --queues default` starts one"


@situations.add
async def slots_and_rate_of_a_limit_are_used_up(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=1, rate=1, per=60))
    await stage.job("one", limits=["api"])
    await stage.claim()
    await stage.job(limits=["api"])
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'api' has room (1 of 1 slots in use, 1 of 1 start per 60 s used, 1 job is "
        f"blocked): t one has held it longest, on w1 since {START}; its rate (1 start per 60 s) is used up, too: no "
        f"start is possible before {stage.at(60)}, in 60 s; `treadle limits set api --slots 2 --rate 2 --per 60` makes "
        "room for it.",
    )


@situations.of_queue
async def slots_and_rate_of_the_queue_are_used_up(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("queue:default", slots=1, rate=1, per=60))
    await stage.job("one")
    await stage.claim()
    await stage.job()
    yield (
        "a",
        f"Its queue 'default' runs 1 of at most 1 jobs at once: t one has held it longest, on w1 since {START}; its "
        f"rate (1 start per 60 s) is used up, too: no start is possible before {stage.at(60)}, in 60 s; `treadle "
        "limits set queue:default --slots 2 --rate 2 --per 60` lets one more run.",
    )


@situations.add
async def it_needs_more_starts_than_the_rate_has_left(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", rate=3, per=60))
    await stage.job("one", limits=["api"], cost=2)
    await stage.claim()
    await stage.job(limits=["api"], cost=2)
    await stage.claim()
    yield (
        "a",
        "It is blocked until the limit 'api' has room (2 of 3 starts per 60 s used, it needs 2, 1 job is blocked); "
        "there is room at 2023-11-14 22:14:20 UTC, in 60 s; `treadle limits set api --rate 6 --per 60` doubles the "
        "rate.",
    )


@situations.add
async def a_limit_blocks_it_and_its_queue_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.set(Limit("api", slots=1))
    await stage.job("one", limits=["api"])
    await stage.claim()
    await stage.job(limits=["api"])
    await stage.claim()
    await stage.app.queues.pause("default")
    yield (
        "a",
        "It is blocked until the limit 'api' has room (1 of 1 slots in use, 1 job is blocked): t one has held it "
        f"longest, on w1 since {START}; `treadle limits set api --slots 2` makes room for it. Besides, its queue "
        "'default' is paused: `treadle queues resume default` resumes it.",
    )


@situations.add
async def two_limits_are_paused_and_no_worker_has_the_task(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat(tasks=("other",))
    await stage.app.limits.pause("x")
    await stage.app.limits.pause("tenant")
    await stage.job(limits=["x", "tenant:acme"])
    await stage.claim()
    yield (
        "a",
        "The limit 'x' is paused: `treadle limits resume x` resumes it. Besides, the limit 'tenant:acme' is paused: "
        "`treadle limits resume tenant` resumes it; no worker of 'default' has the task 't'.",
    )


@situations.add
async def its_limit_was_paused_and_no_claim_has_come_since(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.app.limits.pause("api")
    await stage.job(limits=["api"])
    yield "a", "The limit 'api' is paused: `treadle limits resume api` resumes it."


@situations.add
async def its_queue_is_paused_and_nobody_serves_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.app.queues.pause("default")
    yield (
        "a",
        f"Its queue 'default' is paused: `treadle queues resume default` resumes it. Besides, {NO_WORKER}.",
    )


@situations.add
async def an_operator_whom_the_audit_log_knows_paused_it(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job(limits=["api"])
    async with stage.app.audit.record("limit.pause", "api", by="ann"):
        await stage.app.limits.pause("api")
    stage.clock.advance(5)
    async with stage.app.audit.record("queue.pause", "default", by="bob"):
        await stage.app.queues.pause("default")
    yield (
        "a",
        f"Its queue 'default' is paused (bob paused it at {stage.at(5)}): `treadle queues resume default` resumes it. "
        f"Besides, the limit 'api' is paused (ann paused it at {START}): `treadle limits resume api` resumes "
        f"it.{SINCE}",
    )


@situations.add
async def it_is_delayed_and_its_queue_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(delay=90)
    await stage.app.queues.pause("default")
    yield (
        "a",
        f"It is not queued yet: it is due at {stage.at(90)}, in 90 s; `treadle jobs run-now a` queues it at once. "
        "Besides, its queue 'default' is paused: `treadle queues resume default` resumes it.",
    )


@situations.add
async def its_lease_is_over_and_its_queue_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.claim(lease=5)
    await stage.app.queues.pause("default")
    stage.clock.advance(8)
    await stage.beat("w2")
    row = await stage.row("a")
    if row.queue_position is None:  # on some storages the heartbeat has queued it again
        yield (
            "a",
            f"It has been running on w1 since {START}; its lease expired 3 s ago, and its queue 'default' is paused: "
            "`treadle queues resume default` resumes it.",
        )


# --- workers


@situations.add
async def the_only_worker_is_being_replaced(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.beat(draining="memory")
    yield (
        "a",
        "It is queued, but worker 'w1' claims no more jobs, because its process is replaced (memory); `treadle worker "
        "--queues default` starts another one.",
    )
    await stage.beat("w2", paused=600.0)
    yield (
        "a",
        f"It is queued, but worker 'w2' may claim nothing because of a throttle, until {stage.at(600)}, in 600 s.",
    )


@situations.add
async def workers_without_the_task_run_the_jobs_of_its_queue(stage: Stage) -> AsyncIterator[Sentence]:
    for number in range(4):
        await stage.job(f"r{number}")
    await stage.claim(worker="other")
    await stage.job()
    await stage.beat("other", tasks=("z",), running=4)
    await stage.beat()
    yield "a", "It is next in its queue; a worker of 'default' will claim it shortly."


# --- deadlines


@situations.add
async def it_is_due_after_its_deadline(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.beat()
    await stage.job(delay=100, expires=5)
    yield (
        "a",
        "It is not queued yet: it is due only after its deadline; `treadle jobs run-now a` queues it at once. It fails "
        f"at {stage.at(5)}, in 5.0 s, unless it has ended by then.",
    )


@situations.add
async def its_deadline_passed_while_its_queue_is_paused(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.app.queues.pause("default")
    await stage.job(expires=5)
    stage.clock.advance(8)
    await stage.beat(queue="others")
    row = await stage.row("a")
    if not row.state.final:
        yield "a", f"Its deadline passed at {stage.at(5)}: it fails with the next claim."
    await stage.claim(queue="others")
    yield (
        "a",
        f"It failed (expired) at {stage.at(8)} after 0 attempts: its deadline passed. `treadle jobs retry a` runs it "
        "again.",
    )


@situations.add
async def its_deadline_passed_while_it_runs(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job(expires=5)
    await stage.claim()
    await stage.beat()
    stage.clock.advance(8)
    yield (
        "a",
        f"It has been running on w1 since {START}; its lease lasts another 52 s. Its deadline passed at {stage.at(5)}: "
        "its worker ends it, or the next claim after its lease.",
    )


# --- jobs that wait


@situations.add
async def one_of_those_it_waits_for_was_cancelled(stage: Stage) -> AsyncIterator[Sentence]:
    for id in ("up1", "up2"):
        await stage.job(id, delay=99)
    await stage.job(after=["up1", "up2"], when=at_least(1))
    await stage.app.jobs.cancel("up1")
    yield "a", "It waits: 1 more job must succeed, of up2 (t, ready; `treadle jobs explain up2` says why)."


@situations.add
async def it_replaced_a_job_that_runs_and_waits_for_another(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("up", delay=100)
    await stage.job("old", key=Key("k", conflict="replace"))
    await stage.claim()
    await stage.job(key=Key("k", conflict="replace"), after="up")
    yield (
        "a",
        "It waits: 2 more jobs must end, of up (t, ready; `treadle jobs explain up` says why); one of them, t old, "
        "held its key 'k' before.",
    )


# --- names


@situations.add
async def an_id_that_begins_with_a_dash(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("-a", delay=5)
    yield (
        "-a",
        f"It is not queued yet: it is due at {stage.at(5)}, in 5.0 s; `treadle jobs run-now -- -a` queues it at once.",
    )


@situations.add
async def names_that_begin_with_a_dash(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.app.limits.set(Limit("--api'é $x", slots=1))
    await stage.job("one", limits=["--api'é $x"], queue="-q")
    await stage.claim(queue="-q")
    await stage.job(limits=["--api'é $x"], queue="-q")
    await stage.claim(queue="-q")
    yield (
        "a",
        'It is blocked until the limit "--api\'é $x" has room (1 of 1 slots in use, 1 job is blocked): t one has held '
        f"it longest, on w1 since {START}; `treadle limits set --slots 2 -- '--api'\"'\"'é $x'` makes room for it. "
        "Besides, no worker serves its queue '-q': `treadle worker --queues=-q` starts one.",
    )


@situations.add
async def a_queue_whose_name_looks_like_a_weight_or_a_list(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job("b", queue="x,y")
    yield "b", "It is queued, and no worker serves its queue 'x,y': `treadle worker` starts one."
    await stage.job(queue="x=2")
    yield "a", "It is queued, and no worker serves its queue 'x=2': `treadle worker --queues x=2=1` starts one."


@situations.add
async def a_job_of_the_system_queue_without_workers(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.storage.enqueue([NewJob(id="own", task="own", queue="treadle")])
    yield "own", "It is queued, and no worker is running: `treadle worker` starts one."
