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

    found = (*(QUEUES if has_queue else ()), *(BLOBS if has_queue or options.get("blobs") else ()))
    if not found:
        raise Stop(USAGE, "--discovery needs a queue or blobs to announce: give --protocol queuey, or --blobs")
    return found


@contextlib.asynccontextmanager
async def announced(kinds: tuple[str, ...], serving: Serving) -> AsyncIterator[None]:
    """Announce the services until the block ends. Without multicast, print a note and go on."""
    async with contextlib.AsyncExitStack() as stack:
        if kinds:
            import treadle
            from treadle.contrib.discovery import Announcement, NoMulticast, place

            told = {"http_port": str(serving.port), "version": treadle.__version__}
            if serving.scheme == "https":
                told["scheme"] = "https"
            try:
                made = Announcement(kinds, serving.host, serving.port, told, place())
                await stack.enter_async_context(made)
                note(f"treadle: announced on the local network as {made.instance}")
            except NoMulticast as error:
                note(f"treadle: not announced on the local network: {error}")
        yield
