"""Queued jobs whose task requires labels or uses resources."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from tests.admin.situations.stage import START, Sentence, Situations, Stage
from treadle.core.placement import Needs

situations = Situations()
CALM = "It is next in its queue; a worker of 'default' will claim it shortly."


@situations.add
async def no_worker_has_the_label(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (("gpu", ("a100",)),)),)
    await stage.job()
    await stage.beat(tasks=(), needs=needs)
    runs = "a worker started with --label gpu=a100 runs it."
    yield "a", f"It is queued, and no running worker has label gpu=a100: {runs}"
    await stage.beat("w2", tasks=(), needs=needs, labels=(("gpus", "a100"),))
    yield "a", f"It is queued, and no running worker has label gpu=a100; did you mean gpus?: {runs}"
    await stage.beat("w3", needs=needs, labels=(("gpu", "a100"),))
    yield "a", CALM


@situations.add
async def no_worker_has_all_labels(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (("gpu", ()), ("zone", ("eu", "us")))),)
    await stage.job()
    await stage.beat(tasks=(), needs=needs, labels=(("gpu", "t4"),))
    await stage.beat("w2", tasks=(), needs=needs, labels=(("zone", "eu"),))
    yield (
        "a",
        "It is queued, and no running worker has all of the labels gpu and zone=eu or zone=us: a worker started with "
        "--label gpu --label zone=eu runs it.",
    )


@situations.add
async def no_worker_is_large_enough(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (), (("memory_mb", 16384),)),)
    await stage.job()
    await stage.beat(tasks=(), needs=needs, resources=(("memory_mb", 8192, 0),))
    runs = "a worker started with --resource memory_mb=16384 runs it."
    yield "a", f"It is queued, and it needs 16,384 memory_mb; the largest worker has 8,192: {runs}"


@situations.add
async def no_worker_has_the_resource(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (), (("gpu", 1),)),)
    await stage.job()
    await stage.beat(tasks=(), needs=needs)
    runs = "a worker started with --resource gpu=1 runs it."
    yield "a", f"It is queued, and it needs 1 gpu, and no running worker has any: {runs}"


@situations.add
async def its_resources_are_in_use(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (), (("memory_mb", 4096),)),)
    await stage.job()
    await stage.beat(needs=needs, resources=(("memory_mb", 8192, 6144),))
    free = "It is queued, and it needs 4,096 memory_mb: worker 'w1' has 2,048 of 8,192 free"
    more = "`treadle worker --queues default --resource memory_mb=8192` adds as much."
    yield "a", f"{free}; {more}"
    await stage.beat(needs=needs, resources=(("memory_mb", 8192, 6144),), reserved="t")
    yield "a", f"{free}; worker 'w1' starts nothing smaller until there is room for it; {more}"
    await stage.beat("w2", needs=needs, resources=(("memory_mb", 8192, 4096),))
    yield "a", CALM


@situations.add
async def a_worker_keeps_room_for_a_large_job(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (
        Needs("t", (("zone", ()),), (("mb", 4),)),
        Needs("big", (), (("mb", 12),)),
        Needs("gpu", (), (("gpu", 1),)),
    )
    known: dict[str, Any] = {"tasks": ("t", "big", "gpu"), "needs": needs, "labels": (("zone", "eu"),)}
    await stage.job()
    await stage.beat(**known, resources=(("mb", 16, 8), ("gpu", 1, 0)), reserved="big")
    yield (
        "a",
        "It is queued, and it needs 4 mb: worker 'w1' has 8 of 16 free, and worker 'w1' keeps room for 'big', which "
        "needs 12; `treadle worker --queues default --label zone=eu --resource mb=16 --resource gpu=1` adds as much.",
    )
    await stage.beat(**known, resources=(("mb", 16, 0), ("gpu", 1, 0)), reserved="big")
    yield "a", CALM  # 4 of 16 are left besides those that are kept
    await stage.beat(**known, resources=(("mb", 16, 8), ("gpu", 1, 1)), reserved="gpu")
    yield "a", CALM  # it uses nothing of what is kept
    await stage.beat(**known, resources=(("mb", 16, 8),), reserved="big")
    await stage.beat("w2", **known, resources=(("mb", 16, 8),))
    yield "a", CALM


@situations.add
async def the_worker_with_room_is_silent(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (), (("gpu", 1),)),)
    await stage.job()
    await stage.beat("w2", needs=needs, resources=(("gpu", 1, 0),))
    stage.clock.advance(45)
    await stage.beat(needs=needs, resources=(("gpu", 1, 1),))
    yield (
        "a",
        "It is queued, and it needs 1 gpu: worker 'w1' has 0 of 1 free; `treadle worker --queues default --resource "
        f"gpu=1` adds as much. It has waited since {START}.",
    )


@situations.add
async def one_worker_has_slots_and_the_other_has_room(stage: Stage) -> AsyncIterator[Sentence]:
    needs = (Needs("t", (), (("gpu", 1),)),)
    await stage.job()
    await stage.beat(needs=needs, resources=(("gpu", 1, 1),))
    await stage.beat("w2", needs=needs, resources=(("gpu", 2, 1),), slots=1, running=1)
    yield "a", "It is next in its queue; all slots of the only worker with room for it are taken."
    stage.clock.advance(1)
    await stage.job("b")
    yield "b", "It is queued behind 1 job in queue 'default'; all slots of the only worker with room for it are taken."


@situations.add
async def no_worker_has_room_for_a_label_with_a_space(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.beat(tasks=(), needs=(Needs("t", (("site", ("new york",)),), (("gpu", 1),)),))
    yield (
        "a",
        "It is queued, and no running worker has label site=new york: a worker started with --label 'site=new york' "
        "--resource gpu=1 runs it.",
    )


@situations.add
async def a_paused_queue_and_no_worker_with_the_label(stage: Stage) -> AsyncIterator[Sentence]:
    await stage.job()
    await stage.app.queues.pause("default")
    await stage.beat(tasks=("other",), needs=(Needs("t", (("gpu", ()),)),))
    yield (
        "a",
        "Its queue 'default' is paused: `treadle queues resume default` resumes it. Besides, no running worker has "
        "label gpu: a worker started with --label gpu runs it.",
    )
