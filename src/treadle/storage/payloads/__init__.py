"""A storage whose large texts are in a blob store, and whose texts are encrypted. See docs/guides/payloads.md."""

from __future__ import annotations

from treadle.storage.payloads.settings import Wrapping
from treadle.storage.payloads.survey import AGES, PLAIN, UNREAD, AgeGroup, KeyUse, Missing, by_age, key_use, missing
from treadle.storage.payloads.wrapper import IDENTITY, IDENTITY_TASK, PayloadStorage

__all__ = [
    "AGES",
    "IDENTITY",
    "IDENTITY_TASK",
    "PLAIN",
    "UNREAD",
    "AgeGroup",
    "KeyUse",
    "Missing",
    "PayloadStorage",
    "Wrapping",
    "by_age",
    "key_use",
    "missing",
]
