"""Mistakes that a type checker must refuse. Each ignore is itself checked: one that hides nothing is an error."""

from __future__ import annotations

from treadle import App, Flow, Job, JobSpec, Retry, chain, flow, gather
from treadle.contrib.pipeline import Pipeline, Step

app = App("memory://")


@app.task
async def double(n: int) -> int:
    return n * 2


@app.task(queue="mail")
async def send(to: str, body: str) -> str:
    return to + body


async def mistakes(job: Job[int, int]) -> None:
    await double.enqueue("one")  # type: ignore[arg-type]
    send.job("a@x.org")  # type: ignore[call-arg]
    send.options(delay=3).job("a", "b", "c")  # type: ignore[call-arg]
    double.options(prio=3)  # type: ignore[call-arg]
    double.options(priority="high")  # type: ignore[arg-type]
    text: str = await job.result()  # type: ignore[assignment]
    await app.enqueue(double)  # type: ignore[call-overload]
    Retry(attempts="three")  # type: ignore[arg-type]
    print(text)


@app.task(retry=3)  # type: ignore[call-overload, untyped-decorator]
async def wrong_option() -> None: ...


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task
async def count(page: bytes) -> int:
    return len(page)


@app.task
async def summarise(pages: list[bytes], title: str = "") -> str:
    return title


@app.task
async def delegating() -> Flow[int]:
    return flow(count.job(b""))


@app.task
async def with_value() -> Flow[str, int]:
    return flow(count.job(b"")).value("started")


@app.task
async def of_another_type() -> Flow[str]:
    return flow(count.job(b""))  # type: ignore[arg-type]


@app.task
async def a_value_of_another_type() -> Flow[str, int]:
    return flow(count.job(b"")).value(count)  # type: ignore[arg-type]


async def mistakes_of_leaves() -> None:
    one: str = await (await count.enqueue(b"")).workflow.result()  # type: ignore[assignment]
    two: Job[str, str] = await count.enqueue(b"")  # type: ignore[assignment]
    three: JobSpec[bytes] = count.job(b"")  # type: ignore[assignment]
    await count.options(delay=1).enqueue("page")  # type: ignore[arg-type]
    five: int = await count.job(b"")  # type: ignore[misc]
    (await count.enqueue(b"")).workflow()  # type: ignore[operator]


async def mistakes_of_delegating_jobs() -> None:
    one: str = await (await delegating.enqueue()).result()  # type: ignore[assignment]
    two: int = await (await with_value.enqueue()).result()  # type: ignore[assignment]
    three: str = await (await with_value.enqueue()).workflow.result()  # type: ignore[assignment]
    _: Flow[int] = flow(fetch.job("a"))  # type: ignore[arg-type]
    five: JobSpec[str, str] = with_value.job()  # type: ignore[assignment]
    flow(count)  # type: ignore[call-overload]


async def mistakes_of_chains() -> None:
    one: Job[bytes, bytes] = await chain(fetch.job("a"), count).enqueue()  # type: ignore[assignment]
    two: Flow[int] = chain(fetch.job("a"), count, fetch)  # type: ignore[arg-type]
    chain(count.job(b""), count)  # type: ignore[misc]
    chain(fetch.job("a"), summarise.job(title="late is meant"))  # type: ignore[call-arg]
    chain(fetch.job("a"), count.late(), count)  # type: ignore[misc]
    four: int = await chain(fetch.job("a"), count).enqueue()  # type: ignore[assignment]
    chain(fetch, count, pass_result="yes")  # type: ignore[call-overload]
    flow(fetch.job("a")).then(count.job(b""), scope="all")  # type: ignore[call-overload]


async def mistakes_of_gathering() -> None:
    gather(count.job(b"")).into(summarise)  # type: ignore[arg-type]
    gather(fetch.job("a")).into(summarise, titel="x")  # type: ignore[call-arg]
    gather(fetch.job("a")).into(summarise, title=5)  # type: ignore[arg-type]
    _: Flow[int] = gather(fetch.job("a")).into(summarise)  # type: ignore[arg-type]
    gather(fetch.job("a")).into(count)  # type: ignore[arg-type]
    six: Job[bytes, bytes] = await gather(fetch.job("a")).enqueue()  # type: ignore[attr-defined]


async def mistakes_of_pipelines() -> None:
    Step("a", on_child_failure="explode")  # type: ignore[arg-type]
    Step("a", children=5)  # type: ignore[arg-type]
    pipeline = Pipeline("p", [Step("a")], app=app)
    Pipeline("p", ["a"])  # type: ignore[list-item]
    await pipeline.start(priority="high")  # type: ignore[arg-type]
    found: list[str] = await pipeline.find(userId=1)  # type: ignore[assignment]
    ended: int = await (await pipeline.start()).result()  # type: ignore[assignment]
    pipeline.handler("a")(5)  # type: ignore[type-var]


def mistakes_without_await() -> None:
    double.enqueue_sync("one")  # type: ignore[arg-type]
    send.options(delay=3).enqueue_sync("a")  # type: ignore[call-arg]
    text: str = double.enqueue_sync(1).result_sync()  # type: ignore[assignment]
    app.sync.jobs.get(5)  # type: ignore[arg-type]
    app.sync.jobs.list(order="any")  # type: ignore[arg-type]
    found: str = app.sync.jobs.get("id")  # type: ignore[assignment]
    app.sync.jobs.frobnicate  # type: ignore[attr-defined]  # noqa: B018
