"""Health of processes, for what runs them: pages over HTTP, a file, and messages to the service manager.

It needs nothing but asyncio, so that a process that only supervises stays small.
"""

from treadle.worker.probes.address import Address
from treadle.worker.probes.listener import Page, PageListener, PageRequest, Reply, text_reply
from treadle.worker.probes.notify import Notifier
from treadle.worker.probes.reporter import HealthReporter, Probes
from treadle.worker.probes.verdict import Verdict, first_problem

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
