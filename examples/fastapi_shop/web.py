"""The web application of the shop. Serve it: `uvicorn web:web`."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

from database import Order, create_tables, engine, session
from fastapi import Depends, FastAPI, HTTPException
from jobs import app, charge, pack, ship
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession

from treadle import chain
from treadle.integrations.starlette import mount


@asynccontextmanager
async def database(web: FastAPI) -> AsyncGenerator[None]:
    await create_tables()
    yield
    await engine.dispose()


web = FastAPI(title="shop", lifespan=database)
mount(web, "/jobs", app, alone=True)  # the dashboard, for programs of this machine; in production auth= or tokens=
Db = Annotated[AsyncSession, Depends(session, scope="function")]


class NewOrder(BaseModel):
    item: str
    cents: int


@web.post("/orders", status_code=201)
async def order(new: NewOrder, session: Db) -> dict[str, int]:
    row = Order(item=new.item, cents=new.cents)
    session.add(row)
    await session.flush()  # gives it its id
    job = await app.enqueue(chain(charge.job(row.id), pack, ship), within=session)
    row.job = job.id
    return {"order": row.id}


@web.get("/orders/{id}")
async def progress(id: int, session: Db) -> dict[str, object]:
    row = await session.get(Order, id)
    if row is None:
        raise HTTPException(404)
    job = await app.jobs.handle(row.job)
    return {"state": row.state, "progress": (await job.workflow.progress()).fraction}
