"""A model that speaks: people read its words as they come, and after a crash it says something else."""

from tests.faults.outside import effect, killed_before, seen
from treadle import App, Chunk, current

app = App()


@app.task
async def tell(chapters: int) -> str:
    here = current()
    out = here.stream("story")

    async def chapter(number: int) -> str:
        text = ""
        for word in range(3):
            said = f"{number}.{word}{'b' if killed_before() else 'a'} "
            effect(f"say {said}")
            await out.write(said)
            await seen(f"read {said}")
            text += said
        return text

    return "".join([await here.step(f"chapter {number}", chapter, number) for number in range(chapters)])


# --- in the tests
KINDS = ["async"]
LINES = [f"{verb} {chapter}.{word}a " for chapter in range(2) for word in range(3) for verb in ("say", "read")]


async def scenario() -> list[str]:
    """The result of the job, the values of its stream then, and those that a reader has."""
    job = await app.enqueue(tell.options(id="story").job(2))
    read = dict[int, Chunk]()
    async for entry in app.jobs.follow(job, "story"):
        if isinstance(entry, Chunk):
            read[entry.offset] = entry
            effect(f"read {entry.value}")
        else:
            read = {n: chunk for n, chunk in read.items() if chunk.step != entry.step or n < entry.to}
    told = await job.result(timeout=60)
    stored = "".join(await app.jobs.stream(job, "story"))
    return [told, stored, "".join([chunk.value for chunk in read.values()])]


def right(effects: list[str], result: list[str], line: int) -> None:
    """The chapter in which the process was killed begins anew, and readers have no word of its first try."""
    told, stored, read = result
    assert told == stored == read, (told, stored, read)
    first, second = ("b" if 0 < line <= 6 else "a"), ("b" if line else "a")
    assert told == "".join([f"0.{word}{first} " for word in range(3)] + [f"1.{word}{second} " for word in range(3)])
