"""The PostgreSQL launcher: the behaviour that tests of crashes rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.servers.postgres import Postgres, binaries
from tests.waiting import until_blocking


@pytest.mark.slow
def test_a_durable_server_keeps_its_data_through_a_kill() -> None:
    with Postgres(durable=True) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE t AS SELECT 7 AS n")
        before = server.pid
        server.kill()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)
        server.start()
        assert server.pid != before
        server.restart()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT n, current_setting('fsync') FROM t").fetchone() == (7, "on")
    assert not server.folder.exists()


@pytest.mark.slow
def test_a_server_ends_when_its_process_is_killed() -> None:
    code = (
        "import os, signal\nfrom tests.servers.postgres import Postgres\nserver = Postgres().start()\n"
        "print(server.url, server.folder, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    url, folder = ended.stdout.split()
    until_blocking(lambda: not Path(folder).exists(), "the server's folder is removed")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)


def test_a_missing_server_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_PG_BIN", "/nowhere")
    with pytest.raises(RuntimeError, match="/nowhere"):
        binaries()
