"""Health of processes, for what runs them: pages over HTTP, a file, and messages to the service manager.

It needs nothing but asyncio, so that a process that only supervises stays small.
"""

from treadle.health.address import Address
from treadle.health.listener import Page, PageListener, PageRequest, Reply, text_reply
from treadle.health.notify import Notifier
from treadle.health.reporter import HealthReporter, Probes
from treadle.health.verdict import Verdict, first_problem

__all__ = [
    "Address",
    "HealthReporter",
    "Notifier",
    "Page",
    "PageListener",
    "PageRequest",
    "Probes",
    "Reply",
    "Verdict",
    "first_problem",
    "text_reply",
]
