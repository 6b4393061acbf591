"""The types that a user's editor and mypy --strict infer for workflows: results and values. Only type checkers read
it."""

from __future__ import annotations

from typing import Any, assert_type

from treadle import App, Conclude, Flow, Job, JobSpec, all_done, at_least, chain, flow, gather
from treadle.contrib.pipeline import Pipeline, Step
from treadle_testkit.shows import shows

app = App("memory://")


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task
async def count(page: bytes) -> int:
    return len(page)


@app.task
async def describe(total: int) -> str:
    return str(total)


@app.task
async def summarise(pages: list[bytes], title: str = "") -> str:
    return title


@app.task
async def nothing() -> None: ...


@app.task
async def delegating(url: str) -> Flow[int]:
    return flow(count.job(url.encode()))


@app.task(queue="mail")
async def with_value(url: str) -> Flow[str, int]:
    return flow(count.job(url.encode())).value("started")


@app.task
async def gathered(urls: list[str]) -> Flow[str]:
    return gather(fetch.job(url) for url in urls).into(summarise, title="daily")


@app.task
async def chained(url: str) -> Flow[str]:
    return chain(fetch.job(url), count, describe)


@app.task(reduce="list")
async def listed(urls: list[str]) -> Flow[bytes]:
    return flow(fetch.job(url) for url in urls)


@app.task(reduce="sum")
async def summed(urls: list[str]) -> Flow[int]:
    return flow(count.job(url.encode()) for url in urls).then(nothing.job(), when=all_done())


@app.task
async def loop(n: int) -> int | JobSpec[int]:
    return n if n > 10 else loop.job(n + 1)


@app.task
async def goes_to(n: int) -> JobSpec[str]:
    return describe.job(n)


@app.task
def concludes(n: int) -> Conclude[int]:
    return Conclude(n)


@app.reducer
def longest(pages: list[bytes]) -> bytes:
    return max(pages, key=len)


@app.task(reduce="longest")
async def reduced(urls: list[str]) -> Flow[bytes]:
    return flow(fetch.job(url) for url in urls)


@shows("type checkers know the result of a job and that of its workflow: `Job[T, W]`")
async def leaf_and_delegating() -> None:
    assert_type(await fetch.enqueue("a"), Job[bytes, bytes])
    assert_type(await delegating.enqueue("a"), Job[int, int])
    job = await with_value.enqueue("a")
    assert_type(await job.result(), str)
    assert_type(await job.workflow.result(), int)
    assert_type(await (await concludes.enqueue(1)).workflow.result(), int)


async def chained_and_gathered() -> None:
    assert_type(await (await chained.enqueue("a")).result(), str)
    assert_type(await (await gathered.enqueue(["a"])).workflow.result(), str)
    assert_type(await (await listed.enqueue(["a"])).workflow.result(), list[bytes])
    assert_type(await (await listed.enqueue(["a"])).result(), list[bytes])
    assert_type(await (await summed.enqueue(["a"])).workflow.result(), int)
    assert_type(await (await reduced.enqueue(["a"])).workflow.result(), Any)


@shows("type checkers know the result of a task that returns a value or one job to go on with")
async def dynamic_chains() -> None:
    assert_type(await (await loop.enqueue(1)).result(), int)
    assert_type(await (await loop.enqueue(1)).workflow.result(), int)
    assert_type(await (await goes_to.enqueue(1)).result(), str)


async def outside_of_tasks() -> None:
    assert_type(await flow(fetch.job("a")).enqueue(), Job[bytes, bytes])
    assert_type(await flow(fetch.job(url) for url in "abc").enqueue(), Job[bytes, bytes])
    assert_type(await (await flow(fetch.job("a"), count.job(b"")).enqueue()).result(), bytes | int)
    assert_type(await flow(fetch.job("a")).then(count.job(b""), when=at_least(1)).enqueue(), Job[int, int])
    assert_type(await flow(fetch.job("a")).then(nothing.job()).enqueue(), Job[bytes, bytes])
    assert_type(await gather(fetch.job("a"), fetch.job("b")).into(summarise, title="x").enqueue(), Job[str, str])
    assert_type(await chain(fetch.job("a"), count, describe).enqueue(), Job[str, str])
    assert_type(await chain(gathered.job(["a"]), summarise.late(title="b")).enqueue(), Job[str, str])
    assert_type(await chain(fetch.job("a"), count.late(), describe).enqueue(), Job[str, str])
    assert_type(await chain(fetch.job("a"), count, describe.late()).enqueue(), Job[str, str])
    assert_type(await chain(fetch.job("a"), count.late(), describe.late()).enqueue(), Job[str, str])
    assert_type(await app.enqueue(flow(count.job(b""))), Job[int, int])
    assert_type(await app.enqueue([delegating.job("a")]), list[Job[int, int]])
    assert_type(await (await delegating.options(delay=3).enqueue("a")).workflow.result(), int)


def a_flow_of_a_subclass_is_a_flow_of_its_class(one: Flow[bool]) -> Flow[int]:
    return one


access = Pipeline("access", [Step("check", children=["discord"]), Step("result")], labels=["userId"], app=app)


@access.handler("check:discord")
async def check(userId: int) -> bool:
    return userId > 0


async def pipelines() -> None:
    assert_type(await check(1), bool)
    run = await access.start(userId=1)
    assert_type(await run.result(), dict[str, Any])
    assert_type((await run.state()).step, str)
    assert_type(await run.position(), int | None)


def synchronous_workflows() -> None:
    assert_type(chain(fetch.job("a"), count).enqueue_sync(), Job[int, int])
    assert_type(app.sync.enqueue(chain(fetch.job("a"), count), within=object()), Job[int, int])
    assert_type(app.sync.enqueue([delegating.job("a")]), list[Job[int, int]])
    assert_type(with_value.enqueue_sync("a").result_sync(), str)
    assert_type(with_value.enqueue_sync("a").workflow.result_sync(), int)
