"""Queued jobs whose task requires labels or uses resources."""

from __future__ import annotations

from collections.abc import AsyncIterator

from tests.admin.situations.stage import Sentence, Situations, Stage
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
    yield "a", f"{free}."
    await stage.beat(needs=needs, resources=(("memory_mb", 8192, 6144),), reserved="t")
    yield "a", f"{free}; worker 'w1' starts nothing smaller until there is room for it."
    await stage.beat("w2", needs=needs, resources=(("memory_mb", 8192, 4096),))
    yield "a", CALM
