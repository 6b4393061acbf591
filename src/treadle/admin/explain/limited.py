"""Sentences about limits: paused, resting, used up, or with their room kept for jobs ahead."""

from __future__ import annotations

from treadle.admin.explain.facts import Facts
from treadle.admin.explain.wording import at, count, jobs, lasting, named, on_job, resume, set_limit, worker_of
from treadle.core.limit_model import Limit, LimitUse
from treadle.core.model import Record
from treadle.storage import Usage, slots_fit
from treadle.storage.row_rules import costs


def by_parent(key: str, facts: Facts) -> str | None:
    """The sentence for a full limit, if the job's own parent holds one of its slots; otherwise None."""
    use, parent, row = facts.use_of(key), facts.parent, facts.row
    if parent is None or use is None or not use.rule.slots or key not in dict(costs(parent.job)):
        return None
    if use.used + dict(costs(row.job)).get(key, 1) <= use.rule.slots:
        return None
    return f"The limit {key!r} has {use.used} of {use.rule.slots} slots in use, one of them by {own_parent(parent)}."


def own_parent(parent: Record) -> str:
    return (
        f"its own parent, {named(parent)}: if that run waits for it, neither can continue (use "
        "`after=`, which takes no slot, or give the limit more slots)"
    )


def blocked(key: str, facts: Facts) -> str:
    """The sentence for a job that a limit which it names blocks."""
    use = facts.use_of(key)
    if use is None:
        return f"It is blocked until the limit {key!r} has room (its rule was removed, or this token does not show it)."
    if (shut := closed(f"The limit {key!r}", use, facts)) is not None:
        return f"{shut}."
    rule, cost = use.rule, dict(costs(facts.row.job)).get(key, 1)
    others = f"{count(use.blocked, 'job')} {'is' if use.blocked == 1 else 'are'} blocked"
    if use.next_start is not None and _slots_fit(use, cost):
        used_up = _rate_used_up(f"the rate of the limit {key!r}", use, facts.now)
        return f"It is blocked: {used_up}; {others}{_faster(rule)}."
    used = [f"{use.used:,} of {rule.slots:,} slots in use"] if rule.slots is not None else []
    used += [f"{use.starts:,} of {_rate(rule)} used"] if rule.rate is not None else []
    costly = [f"it needs {cost:,}"] if cost > 1 else []
    room = f"It is blocked until the limit {key!r} has room ({', '.join([*used, *costly, others])})"
    if rule.slots is not None and not _slots_fit(use, cost):
        also, raised = _rate_too(use, facts.now)
        held = f"{room}{_held(key, use, facts)}{also}"
        return f"{held}; {set_limit(rule, slots=use.used + cost, rate=raised)} makes room for it."
    if rule.rate and use.starts + cost > rule.rate:
        behind = f"; {named(facts.rivals[0])} is ahead of it" if facts.rivals else ""
        return f"{room}{_opening(use, facts.now)}{behind}{_faster(rule)}."
    return f"{room}{_kept_for(key, facts)}."


def queue_blocks(facts: Facts) -> str | None:
    """The sentence for a queue whose own limit is reached or paused; None if the limit has room."""
    queue = facts.row.job.queue
    use = facts.use_of(f"queue:{queue}", "queue")
    if use is None:
        return None
    if (shut := closed(f"Its queue {queue!r}", use, facts)) is not None:
        return f"{shut}."
    rule = use.rule
    if rule.slots is not None and use.used >= rule.slots:
        also, rate = _rate_too(use, facts.now)
        held = f"{_held(f'queue:{queue}', use, facts)}{also}"
        runs = f"Its queue {queue!r} runs {use.used} of at most {rule.slots} jobs at once"
        return f"{runs}{held}; {set_limit(rule, slots=use.used + 1, rate=rate)} lets one more run."
    if use.next_start is not None:
        ahead = facts.ahead
        behind = f"; {jobs(ahead)} {'is' if ahead == 1 else 'are'} ahead of it" if ahead else ""
        used_up = _rate_used_up(f"the rate of its queue {queue!r}", use, facts.now)
        return f"It is queued, and {used_up}{behind}{_faster(rule)}."
    return None


def closed_limit(facts: Facts) -> tuple[str, str] | None:
    """The first limit that a queued job names and that lets nothing start, with its sentence: the next claim blocks the
    job."""
    for key, _ in facts.row.job.limits:
        use = facts.rule_of(key)
        if use is not None and (shut := closed(f"The limit {key!r}", use, facts)) is not None:
            return key, f"{shut}."
    return None


