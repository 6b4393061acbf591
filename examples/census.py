"""A fan-in: count words in many texts concurrently, then add up the counts, even if some texts are unreadable.

treadle worker examples/census.py:app
python examples/census.py
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

from treadle import App, JobCancelled, Retry, Worker, all_done, at_least, current

app = App()


@app.task(retry=Retry(attempts=2, base=0.05))
def count_words(path: str) -> dict[str, int]:
    return dict(Counter(Path(path).read_text(encoding="utf-8").lower().split()))


@app.task
async def add_up() -> dict[str, int]:
    """Reads the results of the jobs that it waited for; for a failed one, the exception."""
    total: Counter[str] = Counter()
    for counted in await current().upstream():
        if not isinstance(counted, Exception):
            total.update(counted)
    return dict(total.most_common(3))


@app.task
async def publish() -> str:
    return "published"


async def main(folder: Path, with_worker: bool) -> None:
    texts = {"one.txt": "to be or not to be", "two.txt": "to do is to be", "three.txt": "do be do be do"}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    counts = [count_words.job(str(folder / name)) for name in (*texts, "missing.txt")]

    async with app:
        # One call stores all of it, or nothing. The last ending releases the jobs that wait.
        *_, total, early, strict = await app.enqueue(
            *counts,
            add_up.options(after=counts, when=all_done()).job(),
            publish.options(after=counts, when=at_least(2)).job(),  # two good counts are enough for this
            publish.options(after=counts).job(),  # needs all four to succeed, which is impossible
        )
        if with_worker:
            async with Worker(app):
                await show(total, early, strict)
        else:
            await show(total, early, strict)


async def show(total, early, strict) -> None:
    print(await total.result(timeout=60))
    print(await early.result(timeout=60))
    try:
        await strict.result(timeout=60)
    except JobCancelled as error:
        print("not published:", error.reason)


if __name__ == "__main__":
    asyncio.run(main(Path.cwd(), with_worker="--worker" in sys.argv))
