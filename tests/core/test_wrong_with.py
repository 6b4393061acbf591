"""A plain `with` where `async with` is needed, and the reverse, say what to write."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from treadle import App, Worker
from treadle_testkit.proxy import Proxy

app = App("memory://")


@app.task
async def work() -> None: ...


BLOCKS: dict[str, tuple[Callable[[], Any], str]] = {
    "app": (lambda: app, "write `async with app:`; synchronous code needs no block, only `app.sync.enqueue"),
    "worker": (lambda: Worker(app), "write `async with worker:` in a coroutine, or `asyncio.run(worker.run())`"),
    "testing": (
        app.testing,
        "write `async with app.testing() as t:`, or `with app.sync.testing() as t:` in synchronous code",
    ),
    "proxy": (lambda: Proxy("127.0.0.1", 1), "write `async with Proxy(...) as proxy:` in a coroutine"),
    "audit": (lambda: app.audit.record("customer.delete"), "write `async with app.audit.record(...) as receipt:`"),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_error_of_a_plain_with_names_the_call_to_write(name: str) -> None:
    make, sentence = BLOCKS[name]
    with pytest.raises(TypeError) as caught, make():
        raise AssertionError("the block was entered")
    assert f"a plain `with` does not work here: {sentence}" in str(caught.value)


async def test_the_error_of_an_async_with_names_the_call_to_write() -> None:
    block: Any = app.sync.testing()
    with pytest.raises(
        TypeError, match=r"`async with` does not work here: write `with app\.sync\.testing\(\) as t:`, or"
    ):
        async with block:
            raise AssertionError("the block was entered")


async def test_the_audit_still_records_what_fails() -> None:
    async with App("memory://") as other:
        with pytest.raises(LookupError):
            async with other.audit.record("customer.delete", "42"):
                raise LookupError("no such customer")
        [entry] = (await other.audit.list()).entries
        assert "no such customer" in str(entry.error)


@pytest.mark.slow
def test_type_checkers_refuse_a_plain_with(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(
        textwrap.dedent(
            """
            from treadle import App

            app = App("memory://")
            with app.testing() as t:
                pass
            """
        )
    )
    checked = subprocess.run([sys.executable, "-m", "mypy", str(path)], capture_output=True, text=True, check=False)
    assert '"Testing" has no attribute "__enter__"' in checked.stdout
