"""A research agent with two tools and a budget of tokens. Kill its worker at any moment: another one continues the run,
and pays for no model request twice, except for one that was in flight.

treadle worker examples/research_agent.py:app
python examples/research_agent.py
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
from pydantic import TypeAdapter
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from treadle import App, Limit, Retry, Worker
from treadle.integrations.pydantic_ai import TreadleDurability

app = App()
PORT = int(os.environ.get("MODEL_PORT", "8765"))
LEDGER = Path("ledger.txt")
LIBRARY = {"bees": "Bees see ultraviolet light.", "flowers": "Flowers have marks that only bees see."}
tools = FunctionToolset[None](id="library")


def write_down(line: str) -> None:
    with LEDGER.open("a", encoding="utf-8") as ledger:
        ledger.write(line + "\n")


@tools.tool_plain
async def search(topic: str) -> list[str]:
    """The pages about a topic."""
    write_down(f"search {topic}")
    return [page for page in LIBRARY if page == topic]


@tools.tool_plain(metadata={"treadle": {"retry": Retry(attempts=3, base=0.1)}})
async def read(page: str) -> str:
    """The text of a page."""
    write_down(f"read {page}")
    return LIBRARY[page]


async def ask_server(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """In production: `Agent("openai:...")` in place of this function and of the server below."""
    async with httpx2.AsyncClient(timeout=30) as client:
        reply = await client.post(f"http://127.0.0.1:{PORT}/", content=ModelMessagesTypeAdapter.dump_json(messages))
    return TypeAdapter(ModelResponse).validate_json(reply.raise_for_status().content)


agent = Agent(
    FunctionModel(ask_server),
    name="researcher",
    toolsets=[tools],
    capabilities=[TreadleDurability(model_options={"limits": {"tokens:ann": 1_000}, "timeout": 60}, tokens="tokens")],
)


@app.task(retry=Retry(attempts=10, base=0.1), max_lost=0)
async def research(question: str) -> str:
    return (await agent.run(question)).output


class Model(BaseHTTPRequestHandler):
    """A stand-in for a model server: it searches, reads, and then answers with the pages."""

    def do_POST(self) -> None:
        messages = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = sum(message["kind"] == "response" for message in messages)
        write_down(f"model {turn}")
        if turn < 2:
            name, key = [("search", "topic"), ("read", "page")][turn]
            parts = [{"part_kind": "tool-call", "tool_name": name, "args": {key: page}} for page in LIBRARY]
        else:
            found = [part for message in messages for part in message["parts"] if part["part_kind"] == "tool-return"]
            text = " ".join(part["content"] for part in found if part["tool_name"] == "read")
            parts = [{"part_kind": "text", "content": text}]
        usage = {"input_tokens": 200 + 50 * turn, "output_tokens": 40}
        body = json.dumps({"kind": "response", "parts": parts, "usage": usage, "model_name": "stand-in"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The ledger has the requests."""


async def main(with_worker: bool) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", PORT), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    async with app:
        await app.limits.set(Limit("tokens", rate=10_000, per=86_400))  # for each user and day
        job = await research.options(id="why-bees").enqueue("Why do bees find flowers?")
        if with_worker:
            async with Worker(app):
                print(await job.result(timeout=60))
        else:
            print(await job.result(timeout=60))
        [budget] = [use for use in await app.limits.list() if use.key == "tokens:ann"]
        print(f"{budget.starts} tokens are spent")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    asyncio.run(main(with_worker="--worker" in sys.argv))
