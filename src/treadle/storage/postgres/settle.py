"""Outcomes and heartbeats as JSON, and what became of them.

Without it no job ever ends. What an outcome does is decided in `functions/settle.sql`.
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
    SUPERSEDED,
    Claim,
    Claimed,
    Held,
    Hold,
    Outcome,
    Presence,
    Settled,
    State,
)
from treadle.storage.postgres.claim import Watch, asked, claim, claimed
from treadle.storage.postgres.enqueue import refusal, to_store
from treadle.storage.postgres.rows import NUMBER, STATES, from_json, heard, job_words, said, text, to_json
from treadle.storage.postgres.topics import Caller, noting

SETTLE: Final = noting(
    "SELECT version, spec, more FROM {schema}.work(%s::float8, %s::json, %s::int, %s::boolean, NULL)", 3
)
SETTLE_CLAIM: Final = noting("SELECT * FROM {schema}.work(%s::float8, %s::json, %s::int, %s::boolean, %s::json)", 13)
HEARTBEAT: Final = noting(
    "SELECT held, told FROM {schema}.heartbeat(%s::float8, %s::text, %s::text, %s::json, %s::float8)", 2
)
PAUSES: Final = (0.005, 0.01, 0.02, 0.04)  # s between the calls of a heartbeat whose memo meets a locked row


async def settle(run: Caller, outcomes: Sequence[Outcome], now: float | None) -> list[Settled]:
    words, slow = _words(outcomes)
    rows = await run.call(SETTLE, [now, words, len(outcomes), slow])
    return _settled(rows, len(outcomes))


async def settle_claim(
    run: Caller, outcomes: Sequence[Outcome], ask: Claim, now: float | None, watch: Watch
) -> tuple[list[Settled], Claimed]:
    floors = watch.floors(ask)
    words, slow = _words(outcomes)
    rows = await run.call(SETTLE_CLAIM, [now, words, len(outcomes), slow, asked(ask, floors)])
    head = next(number for number, row in enumerate(rows) if row[1] is None or row[1] >= 0)
    said_of = [(row[2], row[0], row[12]) for row in rows[:head]]
    found = claimed(rows[head:], ask, watch, floors)
    return _settled(said_of, len(outcomes)), found or await claim(run, ask, now, watch)


def _settled(rows: Sequence[tuple[Any, ...]], count: int) -> list[Settled]:
    settled = [APPLIED] * count
    for number, status, why in rows:
        settled[number] = Settled(status, _reason(why), again=from_json(why)[0] == "locked")
    return settled


def _reason(why: str) -> str:
    kind, *words = from_json(why)
    if kind == "gone":
        return "there is no such job"
    if kind == "moved":
        return f"it is {STATES[words[0]]} at version {words[1]}"
    if kind == "locked":
        return "somebody else's open transaction holds a row it would change; settle it again"
    return str(refusal(why))


def _is_ending(out: Outcome) -> bool:
    """An ending and nothing else."""
    return (
        out.state.final
        and not out.then
        and not out.memo
        and not out.ran
        and not out.reach
        and (out.reason is None or (out.reason != ASKED and out.reason != SUPERSEDED))
    )


def _act_of(out: Outcome) -> str | None:
    """What a person's act does, if it assigns only state and retention; None: it is something else."""
    if len(out.memo) != 1 or out.memo[0][0] != ACT or out.then or out.after or out.ran or out.delay > 0 or out.reach:
        return None
    if out.result is not None or out.value is not None:
        return None
    if out.state.final:
        return "keep" if out.keep is not None else "end" if out.reason == ASKED else None
    return "line" if out.state is State.READY else None


def _words(outcomes: Sequence[Outcome]) -> tuple[str, bool]:
    """In the order of their ids, which is that of all row locks; and whether some are more than plain endings.

    Outcomes that others of the call wait for take their turn with those. Acts go together if all of a call are alike,
    so that their order means nothing.
    """
    times = Counter(out.id for out in outcomes)
    named = {up for out in outcomes for up in out.after}
    named |= {up for out in outcomes for new in out.then for up in new.after}
    acts = {_act_of(out) for out in outcomes}
    act = next(iter(acts)) if len(acts) == 1 else None
    words = []
    for number, out in enumerate(outcomes):
        each: dict[str, Any] = {
            "n": number,
            "id": out.id,
            "version": out.version,
            "state": NUMBER[out.state],
            "attempt": out.attempt,
        }
        for name in ("result", "value", "error", "reason", "note", "keep"):
            value = getattr(out, name)
            if value is not None:
                each[name] = value
        alone = times[out.id] == 1 and out.id not in named
        if alone and act is not None:
            each["act"] = out.memo[0][1]
        if alone and act == "end":
            each |= {"fast": True, "memo": out.memo}
        elif alone and _is_ending(out):
            each["fast"] = True
        else:
            each |= {
                "delay": out.delay,
                "ran": out.ran,
                "need": out.need,
                "slack": out.slack,
                "memo": out.memo,
                "after": out.after,
                "then": [job_words(new) for new in to_store(out.then)],
                "reach": out.reach or None,
            }
        words.append(each)
    words.sort(key=itemgetter("id"))
    return text(words), not all("fast" in each for each in words)


async def heartbeat(run: Caller, worker: Presence, holds: Sequence[Hold], lease: float, now: float | None) -> Held:
    """A hold with a memo waits for a row that another transaction has: it asks again, and holds no lock meanwhile."""
    presence = None if worker.gone else said(to_json(worker).decode())
    lost: set[str] = set()
    unsaved: set[str] = set()
    for pause in (*PAUSES, None):
        answer = await run.call(HEARTBEAT, [now, said(worker.worker), presence, _holds(holds), lease])
        lost.update(heard(id) for held, id in answer if not held)
        locked = {heard(id) for held, id in answer if held}
        again = [hold for hold in holds if hold.memo and hold.id in locked]
        unsaved = unsaved.difference(hold.id for hold in holds) | locked
        if not again or pause is None:
            break
        holds = again
        await asyncio.sleep(pause)
    return Held(frozenset(lost), frozenset(unsaved))


def _holds(holds: Sequence[Hold]) -> str:
    return text(
        [
            {
                "id": hold.id,
                "version": hold.version,
                "memo": hold.memo,
                "note": hold.note,
                "quiet": not hold.memo and hold.note is None and not hold.reach,
                "reach": hold.reach or None,
            }
            for hold in holds
        ]
    )