def closed(what: str, use: LimitUse, facts: Facts) -> str | None:
    """The words for a limit that lets no job start until a person changes it, or until the rest that a job requested
    ends."""
    if use.rule.slots == 0:
        return _shut(what, use, facts)
    if use.rule.rate == 0:  # Treadle never sets it, but other programs may store it
        return f"{what} lets no job start because its rate is 0: {set_limit(use.rule, rate=1)} lets one start"
    return None


def full(what: str, key: str, cost: int, use: LimitUse, facts: Facts) -> str | None:
    """The words for a limit that has no room now."""
    rule = use.rule
    if rule.slots is not None and not _slots_fit(use, cost):
        needs = f", and it needs {cost:,}" if cost > 1 else ""
        return f"{what} has {use.used:,} of {rule.slots:,} slots in use{needs}{_held(key, use, facts)}"
    return _rate_used_up(f"the rate of {what}", use, facts.now) if use.next_start is not None else None


def _slots_fit(use: LimitUse, cost: int) -> bool:
    return slots_fit(use.rule, Usage(used=use.used), cost)


def _shut(what: str, use: LimitUse, facts: Facts) -> str:
    """The words for a limit that is paused by an operator or held by a job."""
    rest = next((pause for pause in use.pauses if pause.why == "held"), None)
    until = f"until {at(rest.until)}" if rest is not None and rest.until is not None else "for a while"
    if rest is None or len(use.pauses) > 1:
        slots = "" if use.pauses else " (0 slots)"
        also = f"; it also rests {until}, because a job requested that" if rest is not None else ""
        return f"{what} is paused{slots}{_paused_by(use, facts)}: {resume(use.rule.name)} resumes it{also}"
    return (
        f"{what} rests {until} because a job requested that (`Defer(limit=...)`, as after a 429); it resumes by itself"
    )


def _paused_by(use: LimitUse, facts: Facts) -> str:
    if use.rule.name not in facts.paused:
        return ""
    when, by = facts.paused[use.rule.name]
    return f" ({by or 'an operator'} paused it at {at(when)})"


def _rate_too(use: LimitUse, now: float) -> tuple[str, int | None]:
    """For a limit whose slots are taken: words that its rate is used up, too, and a higher rate; "", None if it is
    not."""
    if use.next_start is None:
        return "", None
    opens = f"no start is possible before {at(use.next_start)}, in {lasting(use.next_start - now)}"
    return f"; its rate ({_rate(use.rule)}) is used up, too: {opens}", 2 * (use.rule.rate or 1)


def _rate_used_up(whose: str, use: LimitUse, now: float) -> str:
    opens = use.next_start or now
    when = f"the next start is possible at {at(opens)}, in {lasting(opens - now)}"
    return f"{whose} ({_rate(use.rule)}) is used up; {when}"


def _opening(use: LimitUse, now: float) -> str:
    """When the rate has room for the first job that it blocks."""
    if use.opens is None:
        return ""
    first = "" if use.blocked == 1 else " for the first of them"
    return f"; there is room{first} at {at(use.opens)}, in {lasting(max(0.0, use.opens - now))}"


def _rate(rule: Limit) -> str:
    return f"{count(rule.rate or 0, 'start')} per {rule.per:g} s"


def _faster(rule: Limit) -> str:
    return f"; {set_limit(rule, rate=2 * (rule.rate or 1))} doubles the rate"


def _held(key: str, use: LimitUse, facts: Facts) -> str:
    """The job that has held a slot of a full limit for longest."""
    holders = facts.holders(key)
    if not holders:
        return " by jobs that keep it until they have ended" if use.rule.hold == "ended" else ""
    first, more = holders[0], use.used - dict(costs(holders[0].job))[key]
    others = f"; others hold {more:,} more" if more > 0 else ""
    return f": {named(first)} has held it longest, on {worker_of(first)} since {at(first.started_at)}{others}"


def _kept_for(key: str, facts: Facts) -> str:
    """The job ahead that the room of a limit with free slots is kept for."""
    if not facts.rivals:
        return ""
    rival = facts.rivals[0]
    if rival.queue_position is not None:
        ahead = f"{named(rival)}, which is ahead of it and queued again"
    else:
        cost = dict(costs(rival.job)).get(key, 1)
        ahead = f"{named(rival)}, which is ahead of it and needs {cost:,} at once"
    return f": the room is kept for {ahead}; {on_job('explain', rival)} says what that job waits for"
