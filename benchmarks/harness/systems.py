"""The measured systems: each library on each storage. Their features and setup are in their adapters.

To add one: an adapter, a line here, and its requirements in benchmarks/peers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

STORAGES: Final = ("postgres", "redis", "redis-aof", "sqlite")
KIND: Final = {"sqlite-normal": "sqlite", "sqlite-full": "sqlite", "sqlite-off": "sqlite", "sqlite-own": "sqlite"}


@dataclass(frozen=True)
class System:
    """One library on one storage.

    storage  includes its durability: sqlite-full and sqlite-normal by `PRAGMA synchronous`, sqlite-off without fsync,
             sqlite-own with the library's settings
    pace     approximate drain rate in jobs/s: slow systems get fewer jobs, so that the run ends
    quick    whether it takes part in a quick run
    """

    peer: str
    storage: str
    adapter: str
    pace: int
    variant: str = ""
    quick: bool = True

    @property
    def name(self) -> str:
        return f"{self.peer}@{self.storage}"

    @property
    def group(self) -> str:
        """The storage without its durability, as `--storages` names it."""
        return KIND.get(self.storage, self.storage)

    @property
    def environment(self) -> str:
        """The requirements it runs with; "" is the current environment."""
        return "" if self.adapter == "treadle" else self.adapter

    @property
    def ours(self) -> bool:
        return self.peer == "treadle"


SYSTEMS: Final = (
    System("treadle", "postgres", "treadle", 20_000),
    System("pgqueuer", "postgres", "pgqueuer", 17_000),
    System("oban", "postgres", "oban", 3_000),
    System("procrastinate", "postgres", "procrastinate", 700),
    System("saq", "postgres", "saq", 500),
    System("dbos", "postgres", "dbos", 600),
    System("treadle", "redis", "treadle", 20_000),
    System("huey", "redis", "huey", 3_500),
    System("dramatiq", "redis", "dramatiq", 4_000),
    System("taskiq-list", "redis", "taskiq", 3_000, "list"),
    System("taskiq-stream", "redis", "taskiq", 1_500, "stream"),
    System("saq", "redis", "saq", 2_000),
    System("streaq", "redis", "streaq", 1_200),
    System("arq", "redis", "arq", 700),
    System("rq", "redis", "rq", 400),
    System("celery", "redis", "celery", 1_000),
    System("flexiq", "redis", "flexiq", 1_000),
    System("treadle", "redis-aof", "treadle", 20_000),
    System("huey", "redis-aof", "huey", 3_500),
    System("dramatiq", "redis-aof", "dramatiq", 4_000),
    System("taskiq-list", "redis-aof", "taskiq", 3_000, "list", quick=False),
    System("saq", "redis-aof", "saq", 2_000, quick=False),
    System("streaq", "redis-aof", "streaq", 1_200, quick=False),
    System("treadle", "sqlite-normal", "treadle", 20_000),
    System("treadle", "sqlite-full", "treadle", 20_000),
    System("huey", "sqlite-off", "huey", 8_000),
    System("huey", "sqlite-full", "huey", 1_500),
    System("dbos", "sqlite-own", "dbos", 400),
    System("flexiq", "sqlite-normal", "flexiq", 1_200),
)


class NoSuch(ValueError):
    """An unknown name on the command line."""


def chosen(peers: Sequence[str], storages: Sequence[str], systems: Iterable[System] = SYSTEMS) -> list[System]:
    """The named systems; without names, all. A peer may be given as `peer@storage`. Raises NoSuch."""
    systems = list(systems)
    for word in peers:
        if not any(word in (one.peer, one.name) for one in systems):
            raise NoSuch(
                f"--peers: nobody is called {word!r}; there are {', '.join(sorted({s.peer for s in systems}))}"
            )
    for word in storages:
        if not any(word in (one.group, one.storage) for one in systems):
            raise NoSuch(f"--storages: found {word!r}, expected some of {', '.join(STORAGES)}")
    return [
        one
        for one in systems
        if (not peers or one.peer in peers or one.name in peers)
        and (not storages or one.group in storages or one.storage in storages)
    ]
