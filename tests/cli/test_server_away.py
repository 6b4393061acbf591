"""`treadle server` whose storage is away at its start: it serves, is alive and not ready, and needs no restart."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.test_health import probe
from tests.cli.tools import Command
from tests.servers import valkey
from tests.waiting import until
from treadle_testkit.proxy import Proxy
from treadle_testkit.shows import shows

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")


@pytest.mark.slow
@shows("a server whose storage is away at its start serves 503, is alive, and works once the storage answers")
async def test_a_server_waits_for_its_storage(tmp_path: Path) -> None:
    host, _, port = valkey.url().partition("://")[2].partition("/")[0].rpartition(":")
    proxy = Proxy(host, int(port))
    url = f"redis://127.0.0.1:{proxy.port}/0?ns=away{os.getpid()}"
    words = ("server", "--url", url, "--port", "0", "--no-discovery")
    try:
        with Command(*words, cwd=tmp_path) as server, Command(*words, cwd=tmp_path) as stopped:
            found = await asyncio.to_thread(server.wait_for, "http://")
            at = "http://" + found.partition("http://")[2].partition(" ")[0]
            await asyncio.to_thread(server.wait_for, "the storage is unavailable")

            async def answers(path: str, status: int) -> None:
                async def seen() -> bool:
                    return (await asyncio.to_thread(probe, at + path))[0] == status

                await until(seen, f"{status} at {path}")

            await answers("/livez", 200)
            await answers("/readyz", 503)
            await answers("/v1/jobs", 503)
            await asyncio.to_thread(stopped.wait_for, "the storage is unavailable")
            stopped.signal(signal.SIGTERM)  # while it waits
            assert await asyncio.to_thread(stopped.ended) == 0, stopped.stderr
            await proxy.accept()
            await answers("/readyz", 200)
            await answers("/v1/jobs", 200)
            server.signal(signal.SIGTERM)
            assert await asyncio.to_thread(server.ended) == 0, server.stderr
            assert "Traceback" not in server.stderr + stopped.stderr
    finally:
        await proxy.close()
