"""Applies outcomes, plain endings with one UPDATE and every other outcome one by one, and renews leases.

An outcome that cannot be stored does not affect the others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from treadle.core import defaults
from treadle.core.model import (
    APPLIED,
    ASKED,
    SUPERSEDED,
    HeartbeatResult,
    LeaseRenewal,
    Outcome,
    Presence,
    Settled,
    State,
)
from treadle.storage.count_groups import BY_STATE, RUNNING
from treadle.storage.machine.rows import STEP as SLOW_STEP
from treadle.storage.machine.settle import renew
from treadle.storage.machine.settle import settle as settle_one
from treadle.storage.row_rules import CLOCK_BACK
from treadle.storage.sqlite import slots
from treadle.storage.sqlite.advance_due import advance_due
from treadle.storage.sqlite.recent_leases import Leased
from treadle.storage.sqlite.rows import DOWN, KEY, NUMBER, SLOW_END, encode, run_of, text
from treadle.storage.sqlite.slots import SQL as SLOTS
from treadle.storage.sqlite.statements import load
from treadle.storage.sqlite.unit_of_work import UnitOfWork
from treadle.storage.transfer import gone

SQL = load("settle")
BY_ID, BY_SEQ = (
    SQL["succeed"].format(
        result="e.value",
        room=":room + coalesce(length(e.value), 0)",
        rows=f"FROM json_each(:rows) e WHERE job.{column} = e.key",
    )
    for column in ("id", "seq")
)
ALIKE_BY_ID, ALIKE_BY_SEQ, ALIKE_RUN = (
    SQL["succeed"].format(result=":result", room=":room", rows=f"WHERE {which}")
    for which in (
        "id IN (SELECT value FROM json_each(:rows))",
        "seq IN (SELECT value FROM json_each(:rows))",
        "seq BETWEEN :first AND :last",
    )
)
WINS_BY_ID, WINS_BY_SEQ = (SQL["successes"].format(column=column) for column in ("id", "seq"))
STEP = 256  # plain outcomes between two turns of the loop
GROUPS = 8  # groups of one version and attempt; if there are more, each is small and takes the general statement
ENDED = 10  # bytes that an ending adds to a plain row, in addition to its result
SUCCEEDED = State.SUCCEEDED
SUCCESS = BY_STATE[NUMBER[SUCCEEDED]]
WIN, END, OTHER = range(3)  # kinds of outcomes
NO_TEXTS = (None, None, None, None)
KEEPS = {"keep": defaults.KEEP, "keep_failed": defaults.KEEP_FAILED, "least": defaults.KEEP_LEAST}


def settle(unit: UnitOfWork, outcomes: Sequence[Outcome]) -> Generator[None, None, list[Settled]]:
    seen, limited = unit.ex(SQL["glance"]).fetchone()
    unit.saw_mark(seen)
    if seen is not None:
        unit.refuse("closing", "gone")
        mark = unit.shut("closing")
        if mark is not None:
            return [gone(mark) for _ in outcomes]
    settled: list[Settled] = []
    for start in range(0, len(outcomes), STEP):
        if start:
            yield
        settled += yield from _some(unit, outcomes[start : start + STEP], bool(limited))
    return settled


def _some(unit: UnitOfWork, outcomes: Sequence[Outcome], limited: bool) -> Generator[None, None, list[Settled]]:
    """Settle one step of outcomes. `limited`: some running jobs may hold slots."""
    kinds: tuple[list[Outcome], ...] = [], [], []
    wins, ends, others = kinds
    for out in outcomes:
        kinds[_kind(out)].append(out)
    if (wins or ends) and len({out.id for out in outcomes}) == len(outcomes):
        freed = _freed(unit, (*wins, *ends), not others) if limited else None
        unapplied = _end_plain(unit, wins, ends, freed)
        if not unapplied and not others:
            return [APPLIED] * len(outcomes)
        rest = {id(out) for out in (*unapplied, *others)}
        slow = [number for number, out in enumerate(outcomes) if id(out) in rest]
    else:
        slow = list(range(len(outcomes)))
    unit.read(outcomes[number].id for number in slow)
    settled = [APPLIED] * len(outcomes)
    for count, number in enumerate(slow, 1):
        settled[number] = yield from settle_one(unit, outcomes[number])
        if count % SLOW_STEP == 0:
            yield
    unit.sync()
    return settled


def _kind(out: Outcome) -> int:
    """WIN: the most common plain ending, a success with a result or without. END: another ending and nothing else.
    OTHER: the rest. A job of version 0 was never claimed, so it does not run. Text with NUL takes the per-row path:
    SQLite's JSON ends a string there."""
    if out.followups or out.after or out.checkpoints or out.function_done or out.reach or out.spent or not out.version:
        return OTHER
    if out.result is not None and "\0" in out.result:
        return OTHER
    texts = (out.value, out.error, out.reason, out.note)
    if out.state is SUCCEEDED and out.keep is None and texts == NO_TEXTS:
        return WIN
    if not out.state.final or out.reason in (ASKED, SUPERSEDED):
        return OTHER
    if (out.keep is not None and not float(out.keep).is_integer()) or any(text and "\0" in text for text in texts):
        return OTHER
    return END


