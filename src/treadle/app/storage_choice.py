"""`StorageChoice`, the storage that the arguments of an app name, and what is put around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from treadle.core import clock as clocks
from treadle.metrics import ProcessCounts
from treadle.storage import LookOnly, TimedStorage, compose, connect
from treadle.storage.contract import Storage

if TYPE_CHECKING:
    from treadle.outbox import Outbox
    from treadle.storage import Wrapping


@dataclass(frozen=True, kw_only=True)
class StorageChoice:
    """The storage of an app: at a url, an object, or made of three ports.

    clock       for storages that read the time in this process; None: the wall clock
    by_default  whether no argument of the app gave the url
    outbox      writes the jobs of `within=` to the user's database; None: the storage does that
    counts      counts the calls of the storage for scrapers; None: nothing reads them
    look        the storage is only read: opening it creates, migrates and writes nothing
    wrap        makes the storage one that offloads and encrypts the texts of rows; None: they are stored as they are
    """

    url: str | None = None
    storage: Storage | None = None
    ports: Any = None
    namespace: str | None = None
    clock: clocks.Clock | None = None
    token: str | None = None
    by_default: bool = False
    outbox: Outbox | None = None
    counts: ProcessCounts | None = None
    look: bool = False
    wrap: Wrapping | None = None

    @property
    def is_only_one(self) -> bool:
        """Whether no other storage object can have its jobs."""
        return self.storage is not None or (self.url or "").startswith("memory:")

    def make(self) -> Storage:
        """The storage object; for a url or ports, a new one each time."""
        storage = self._plain()
        if self.counts is not None:
            storage = TimedStorage(storage, self.counts)
        if self.look:
            storage = LookOnly(storage)
        return storage if self.wrap is None else self.wrap.storage(storage)

    def _plain(self) -> Storage:
        if self.storage is not None:
            return self.storage
        if self.ports is not None:
            return compose(self.ports, now=self.clock, namespace=self.namespace)
        return connect(self.url or "", now=self.clock, token=self.token)
