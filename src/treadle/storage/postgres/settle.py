"""Sends outcomes and heartbeats as JSON, and reads their results.

`functions/settle.sql` decides what an outcome does.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from treadle.core.model import (
    ACT,
    APPLIED,
    ASKED,
    Claim,
    Claimed,
    HeartbeatResult,
    LeaseRenewal,
    Outcome,
    Presence,
    Settled,
    State,
)
from treadle.storage.postgres.claim import Watch, claim, claim_fields, claimed
from treadle.storage.postgres.enqueue import refusal, to_store
from treadle.storage.postgres.rows import NUMBER, STATES, escaped, from_json, job_words, text, to_json, unescaped
from treadle.storage.postgres.topics import Caller, noting
from treadle.storage.row_rules import only_ends

SETTLE: Final = noting(
    "SELECT version, spec, details FROM {schema}.settle_and_claim(%s::float8, %s::json, %s::int, %s::boolean, NULL)", 3
)
SETTLE_CLAIM: Final = noting(
    "SELECT * FROM {schema}.settle_and_claim(%s::float8, %s::json, %s::int, %s::boolean, %s::json)", 13
)
HEARTBEAT: Final = noting(
    "SELECT held, job_id FROM {schema}.heartbeat(%s::float8, %s::text, %s::text, %s::json, %s::float8)", 2
)
PAUSES: Final = (0.005, 0.01, 0.02, 0.04)  # s between the calls of a heartbeat while the row of a checkpoint is locked


async def settle(run: Caller, outcomes: Sequence[Outcome], now: float | None) -> list[Settled]:
    rows_sent, slow = _words(outcomes)
    rows = await run.call(SETTLE, [now, rows_sent, len(outcomes), slow])
    return _settled(rows, len(outcomes))


async def settle_claim(
    run: Caller, outcomes: Sequence[Outcome], ask: Claim, now: float | None, watch: Watch
) -> tuple[list[Settled], Claimed]:
    floors = watch.floors(ask)
    rows_sent, slow = _words(outcomes)
    rows = await run.call(SETTLE_CLAIM, [now, rows_sent, len(outcomes), slow, claim_fields(ask, floors)])
    head = next(number for number, row in enumerate(rows) if row[1] is None or row[1] >= 0)
    said_of = [(row[2], row[0], row[12]) for row in rows[:head]]
    answer = claimed(rows[head:], ask, watch, floors)
    return _settled(said_of, len(outcomes)), answer or await claim(run, ask, now, watch)


def _settled(rows: Sequence[tuple[Any, ...]], count: int) -> list[Settled]:
    settled = [APPLIED] * count
    for number, status, why in rows:
        settled[number] = Settled(status, _reason(why), again=from_json(why)[0] == "locked")
    return settled


def _reason(why: str) -> str:
    kind, *facts = from_json(why)
    if kind == "gone":
        return "there is no such job"
    if kind == "moved":
        return f"it is {STATES[facts[0]]} at version {facts[1]}"
    if kind == "reopened":
        return f"{facts[0]} is {STATES[facts[1]]}"
    if kind == "locked":
        return "another open transaction has locked a row that this outcome changes; settle it again"
    return str(refusal(why))


def _act_of(out: Outcome) -> str | None:
    """The kind of act by which a person made this outcome, if it sets only the state and the retention; None for any
    other outcome."""
    if (
        len(out.checkpoints) != 1
        or out.checkpoints[0][0] != ACT
        or out.followups
        or out.after
        or out.function_done
        or out.delay > 0
        or out.reach
    ):
        return None
    if out.result is not None or out.value is not None:
        return None
    if out.state.final:
        return "keep" if out.keep is not None else "end" if out.reason == ASKED else None
    return "line" if out.state is State.READY else None


def _words(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """The outcomes in the order of their ids, which is the order of all row locks; and whether any outcome is more than
    a plain ending.

    If other outcomes of the call wait for the job of an outcome, it takes the per-row path, as they do. Acts take the
    bulk path only if all outcomes of the call are acts of one kind, because then their order does not matter.
    """
    times = Counter(out.id for out in outcomes)
    named = {up for out in outcomes for up in out.after}
    named |= {up for out in outcomes for new in out.followups for up in new.after}
    acts = {_act_of(out) for out in outcomes}
    act = next(iter(acts)) if len(acts) == 1 else None
    rows = []
    for number, out in enumerate(outcomes):
        row: dict[str, Any] = {
            "n": number,
            "id": out.id,
            "version": out.version,
            "state": NUMBER[out.state],
            "attempt": out.attempt,
        }
        for name in ("result", "value", "error", "reason", "note", "keep"):
            value = getattr(out, name)
            if value is not None:
                row[name] = value
        alone = times[out.id] == 1 and out.id not in named
        if alone and act is not None:
            row["act"] = out.checkpoints[0][1]
        if alone and act == "end":
            row |= {"fast": True, "checkpoints": out.checkpoints}
        elif alone and only_ends(out):
            row["fast"] = True
        else:
            row |= {
                "delay": out.delay,
                "function_done": out.function_done,
                "required": out.required,
                "failures_allowed": out.failures_allowed,
                "checkpoints": out.checkpoints,
                "after": out.after,
                "followups": [job_words(new) for new in to_store(out.followups)],
                "reach": out.reach or None,
                "spent": out.spent or None,
            }
        rows.append(row)
    rows.sort(key=itemgetter("id"))
    return text(rows), not all("fast" in row for row in rows)


async def heartbeat(
    run: Caller, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float, now: float | None
) -> HeartbeatResult:
    """A renewal with a checkpoint is retried while another transaction has its row locked; no lock is held in
    between."""
    presence = None if worker.gone else escaped(to_json(worker).decode())
    lost: set[str] = set()
    unsaved: set[str] = set()
    for pause in (*PAUSES, None):
        answer = await run.call(HEARTBEAT, [now, escaped(worker.worker), presence, _renewals(renewals), lease])
        lost.update(unescaped(id) for held, id in answer if not held)
        locked = {unescaped(id) for held, id in answer if held}
        again = [renewal for renewal in renewals if renewal.checkpoints and renewal.id in locked]
        unsaved = unsaved.difference(renewal.id for renewal in renewals) | locked
        if not again or pause is None:
            break
        renewals = again
        await asyncio.sleep(pause)
    return HeartbeatResult(frozenset(lost), frozenset(unsaved))


def _renewals(renewals: Sequence[LeaseRenewal]) -> str:
    return text(
        [
            {
                "id": renewal.id,
                "version": renewal.version,
                "checkpoints": renewal.checkpoints,
                "note": renewal.note,
                "quiet": not renewal.checkpoints and renewal.note is None and not renewal.reach,
                "reach": renewal.reach or None,
            }
            for renewal in renewals
        ]
    )
