"""Mistakes a type checker must refuse. Each ignore is itself checked: one that hides nothing is an error."""

from __future__ import annotations

from treadle import App, Job, Retry

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
