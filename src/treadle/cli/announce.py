"""What `treadle server` tells the local network: the kinds of service it is, from its start to its end.

Without it runners would have to be told the address of every queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from treadle.cli.output import USAGE, Stop, note

if TYPE_CHECKING:
    from treadle.server import Serving


def kinds_of(options: dict[str, Any]) -> tuple[str, ...]:
    """The kinds of service to announce. Raises Stop where there is none and one is asked for."""
    has_queue = "queuey" in options.get("faces", ())
    wanted = options.get("discovery")
    if not (has_queue if wanted is None else wanted):
        return ()
    from treadle.discovery import BLOBS, QUEUES

    found = (*(QUEUES if has_queue else ()), *(BLOBS if has_queue or options.get("blobs") else ()))
    if not found:
        raise Stop(USAGE, "--discovery announces a queue or blobs: give --face queuey, or --blobs")
    return found


@contextlib.asynccontextmanager
async def announced(kinds: tuple[str, ...], serving: Serving) -> AsyncIterator[None]:
    """Known to the local network meanwhile. A machine without multicast serves all the same, and says so."""
    async with contextlib.AsyncExitStack() as stack:
        if kinds:
            import treadle
            from treadle.discovery import Announcement, NoMulticast, place

            told = {"http_port": str(serving.port), "version": treadle.__version__}
            if serving.scheme == "https":
                told["scheme"] = "https"
            try:
                made = Announcement(kinds, serving.host, serving.port, told, place())
                await stack.enter_async_context(made)
                note(f"treadle: announced to the local network as {made.instance}")
            except NoMulticast as error:
                note(f"treadle: not announced to the local network: {error}")
        yield
