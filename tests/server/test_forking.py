"""`POST /v1/jobs/{id}/fork` stores a job, and shows its arguments only to tokens that may read them."""

from __future__ import annotations

import json

from tests.served import host
from tests.server.test_api import Client, session
from tests.server.test_crossing import token
from treadle import App
from treadle.core.model import Claim, Outcome, State
from treadle.server import Settings
from treadle.server.auth.tokens import SCOPES
from treadle.storage.memory import MemoryStorage

__all__ = ["session"]

TOKENS = (
    token("all", *SCOPES),
    token("ops", "operate"),
    token("starts", "operate", "enqueue"),
)


async def test_a_fork_needs_two_scopes_and_shows_arguments_to_readers(session: object) -> None:
    storage = MemoryStorage()
    call = Client(host().add(App(storage=storage), Settings(tokens=TOKENS)), session)  # type: ignore[arg-type]
    job = {"task": "t", "args": ["secret-value"], "headers": {"x": "secret-value"}}
    _, stored = await call("POST", "/v1/jobs", job, "all")
    path = f"/v1/jobs/{stored['id']}/fork"
    [row] = (await storage.claim(Claim(worker="w"))).records
    await storage.settle([Outcome(id=row.id, version=row.version, state=State.SUCCEEDED)])
    status, problem = await call("POST", path, {}, "ops")
    assert (status, problem["details"]["scope"]) == (403, "enqueue")
    assert len((await call("GET", "/v1/jobs", None, "all"))[1]["jobs"]) == 1
    status, fork = await call("POST", path, {}, "starts")
    assert (status, fork["task"], fork["queue"]) == (201, "t", "default")
    assert "secret-value" not in json.dumps(fork)
    status, fork = await call("POST", path, {}, "all")
    assert (status, fork["args"]) == (201, ["secret-value"])
