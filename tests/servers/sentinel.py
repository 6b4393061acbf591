"""A primary, its replica, and three Sentinels that watch them and promote the replica when the primary is gone."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import redis

from tests.servers.process import PATIENCE, Process
from tests.servers.valkey import Fsync, Valkey, binary
from tests.waiting import until_blocking

MASTER = "main"  # the Sentinels' name of the pair
PERIODS = {"info-period": 200, "ask-period": 100, "publish-period": 200}  # ms; 10,000, 1,000 and 2,000 by default


class Sentinel(Valkey):
    """One Sentinel. It is started with its replica and peers, so it need not discover them."""

    name = "sentinel"

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(20)

    @property
    def config(self) -> Path:
        return self.folder / "sentinel.conf"

    def watch(self, primary: Valkey, replica: Valkey, peers: Sequence[Sentinel]) -> None:
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel myid {self.id}",
            f"sentinel monitor {MASTER} 127.0.0.1 {primary.port} 2",
            f"sentinel down-after-milliseconds {MASTER} 500",
            f"sentinel failover-timeout {MASTER} 1000",
            f"sentinel known-replica {MASTER} 127.0.0.1 {replica.port}",
            *(f"sentinel known-sentinel {MASTER} 127.0.0.1 {peer.port} {peer.id}" for peer in peers),
        ]
        self.config.write_text("\n".join(lines) + "\n")

    def command(self) -> Sequence[str]:
        return binary(), str(self.config), "--sentinel"


class Sentinels:
    """All these servers. `servers` are the two with data; which of them is the primary changes.

    Replication is asynchronous: writes that the primary has acknowledged and not yet sent are lost when it is killed.
    `settled` waits until there are none.
    """

    def __init__(self, fsync: Fsync = "everysec") -> None:
        self.servers = [Valkey("--repl-diskless-sync-delay", "0", fsync=fsync) for _ in range(2)]
        self.watchers = [Sentinel() for _ in range(3)]

    @property
    def addresses(self) -> str:
        """The addresses as they are written in URLs: host:port,host:port,host:port."""
        return ",".join(f"127.0.0.1:{each.port}" for each in self.watchers)

    @property
    def primary(self) -> Valkey:
        """The server that the Sentinels call the primary now."""
        _, port = self.watchers[0].do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        return next(server for server in self.servers if server.port == int(port))

    @property
    def replica(self) -> Valkey:
        return next(server for server in self.servers if server is not self.primary)

    def start(self) -> Self:
        primary, replica = self.servers
        for server in self.servers:
            server.start()
        replica.do("REPLICAOF", "127.0.0.1", primary.port)
        until_blocking(
            lambda: replica.info("replication")["master_link_status"] == "up", "the replica finds its primary", PATIENCE
        )
        for watcher in self.watchers:
            if not watcher.config.exists():
                watcher.watch(primary, replica, [each for each in self.watchers if each is not watcher])
            watcher.start()
            with contextlib.suppress(redis.ResponseError):  # Redis 6 has no such command
                watcher.do("SENTINEL", "DEBUG", *(str(word) for pair in PERIODS.items() for word in pair))
        until_blocking(self.agreed, "the Sentinels agree", PATIENCE)
        return self

    def agreed(self) -> bool:
        """Whether every Sentinel sees a primary, a replica and its peers, all of them reachable."""
        for watcher in self.watchers:
            primary, replicas, peers = (
                [dict(zip(row[::2], row[1::2], strict=True)) for row in rows]
                for rows in (
                    [watcher.do("SENTINEL", "MASTER", MASTER)],
                    watcher.do("SENTINEL", "REPLICAS", MASTER),
                    watcher.do("SENTINEL", "SENTINELS", MASTER),
                )
            )
            # A peer's last report about the primary stays in its flags for long after that primary has been replaced.
            flags = [row["flags"].removesuffix(",master_down") for row in (*primary, *replicas, *peers)]
            if flags != ["master", "slave", "sentinel", "sentinel"]:
                return False
        return True

    def whole(self) -> None:
        """Wait until every Sentinel agrees and the replica follows; one of them may have been started again."""

        def well() -> bool:
            try:
                return self.agreed() and self.replica.info("replication")["master_link_status"] == "up"
            except (redis.RedisError, KeyError):  # one of them is starting, or still believes that it is the primary
                return False

        until_blocking(well, "the Sentinels agree on a primary with a replica", PATIENCE)

    def settled(self) -> None:
        """Wait until the replica has all that the primary has acknowledged."""
        primary = self.primary

        def same() -> bool:
            info = primary.info("replication")
            return f"offset={info['master_repl_offset']}," in info.get("slave0", "") + ","

        until_blocking(same, "the replica catches up", PATIENCE)

    def fail_over(self) -> None:
        """Make the replica the primary, as before maintenance. Return when every Sentinel knows it.

        A Sentinel gives up when the replica has not changed its role within the failover-timeout of a second, as on a
        busy machine, and it does not try again by itself. So ask it until it names the new one.
        """
        new = self.replica

        def promoted() -> bool:
            if self.primary is not new:
                with contextlib.suppress(redis.ResponseError):  # in progress, or ended a moment ago
                    self.watchers[0].do("SENTINEL", "FAILOVER", MASTER)
            return self._all_know(new) and not self.failing_over()

        until_blocking(promoted, "the replica is promoted", PATIENCE)

    def failing_over(self) -> bool:
        """Whether the first Sentinel has begun a fail-over that has not ended."""
        row = self.watchers[0].do("SENTINEL", "MASTER", MASTER)
        return "failover_in_progress" in row[row.index("flags") + 1]

    def promoted(self, new: Valkey) -> None:
        """Wait until every Sentinel, and the server itself, says that this server is the primary."""
        until_blocking(lambda: self._all_know(new), "the replica is promoted", PATIENCE)

    def _all_know(self, new: Valkey) -> bool:
        wanted = ["127.0.0.1", str(new.port)]
        if any(watcher.do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER) != wanted for watcher in self.watchers):
            return False
        try:
            return new.info("replication")["role"] == "master"
        except redis.ConnectionError:  # a server that changes its role closes all connections
            return False

    def close(self) -> None:
        everybody: list[Process] = [*self.watchers, *self.servers]
        for each in everybody:
            each.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()
