"""Mistakes with batch tasks and durable code that a type checker must refuse. Each ignore is itself checked."""

from __future__ import annotations

from collections.abc import Sequence

from treadle import App, BatchTask, Job, current

app = App("memory://")


@app.batch(size=50)
async def embed(texts: Sequence[str]) -> Sequence[list[float] | Exception]:
    return [[float(len(text))] for text in texts]


async def charge(order: int) -> str:
    return f"charged {order}"


async def mistakes(job: Job[list[float], list[float]]) -> None:
    await embed.enqueue(["one", "two"])  # type: ignore[arg-type]
    await embed.enqueue("one", "two")  # type: ignore[call-arg]
    embed.job(3)  # type: ignore[arg-type]
    embed.options(size=3)  # type: ignore[call-arg]
    wrong: BatchTask[int, list[float]] = embed  # type: ignore[assignment]
    number: int = await job.result()  # type: ignore[assignment]
    await current().step("charge", charge, "seven")  # type: ignore[call-overload]
    await current().step("charge", charge)  # type: ignore[call-overload]
    text: int = await current().step("charge", charge, 7)  # type: ignore[call-overload]
    await current().wait_for("paid", returns=7)  # type: ignore[call-overload]
    print(wrong, number, text)


@app.batch()  # type: ignore[arg-type]
async def one_item(text: str) -> str:
    return text


@app.batch(size="many")  # type: ignore[arg-type]
def wrong_size(texts: list[str]) -> list[str]:
    return texts


@app.batch()  # type: ignore[arg-type]
def no_list(texts: list[str]) -> int:
    return len(texts)
