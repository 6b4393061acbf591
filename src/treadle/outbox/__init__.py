"""The transactional outbox: jobs as rows of the user's own database, delivered to their storage after the commit."""

from __future__ import annotations

from treadle.outbox.outbox import Outbox, OutboxRow, OutboxStats, check_outbox
from treadle.outbox.relay import Relay
from treadle.outbox.tasks import OutboxTasks

__all__ = ["Outbox", "OutboxRow", "OutboxStats", "OutboxTasks", "Relay", "check_outbox"]
