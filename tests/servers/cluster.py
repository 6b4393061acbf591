"""A cluster of three nodes, which can move hash slots between them."""

from __future__ import annotations

import atexit
import functools
from collections.abc import Sequence
from typing import Self

from tests.servers.process import PATIENCE
from tests.servers.valkey import Fsync, Valkey, fields
from tests.waiting import until_blocking

SLOTS = 16_384
NODES = 3


class Cluster:
    """Three primaries without replicas, each with a third of the slots and data that survives a kill.

    When one of them is down, the cluster answers nobody (CLUSTERDOWN), as is the servers' own default.

    ports  where clients reach the nodes, for example through proxies; (): at the nodes' own ports
    """

    def __init__(self, fsync: Fsync = "everysec", ports: Sequence[int] = ()) -> None:
        words = ("--cluster-enabled", "yes", "--cluster-node-timeout", "1000")
        announced = [("--cluster-announce-port", str(port)) for port in ports] or [()] * NODES
        self.nodes = [Valkey(*words, *each, fsync=fsync) for each in announced]
        self.ports = [*ports] or [node.port for node in self.nodes]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def url(self) -> str:
        """Of all of it."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def start(self) -> Self:
        """Start the nodes, make them one cluster if they are not, and return when it answers."""
        for node in self.nodes:
            node.start()
        first = self.nodes[0]
        if fields(first.do("CLUSTER", "INFO"))["cluster_slots_assigned"] != str(SLOTS):
            for number, node in enumerate(self.nodes):
                node.do("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                node.do("CLUSTER", "ADDSLOTS", *range(number * SLOTS // NODES, (number + 1) * SLOTS // NODES))
            for node in self.nodes[1:]:
                node.do("CLUSTER", "MEET", "127.0.0.1", first.port)
        until_blocking(self.whole, "the nodes of the cluster find each other", PATIENCE)
        return self

    def whole(self) -> bool:
        """Whether every node reports that the cluster is complete."""
        said = [fields(node.do("CLUSTER", "INFO")) for node in self.nodes]
        return all(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(NODES) for info in said)

    def owner(self, slot: int) -> Valkey:
        """The node that owns a hash slot now."""
        for first, last, (_, port, *_), *_ in self.nodes[0].do("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self.nodes[self.ports.index(port)]
        raise LookupError(slot)

    def slot(self, key: str) -> int:
        return int(self.nodes[0].do("CLUSTER", "KEYSLOT", key))

    def move(self, slot: int, to: Valkey) -> None:
        """Move a hash slot with its keys to another node, as an operator does when a cluster grows."""
        of, new = self.owner(slot), str(to.do("CLUSTER", "MYID"))
        to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", str(of.do("CLUSTER", "MYID")))
        of.do("CLUSTER", "SETSLOT", slot, "MIGRATING", new)
        while keys := of.do("CLUSTER", "GETKEYSINSLOT", slot, 100):
            of.do("MIGRATE", "127.0.0.1", to.port, "", 0, 5_000, "KEYS", *keys)
        for node in (to, of, *self.nodes):
            node.do("CLUSTER", "SETSLOT", slot, "NODE", new)

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()


@functools.cache
def shared() -> Cluster:
    """The cluster that all tests of this process share; each takes a namespace of its own."""
    cluster = Cluster()
    atexit.register(cluster.close)
    return cluster.start()
