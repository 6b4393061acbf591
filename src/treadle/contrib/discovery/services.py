"""The announced kinds of service, and the choice of a queue with its own blob store."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from treadle.contrib.discovery.browse import Browser, Found
from treadle.contrib.discovery.link import Network

# The original clients search for two names: with a colon, as documented, and without, as released.
QUEUES: Final = ("_serval:queue._tcp.local.", "_serval_queue._tcp.local.")
BLOBS: Final = ("_serval_storage._tcp.local.",)
A_STORE_MORE: Final = 1.0  # s to wait for a store after finding a queue without its own


class Whereabouts(Struct, frozen=True):
    """The URLs of a queue and of the store for its blobs."""

    queue: str
    store: str


async def find(timeout: float, where: Network) -> Whereabouts | None:
    """The first queue that answers, with the store of the same server, else any store, else the queue's own URL.

    None if no queue answers within `timeout` seconds. Raises NoMulticast.
    """
    async with Browser((*QUEUES, *BLOBS), where) as browser:
        services = await browser.until(lambda all: any(service.type in QUEUES for service in all), timeout)
        queue = next((service for service in services if service.type in QUEUES), None)
        if queue is None:
            return None
        if _own_store(queue, services) is None:
            services = await browser.until(lambda all: any(service.type in BLOBS for service in all), A_STORE_MORE)
        store = _own_store(queue, services) or next((service for service in services if service.type in BLOBS), None)
        return Whereabouts(queue.url, store.url if store is not None else queue.url)


def _own_store(queue: Found, services: list[Found]) -> Found | None:
    return next((service for service in services if service.type in BLOBS and service.instance == queue.instance), None)
