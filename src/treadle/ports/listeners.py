"""Calls the listeners of a pub/sub port, alike for all of them.

An exception of a listener is logged. It does not reach the publisher or the other listeners.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from treadle.ports.contract import Listener

log = logging.getLogger("treadle")


def call_listeners(listeners: Iterable[Listener], channel: str, text: str) -> None:
    """Call each listener with the text. They may subscribe and end subscriptions meanwhile."""
    for listener in tuple(listeners):
        try:
            listener(text)
        except Exception:
            log.exception("a listener of the channel %r failed", channel)
