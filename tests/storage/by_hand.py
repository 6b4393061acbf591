"""Transactions of users, for the laws on `within`."""

from __future__ import annotations

from typing import Any


class ByHand:
    """A user's own connection to the database of the storage."""

    def __init__(self, given: Any) -> None:
        self.given = given

    async def commit(self) -> None:
        self.given.commit()

    async def roll_back(self) -> None:
        self.given.rollback()

    async def close(self) -> None:
        self.given.close()
