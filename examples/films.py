"""FastAPI: a request enqueues a job and returns at once; a stream of events reports its progress.

    pip install fastapi uvicorn
    treadle worker examples/films.py:app
    uvicorn films:web --app-dir examples        # or, to see it work: python examples/films.py

A browser follows it with `new EventSource("/films/...")`. The web server runs no job; any number of them may serve.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.request import Request, urlopen

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

from treadle import App, Job, UnknownJob, current

app = App()


@app.task(queue="films", timeout=600)
async def render(title: str, frames: int) -> str:
    for frame in range(frames):
        await asyncio.sleep(0.02)  # the work
        await current().progress((frame + 1) / frames, f"frame {frame + 1} of {frames}")
    return f"{title}.mp4"


@asynccontextmanager
async def life(web: FastAPI) -> AsyncGenerator[None]:
    async with app:  # opened and closed with the web server
        yield


web = FastAPI(lifespan=life)


@web.post("/films", status_code=202)
async def order(title: str, frames: int = 50) -> dict[str, str]:
    """The job is stored before the response. While it runs, a second request for the title returns the same job."""
    job = await render.options(key=title).enqueue(title, frames)
    return {"id": job.id, "follow": f"/films/{job.id}"}


@web.get("/films/{id}")
async def follow(id: str) -> StreamingResponse:
    """Server-sent events: one for each progress step, the last one with the result."""
    try:
        row = await app.jobs.get(id)
    except UnknownJob:
        raise HTTPException(404, f"there is no film {id}") from None
    return StreamingResponse(steps(app.jobs.job_of(row)), media_type="text/event-stream")


async def steps(job: Job[object]) -> AsyncIterator[str]:
    told = None
    while True:
        row = await app.jobs.get(job)
        if row.note is not None and row.note != told:
            told = row.note
            yield f"event: progress\ndata: {told}\n\n"
        if row.state.final:
            yield f"event: {row.state}\ndata: {row.result or json.dumps(row.error)}\n\n"
            return
        with suppress(TimeoutError):
            await job.ended(timeout=0.2)  # a notification reports the ending at once; progress is polled


async def main(frames: int) -> None:
    """The server, and a client that orders a film and follows it."""
    server = uvicorn.Server(uvicorn.Config(web, port=0, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn tells nobody
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    await asyncio.to_thread(watch, f"http://127.0.0.1:{port}", frames)
    server.should_exit = True
    await serving


def watch(url: str, frames: int) -> None:
    with urlopen(Request(f"{url}/films?title=dawn&frames={frames}", method="POST")) as answer:
        order = json.load(answer)
    event, steps = "", 0
    with urlopen(url + order["follow"]) as stream:
        for raw in stream:
            line = raw.decode().strip()
            if line.startswith("event: "):
                event = line[7:]
            elif line.startswith("data: ") and event == "progress":
                steps += 1
                print(json.loads(line[6:])["text"], file=sys.stderr)
            elif line.startswith("data: "):
                print(f"{event}: {json.loads(line[6:])}, after {'some' if steps else 'no'} steps")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200))
