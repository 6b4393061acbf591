"""Claim ids: the name of a worker, `#`, and the number of its claim. `Record.worker` is the claim id of the last claim.

Clients of the worker protocol choose their claim ids themselves, so one may have no number.
"""

from __future__ import annotations

from typing import overload


@overload
def worker_name(claim_id: str) -> str: ...
@overload
def worker_name(claim_id: str | None) -> str | None: ...


def worker_name(claim_id: str | None) -> str | None:
    """The name of the worker, which may contain a `#`; without a number the whole claim id. None: the job was never
    claimed."""
    return claim_id and (claim_id.rpartition("#")[0] or claim_id)
