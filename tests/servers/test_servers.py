"""The launchers: the behaviour that tests of outages rely on."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers.cluster import Cluster
from tests.servers.process import ServerFailed
from tests.servers.sentinel import Sentinels
from tests.servers.standby import Pair
from tests.servers.valkey import Valkey, binary
from tests.waiting import until_blocking


def test_a_server_keeps_its_data_through_a_kill() -> None:
    with Valkey(fsync="always") as server:
        server.do("SET", "a", 7)
        server.kill()
        with pytest.raises(redis.ConnectionError):
            server.do("GET", "a")
        server.start()
        assert server.do("GET", "a") == "7"
        server.restart()
        assert server.do("GET", "a") == "7"
        server.freeze()
        assert not server.answers()
        server.thaw()
        assert server.answers()
    assert not server.folder.exists()


def test_a_server_ends_when_its_process_is_killed() -> None:
    code = (
        "import os, signal\nfrom tests.servers.valkey import Valkey\nserver = Valkey().start()\n"
        "print(server.port, server.folder, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    port, folder = ended.stdout.split()
    until_blocking(lambda: not Path(folder).exists(), "the server's folder is removed")
    with pytest.raises(redis.ConnectionError):
        redis.Redis(port=int(port), retry=Retry(NoBackoff(), 0)).ping()


def test_a_missing_server_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_VALKEY_BIN", "/nowhere")
    binary.cache_clear()
    try:
        with pytest.raises(ServerFailed, match="/nowhere"):
            binary()
    finally:
        binary.cache_clear()


def test_a_server_that_does_not_start_reports_why() -> None:
    server = Valkey("--no-such-setting", "1")
    try:
        with pytest.raises(ServerFailed, match="no-such-setting"):
            server.start()
    finally:
        server.close()


@pytest.mark.slow
def test_a_slot_of_a_cluster_moves() -> None:
    with Cluster() as cluster:
        slot = cluster.slot("{x}")
        old = cluster.owner(slot)
        new = next(node for node in cluster.nodes if node is not old)
        old.do("SET", "{x}:a", 7)
        cluster.move(slot, new)
        assert cluster.owner(slot) is new
        assert new.do("GET", "{x}:a") == "7"
        with pytest.raises(redis.exceptions.MovedError):
            old.do("GET", "{x}:a")


@pytest.mark.slow
def test_a_replica_is_promoted() -> None:
    with Sentinels() as sentinels:
        old, new = sentinels.primary, sentinels.replica
        old.do("SET", "a", 7)
        sentinels.settled()
        old.kill()
        sentinels.promoted(new)
        assert (sentinels.primary, new.do("GET", "a")) == (new, "7")


@pytest.mark.slow
def test_a_fail_over_that_a_sentinel_gives_up_is_begun_again() -> None:
    """A replica that stalls for longer than the failover-timeout of a second, as on a busy machine."""
    with Sentinels() as sentinels, ThreadPoolExecutor() as pool:
        new = sentinels.replica
        sentinels.settled()
        new.freeze()
        done = pool.submit(sentinels.fail_over)
        until_blocking(sentinels.failing_over, "a fail-over")
        until_blocking(lambda: not sentinels.failing_over(), "its end")
        assert sentinels.primary is not new
        new.thaw()
        done.result()
        assert sentinels.primary is new


@pytest.mark.slow
def test_a_standby_takes_over_with_all_that_was_committed() -> None:
    with Pair() as pair:
        old = pair.primary
        with psycopg.connect(old.url, autocommit=True) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        pair.fail_over()
        assert pair.primary is not old
        pair.restore()
        with psycopg.connect(pair.primary.url, autocommit=True) as connection:
            connection.execute("UPDATE kept SET n = n + 1")  # it waits for the new standby
        pair.fail_over()
        with psycopg.connect(pair.primary.url, autocommit=True) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (8,)