def _end_plain(
    unit: UnitOfWork, wins: Sequence[Outcome], ends: Sequence[Outcome], freed: slots.Freed | None
) -> Sequence[Outcome]:
    """End the jobs whose rows are plain too and run under the named version. Return the other outcomes."""
    slow = DOWN | KEY if freed is not None else SLOW_END
    groups: dict[tuple[int, int], dict[str, str | None]] = {}
    for out in wins:
        group = groups.get((out.version, out.attempt))
        if group is None:
            group = groups[out.version, out.attempt] = {}
        group[out.id] = out.result
    outs, others = (*wins, *ends), ends
    if len(groups) > GROUPS:
        groups, others = {}, outs
    done = sum(_succeed(unit, version, attempt, slow, group) for (version, attempt), group in groups.items())
    if others:
        rows = [
            (
                out.id,
                out.version,
                NUMBER[out.state],
                out.attempt,
                out.result,
                out.value,
                out.error,
                out.reason,
                out.note,
                None if out.keep is None else int(out.keep),
            )
            for out in others
        ]
        values = {"rows": text(rows), "slow": slow}
        for queue, task, state, jobs in unit.ex(SQL["ends"], values).fetchall():
            unit.counts.move(queue, task, RUNNING, BY_STATE[state], jobs)
        done += unit.ex(SQL["end"], {**values, "now": unit.now, **KEEPS}).rowcount
    if freed is not None:
        freed.give_back(unit)
    if done == len(outs):
        unit.topics.update([f"job:{out.id}" for out in outs])
        return ()
    unapplied = {number for (number,) in unit.ex(SQL["unapplied"], (text([(out.id, out.version) for out in outs]),))}
    if len(outs) - len(unapplied) != done:
        # Some rows already had the next version. The per-row path can tell a repetition from a stale outcome; to it,
        # the outcomes that were just applied are repetitions.
        unapplied = set(range(len(outs)))
        unit.topics.update([f"job:{out.id}" for out in outs])
    unit.topics.update([f"job:{out.id}" for number, out in enumerate(outs) if number not in unapplied])
    return [outs[number] for number in sorted(unapplied)]


def _freed(unit: UnitOfWork, outs: Sequence[Outcome], alone: bool) -> slots.Freed | None:
    """The slots and limits that these endings free. None if a limit blocks jobs and the call has other outcomes
    (`alone` is False): those would see a job queued again before their turn."""
    freed, held = slots.Freed(), unit.ex(SLOTS["running"], (text([(out.id, out.version) for out in outs]),)).fetchall()
    freed.add(held)
    return freed if (alone and len(held) == len(outs)) or not freed.awaited(unit) else None


