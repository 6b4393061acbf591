"""A warning: the call is carried out, but may not be what its caller meant."""

from __future__ import annotations


class OldRows(UserWarning):
    """A call read a storage whose jobs were moved to another one: its rows no longer change."""
