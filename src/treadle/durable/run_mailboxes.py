"""The mailboxes of a job as one run sees them: how far it has read each, and what it has read ahead."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.core.model import PUBLISHED, Pairs, Record
from treadle.policy.rounds import EMPTY, Mailbox, mailboxes_of
from treadle.workflow.signals import is_message


class RunMailboxes:
    """Those of one run.

    received  signals that this run has received
    expected  names that this run has waited for, and not received since
    """

    def __init__(self, checkpoints: Pairs) -> None:
        self._checkpoints = checkpoints
        self._stored: dict[str, Mailbox] | None = None
        self._turns: dict[str, int] = {}
        self._ahead: dict[str, list[tuple[int, Record]]] = {}
        self._published: set[str] | None = None
        self.received: set[str] = set()
        self.expected: set[str] = set()

    def stored(self, name: str) -> Mailbox:
        """The mailbox as the claim of this run has read it."""
        if self._stored is None:
            self._stored = mailboxes_of(self._checkpoints)
        return self._stored.get(name, EMPTY)

    def used(self, name: str) -> int:
        """The last row that the job has received."""
        return max(self._turns.get(name, 0), self.stored(name).turn)

    def use(self, name: str, turn: int) -> int:
        """Note that the run has received this row. Returns the one that it has received before."""
        before, self._turns[name] = self._turns.get(name, turn - 1), turn
        return before

    def ahead(self, name: str, used: int) -> tuple[int, Record] | None:
        """The next message, if it was read together with an earlier one."""
        rows = self._ahead.get(name, [])
        while rows and rows[0][0] <= used:
            rows.pop(0)
        return rows[0] if rows else None

    def read_ahead(self, name: str, turns: Sequence[int], rows: Sequence[Record | None]) -> None:
        """Keep the messages at the beginning of these rows."""
        kept = self._ahead[name] = []
        for turn, stored in zip(turns, rows, strict=True):
            if stored is None or not is_message(stored):
                break
            kept.append((turn, stored))

    def publish(self, name: str) -> int:
        """Note that the job publishes under this name. Returns under how many names it does."""
        if self._published is None:
            self._published = {key[len(PUBLISHED) :] for key, _ in self._checkpoints if key.startswith(PUBLISHED)}
        self._published.add(name)
        return len(self._published)
