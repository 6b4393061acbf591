"""Warnings: the call is carried out, but may not be what its caller meant."""

from __future__ import annotations


class UnknownName(UserWarning):
    """A call named a queue, limit, task, label or signal that nothing else uses, so it may be mistyped. The call is
    carried out."""


class OldRows(UserWarning):
    """A call read a storage whose jobs were moved to another one: its rows no longer change."""
