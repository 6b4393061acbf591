"""The answer of docs/guides/fastapi.md that grows in the browser: it continues after a restart of its worker."""

from __future__ import annotations

import asyncio
import json
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.docs.blocks import blocks
from tests.kit import work
from tests.waiting import patient
from treadle.server import Serving
from treadle_testkit.shows import shows

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/fastapi.md"


@pytest.fixture
def chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of the guide, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    [code] = [block.code for block in blocks(GUIDE.read_text()) if block.file == "chat.py"]
    module = types.ModuleType("chat")
    monkeypatch.setitem(sys.modules, "chat", module)
    exec(compile(code, "chat.py", "exec"), module.__dict__)
    return module


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, Any]]:
    """Each event as its id, its name and its data."""
    fields = {"id": ""}
    async for raw in answer.content:
        line = raw.decode().rstrip("\n")
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields["id"], fields["event"], json.loads(fields["data"])
            fields = {"id": ""}


@shows("An answer that a browser reads while it grows continues after a restart of the worker, without the void words")
async def test_an_answer_continues_after_a_restart_of_the_worker(chat: Any) -> None:
    tries = 0

    async def model(question: str) -> AsyncIterator[str]:
        nonlocal tries
        tries += 1
        yield f"{question} "
        if tries == 1:
            await asyncio.Event().wait()  # the model is slow, and the worker stops
        yield "because"

    chat.model = model
    words = dict[int, str]()
    async with Serving(chat.web) as serving, aiohttp.ClientSession() as session, patient("the answer", 60):
        async with session.post(f"{serving.url}/questions?question=why") as posted:
            job = (await posted.json())["job"]
        async with work(chat.app, grace=0):
            answer = await session.get(f"{serving.url}/answers/{job}")
            coming = events(answer)
            id, name, word = await anext(coming)
            assert (id, name, word) == ("0", "chunk", "why ")
            words[0] = word
        answer.close()  # its connection is cut, too
        async with work(chat.app), session.get(f"{serving.url}/answers/{job}", headers={"Last-Event-ID": id}) as rest:
            seen = [event async for event in events(rest)]
    for id, name, data in seen:
        if name == "chunk":
            words[int(id)] = data
        elif name == "reset":
            words = {at: word for at, word in words.items() if at < data}
    assert [name for _, name, _ in seen] == ["reset", "chunk", "chunk", "end"]
    assert "".join(words.values()) == "why because"
