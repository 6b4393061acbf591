"""The web application of the shop. Serve it: `uvicorn web:web`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from celery import chain
from celery.result import AsyncResult
from database import Order, create_tables, engine, session
from fastapi import Depends, FastAPI, HTTPException
from fastapi.concurrency import run_in_threadpool
from jobs import app, charge, pack, ship
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession


@asynccontextmanager
async def database(web: FastAPI) -> AsyncGenerator[None]:
    await create_tables()
    yield
    await engine.dispose()


web = FastAPI(title="shop", lifespan=database)
Db = Annotated[AsyncSession, Depends(session)]
STEPS = [charge, pack, ship]


class NewOrder(BaseModel):
    item: str
    cents: int


@web.post("/orders", status_code=201)
async def order(new: NewOrder, session: Db) -> dict[str, int]:
    row = Order(item=new.item, cents=new.cents)
    session.add(row)
    await session.commit()  # before the jobs, because a worker may read the row at once
    # A process that dies here leaves an order without jobs. Closing this gap takes an outbox of one's own.
    steps = chain(charge.s(row.id), pack.s(), ship.s())
    for task, step in zip(STEPS, steps.tasks, strict=True):
        step.set(task_id=job_id(task, row.id))
    await run_in_threadpool(steps.apply_async)  # it blocks while it talks to the broker
    return {"order": row.id}


@web.get("/orders/{id}")
async def progress(id: int, session: Db) -> dict[str, object]:
    row = await session.get(Order, id)
    if row is None:
        raise HTTPException(404)
    results = [AsyncResult(job_id(task, id), app=app) for task in STEPS]
    done = await run_in_threadpool(lambda: sum(result.successful() for result in results))
    return {"state": row.state, "progress": done / len(STEPS)}


def job_id(task, order: int) -> str:
    return f"{task.name}-{order}"
