"""Announces the services of `treadle server` on the local network while the server runs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from treadle.cli.output import USAGE, Stop, note

if TYPE_CHECKING:
    from treadle.server import Serving


def kinds_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of service to announce. Raises Stop for --discovery on a server that has none."""
    has_queue = "queuey" in options.get("protocols", ())
    wanted = options.get("discovery")
    if not (has_queue if wanted is None else wanted):
        return ()
    from treadle.contrib.discovery import BLOBS, QUEUES

    kinds = (*(QUEUES if has_queue else ()), *(BLOBS if has_queue or options.get("blobs") else ()))
    if not kinds:
        raise Stop(USAGE, "--discovery needs a queue or blobs to announce: give --protocol queuey, or --blobs")
    return kinds


@contextlib.asynccontextmanager
async def announced(kinds: tuple[str, ...], serving: Serving) -> AsyncIterator[None]:
    """Announce the services until the block ends. Without multicast, print a note and go on."""
    async with contextlib.AsyncExitStack() as stack:
        if kinds:
            import treadle
            from treadle.contrib.discovery import Announcement, NoMulticast, place

            properties = {"http_port": str(serving.port), "version": treadle.__version__}
            if serving.scheme == "https":
                properties["scheme"] = "https"
            try:
                announcement = Announcement(kinds, serving.host, serving.port, properties, place())
                await stack.enter_async_context(announcement)
                note(f"treadle: announced on the local network as {announcement.instance}")
            except NoMulticast as error:
                note(f"treadle: not announced on the local network: {error}")
        yield
