"""Outcomes and heartbeats as JSON, and what became of them.

Without it no job ever ends. What an outcome does is decided in `functions/settle.sql`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

from treadle.model import APPLIED, ASKED, SUPERSEDED, Claim, Claimed, Hold, Outcome, Presence, Settled
from treadle.storage.postgres.claim import Watch, asked, claim, claimed
from treadle.storage.postgres.connection import Runner
from treadle.storage.postgres.enqueue import named_once, refusal
from treadle.storage.postgres.rows import NUMBER, STATES, from_json, job_words, said, text, to_json

SETTLE: Final = "SELECT version, spec, more FROM {schema}.work(%s::float8, %s::json, %s::int, NULL)"
SETTLE_CLAIM: Final = "SELECT * FROM {schema}.work(%s::float8, %s::json, %s::int, %s::json)"
HEARTBEAT: Final = "SELECT * FROM {schema}.heartbeat(%s::float8, %s::text, %s::text, %s::json, %s::float8)"


async def settle(run: Runner, outcomes: Sequence[Outcome], now: float | None) -> list[Settled]:
    rows = await run.run(SETTLE, [now, _words(outcomes), len(outcomes)])
    return _settled(rows, len(outcomes))


async def settle_claim(
    run: Runner, outcomes: Sequence[Outcome], ask: Claim, now: float | None, watch: Watch
) -> tuple[list[Settled], Claimed]:
    floors = watch.floors(ask)
    rows = await run.run(SETTLE_CLAIM, [now, _words(outcomes), len(outcomes), asked(ask, floors)])
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
        out.state.final and not out.then and not out.memo and not out.ran
        and (out.reason is None or (out.reason != ASKED and out.reason != SUPERSEDED))
    )  # fmt: skip


def _words(outcomes: Sequence[Outcome]) -> str:
    """In the order of their ids, so that two calls do not lock each other out. Those that others of the call wait for
    take their turn with them."""
    times = Counter(out.id for out in outcomes)
    named = {up for out in outcomes for up in out.after}
    named |= {up for out in outcomes for new in out.then for up in new.after}
    words = []
    for number, out in enumerate(outcomes):
        each: dict[str, Any] = {"n": number, "id": out.id, "version": out.version, "state": NUMBER[out.state],
                                "attempt": out.attempt}  # fmt: skip
        for name in ("result", "value", "error", "reason", "note", "keep"):
            value = getattr(out, name)
            if value is not None:
                each[name] = value
        if _is_ending(out) and times[out.id] == 1 and out.id not in named:
            each["fast"] = True
        else:
            each |= {"delay": out.delay, "ran": out.ran, "need": out.need, "slack": out.slack, "memo": out.memo,
                     "after": out.after, "then": [job_words(new) for new in named_once(out.then).values()]}  # fmt: skip
        words.append(each)
    words.sort(key=itemgetter("id"))
    return text(words)


async def heartbeat(run: Runner, worker: Presence, holds: Sequence[Hold], lease: float, now: float | None) -> set[str]:
    words = text([
        {"id": hold.id, "version": hold.version, "memo": hold.memo, "note": hold.note,
         "quiet": not hold.memo and hold.note is None}
        for hold in holds
    ])  # fmt: skip
    presence = None if worker.gone else said(to_json(worker).decode())
    rows = await run.run(HEARTBEAT, [now, said(worker.worker), presence, words, lease])
    return {id for (id,) in rows}
