"""The mailboxes of a job as one run sees them: how far it has read each, and what it has read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from treadle.core.model import PUBLISHED, Pairs, Record
from treadle.policy.rounds import EMPTY, Mailbox, mailboxes_of
from treadle.workflow.signals import is_message

RELEASED: Final = 32  # rows of received messages that one call releases


class RunMailboxes:
    """Those of one run.

    received   signals that this run has received
    expected   names that this run has waited for, and not received since
    in_flight  rows that a wait has received, and whose value the function has not got yet: mailbox and turn
    """

    def __init__(self, checkpoints: Pairs) -> None:
        self._checkpoints = checkpoints
        self._now: dict[str, Mailbox] | None = None
        self._ahead: dict[str, list[tuple[int, Record]]] = {}
        self._published: set[str] | None = None
        self.received: set[str] = set()
        self.expected: set[str] = set()
        self.in_flight: set[tuple[str, int]] = set()

    def now(self, name: str) -> Mailbox:
        """The mailbox with what this run has received."""
        if self._now is None:
            self._now = mailboxes_of(self._checkpoints)
        return self._now.get(name, EMPTY)

    def take(self, name: str, turn: int, signalled: int | None = None) -> Mailbox:
        """The run receives this row. `signalled`: the round, for a signal."""
        before = self.now(name)
        if signalled is None:
            signalled = before.signalled
        return self._set(name, Mailbox(max(before.turn, turn), signalled, tuple([t for t in before.back if t != turn])))

    def give_back(self, name: str, turn: int) -> Mailbox:
        """The run has not received this row after all."""
        before = self.now(name)
        return self._set(name, replace(before, back=tuple(sorted({*before.back, turn}))))

    def _set(self, name: str, mailbox: Mailbox) -> Mailbox:
        assert self._now is not None
        self._now[name] = mailbox
        return mailbox

    def released(self, name: str, start: int) -> list[int]:
        """The rows of the group that begins here, without those that are still to be received."""
        kept = {*self.now(name).back, *(turn for mailbox, turn in self.in_flight if mailbox == name)}
        return [turn for turn in range(start, start + RELEASED) if turn not in kept]

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
