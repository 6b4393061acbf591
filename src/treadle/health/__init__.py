"""Health of processes, for what runs them: pages over HTTP, a file, and messages to the service manager.

It needs nothing but asyncio, so that a process that only supervises stays small.
"""

from treadle.health.address import Address
from treadle.health.listener import PageListener, PageRequest, Reply, text_reply

__all__ = ["Address", "PageListener", "PageRequest", "Reply", "text_reply"]
