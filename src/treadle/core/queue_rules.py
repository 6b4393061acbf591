"""The limit that applies to each queue: its own, `queue:NAME`, otherwise the limit of all queues, `queue`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.core.limit_model import LimitUse

ALL = "queue"
OF = "queue:"


class QueueRules:
    """The rules of queues, from the limits of a storage."""

    def __init__(self, limits: Iterable[LimitUse]) -> None:
        self._uses = {use.key: use for use in limits if use.key.partition(":")[0] == ALL}

    def of(self, queue: str) -> LimitUse | None:
        """The limit that the queue obeys, with its use; None: the queue has none. The use of `queue` itself is 0: a
        storage counts the use of this rule for each queue, so each queue in use has an entry of its own."""
        return self._uses.get(f"{OF}{queue}") or self._uses.get(ALL)

    def pause_of(self, queue: str) -> LimitUse | None:
        """The limit that lets no job of the queue start; None: none does."""
        use = self.of(queue)
        return use if use is not None and use.rule.slots == 0 else None

    @property
    def named(self) -> set[str]:
        """The queues with a limit of their own, or with a use of the limit of all queues."""
        return {key.removeprefix(OF) for key in self._uses} - {ALL}

    @property
    def paused(self) -> set[str]:
        """The queues whose rule lets no job start."""
        return {queue for queue in self.named if self.pause_of(queue) is not None}