def _succeed(unit: UnitOfWork, version: int, attempt: int, slow: int, results: dict[str, str | None]) -> int:
    values: dict[str, Any] = {
        "version": version,
        "attempt": attempt,
        "now": unit.now,
        "slow": slow,
        "room": ENDED,
        **KEEPS,
    }
    leased, common = unit.leases.take(results), next(iter(results.values()))
    seqs = leased.seqs if leased is not None else []
    if any(result != common for result in results.values()):
        statement = BY_SEQ if seqs else BY_ID
        values["rows"] = text(dict(zip(seqs or results, results.values(), strict=True)))
    else:
        values |= {"result": common, "room": ENDED + len(common or "")}
        run = run_of(sorted(seqs)) if seqs else None
        if run is not None:
            statement = ALIKE_RUN
            values["first"], values["last"] = run
        else:
            statement = ALIKE_BY_SEQ if seqs else ALIKE_BY_ID
            values["rows"] = text(seqs or list(results))
    if leased is None:
        _count_successes(unit, WINS_BY_ID, {**values, "rows": text(list(results))})
        done: int = unit.ex(statement, values).rowcount
        return done
    return _end_leased(unit, leased, statement, values)


def _end_leased(unit: UnitOfWork, leased: Leased, statement: str, values: dict[str, Any]) -> int:
    """Run a statement that ends leased rows, and count what it ends. Usually that is all of them. If it is not, and the
    rows have several tasks, they are read in the state before the statement: a savepoint costs 14,000 instructions,
    reading queue and task 3,000 a row."""
    one = len(leased.groups) == 1
    if not one:
        unit.ex("SAVEPOINT successes")
    done: int = unit.ex(statement, values).rowcount
    if one or done == len(leased.seqs):
        for (queue, task), jobs in leased.groups.items():
            unit.counts.move(queue, task, RUNNING, SUCCESS, done if one else jobs)
    else:
        unit.ex("ROLLBACK TO successes")
        _count_successes(unit, WINS_BY_SEQ, {**values, "rows": text(leased.seqs)})
        done = unit.ex(statement, values).rowcount
    if not one:
        unit.ex("RELEASE successes")
    return done


def _count_successes(unit: UnitOfWork, statement: str, values: dict[str, Any]) -> None:
    """Count the rows that the next statement will end."""
    for queue, task, jobs in unit.ex(statement, values).fetchall():
        unit.counts.move(queue, task, RUNNING, SUCCESS, jobs)


# --- heartbeat


def heartbeat(
    unit: UnitOfWork, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float
) -> Generator[None, None, HeartbeatResult]:
    unit.refuse("closing", "gone")
    if unit.shut("closing"):
        return HeartbeatResult(lost=frozenset(renewal.id for renewal in renewals))
    # A new worker counts as seen at the latest time at which any worker was seen. A machine whose clock was corrected
    # has often been restarted.
    [seen] = unit.ex(SQL["last_seen"], (worker.worker,)).fetchone()
    if seen > unit.now + CLOCK_BACK:
        for name in ("back_starts", "back_starts_gone", "back_buckets", "back_openings", "back_workers", "back_rows"):
            unit.ex(SQL[name], (unit.now,))
            yield
    if worker.gone:
        unit.ex(SQL["drop_worker"], (worker.worker,))
    else:
        unit.ex(SQL["store_worker"], (worker.worker, encode(worker), unit.now))
    quiet = [renewal for renewal in renewals if not renewal.checkpoints and renewal.note is None and not renewal.reach]
    slow = [renewal for renewal in renewals if renewal.checkpoints or renewal.note is not None or renewal.reach]
    if quiet:
        rows = text([(renewal.id, renewal.version) for renewal in quiet])
        done = unit.ex(SQL["renew_leases"], {"due": unit.now + lease, "now": unit.now, "rows": rows}).rowcount
        if done != len(quiet):
            slow = list(renewals)
    unit.read(renewal.id for renewal in slow)
    lost = set()
    for number, renewal in enumerate(slow, 1):
        if not renew(unit, renewal, lease):
            lost.add(renewal.id)
        if number % SLOW_STEP == 0:
            yield
    unit.sync()
    yield from advance_due(unit)
    return HeartbeatResult(frozenset(lost))
