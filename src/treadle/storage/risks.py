"""Risks of a storage: facts about its server or file system by which it may lose confirmed jobs.

They are looked at when a storage is opened. That look fails nothing and takes at most `PATIENCE` seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, cast

from treadle.core.command_lines import command
from treadle.core.errors import StorageError

if TYPE_CHECKING:
    from treadle.storage.contract import Storage
    from treadle.storage.optional_parts import Risk, Surroundings

PATIENCE: Final = 1.0  # s for which a server may take to answer

log = logging.getLogger("treadle.risks")


async def risks_of(storage: Storage) -> Sequence[Risk]:
    """The risks of an open storage. None for a storage without such a check, and if its server forbids the check or
    does not answer."""
    if not storage.capabilities.risks:
        return ()
    try:
        async with asyncio.timeout(PATIENCE):
            return await cast("Surroundings", storage).risks()
    except (StorageError, TimeoutError):
        return ()


async def warn_of_risks(storage: Storage, known: set[str]) -> None:
    """Log the risks of a storage that was just opened in one line. `known`: the names of those that were logged."""
    if not log.isEnabledFor(logging.WARNING):
        return
    new = [risk for risk in await risks_of(storage) if risk.name not in known]
    if new:
        known.update(risk.name for risk in new)
        texts = "; ".join(risk.text for risk in new)
        log.warning("this storage may lose jobs: %s. %s says what to change", texts, command("doctor"))
