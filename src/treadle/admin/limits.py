"""`app.limits`: sets, declares, pauses and resumes limits on how many jobs run at once or start within a period.

No method reads before it writes. The storage keeps rules, declared rules and pauses apart and applies each change on
its own, so changes by operators, deployments and holding jobs never undo each other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, cast

from msgspec import json
from msgspec.structs import asdict, replace

from treadle.admin.explain.wording import set_limit
from treadle.admin.known_names import Names
from treadle.admin.moved_looks import Moved
from treadle.core import defaults
from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.limit_model import Declare, Limit, LimitUse, Pause, Resume
from treadle.core.model import ABORTED, Outcome, Record, State
from treadle.core.ranges import LONGEST, OWN, check_bound
from treadle.execution import SystemTask
from treadle.policy.judge import HOLD, Held
from treadle.policy.retry import seconds
from treadle.storage import rule_for
from treadle.storage.contract import Storage
from treadle.tasks.options import name_of

STORED: Final = Limit(f"{OWN}declared", slots=1)  # no job names it, and no operator can remove it


class Limits:
    """The rules of limits. A job's limit uses the rule with its name, otherwise the rule with the part before its
    colon."""

    def __init__(self, storage: Callable[[], Awaitable[Storage]], names: Names, moved: Moved) -> None:
        self._storage, self.names, self._moved = storage, names, moved
        self._declared: dict[str, Limit] = {}

    def declare(self, *limits: Limit) -> None:
        """Declare rules in code. Workers store them when they start. A rule that an operator has set wins over them.

        Raises BadOption for an invalid rule.
        """
        for rule in limits:
            check(rule)
            self._declared[rule.name] = rule

    def forget(self, name: str) -> None:
        """Remove the declaration of this name from this app. A rule that a worker has stored already stays there."""
        self._declared.pop(name, None)

    async def set(self, *limits: Limit) -> None:
        """Add or replace rules; a rule without slots, rate and max_waiting removes the stored one. Applies to every
        later claim and enqueue.

        A paused limit stays paused, and has the new rule when it is resumed. Raises BadOption for an invalid rule.
        """
        for rule in limits:
            check(rule)
        for rule in limits:
            await (self.names.no_rule if rule.empty else self.names.new_rule)(rule.name)
        await (await self._storage()).set_limits(limits)

    async def pause(self, name: str) -> None:
        """Start no job that names this limit until it is resumed. Its rule is kept. Nothing need use the name yet."""
        await self.names.unused_limit(name_of(name, "limit name"))
        await (await self._storage()).set_limits([Pause(name)])

    async def resume(self, name: str) -> None:
        """Resume a paused limit with its current rule. A rule of 0 slots is removed.

        A hold that a job asked for (`Defer(limit=)`) continues.
        """
        await self.names.not_paused("limit", name_of(name, "limit name"))
        await (await self._storage()).set_limits([Resume(name)])

    async def hold(self, name: str, until: float, held: bool) -> None:
        """Hold a limit until this time, or end a hold that lasts no longer than this time."""
        change = Pause(name, "held", until) if held else Resume(name, "held", until)
        await (await self._storage()).set_limits([change])

    async def list(self, use: bool = True) -> Sequence[LimitUse]:
        """Each rule, and each partition in use, with its used slots, blocked jobs and pauses.

        A paused limit has 0 slots. `use=False` counts nothing, so that the time does not depend on the number of jobs.
        """
        uses = await (await self._storage()).limits(use)
        await self._moved.looked("app.limits.list")
        return [use for use in uses if not use.key.startswith(OWN)]

    async def store(self) -> None:
        """Store the declared rules, and a rule whose absence shows that the storage was emptied.

        If they are stored already, this costs one read. Raises StorageError.
        """
        rules = [Declare(rule) for rule in (*self._declared.values(), STORED)]
        await (await self._storage()).set_limits(rules)

    async def is_stored(self) -> bool:
        """Whether the storage has that rule, and so the declared ones. Reads only the rules."""
        return any(use.key == STORED.name for use in await (await self._storage()).limits(use=False))

    @property
    def declarations(self) -> Mapping[str, Limit]:
        """The rules that code declares, by name."""
        return self._declared


def check(rule: Limit) -> None:
    """Raise BadOption for an invalid rule; the error names the field."""
    found: object = rule
    if not isinstance(found, Limit):
        raise BadOption("limits", f"expected Limit(...), found {found!r}")
    name_of(rule.name, "limit name")
    option = f"limit {rule.name!r}"
    if rule.name.startswith(OWN):
        raise BadOption(option, f"names that begin with {OWN!r} are Treadle's own; choose another name")
    bounds: tuple[tuple[str, Any, int], ...] = (
        ("slots", rule.slots, 0),
        ("rate", rule.rate, 1),
        ("burst", rule.burst, 1),
    )
    for name, value, least in bounds:
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= defaults.MAX_COUNT:
            raise BadOption(option, f"{name}: expected {least} to {defaults.MAX_COUNT:,}, found {value!r}")
    per = cast("Any", rule.per)
    if isinstance(per, bool) or not isinstance(per, int | float) or not 0 < per <= LONGEST:
        raise BadOption(option, f"per: expected more than 0 s and at most 31 days, found {per!r}")
    for name, value, allowed in (("how", rule.how, ("window", "bucket")), ("hold", rule.hold, ("running", "ended"))):
        if value not in allowed:
            raise BadOption(option, f"{name}: expected {allowed[0]!r} or {allowed[1]!r}, found {value!r}")
    if rule.burst is not None and rule.how == "window":
        raise BadOption(option, 'burst needs how="bucket"')
    if rule.max_waiting is not None or rule.when_full != "refuse":
        check_bound(rule)


def _read(text: str) -> Held:
    """Decode and check the limit and the seconds of a hold."""
    held = json.decode(text, type=Held)
    name_of(held.limit, "limit")
    seconds(held.seconds, "seconds")
    return held


class LimitHolds:
    """Pauses a limit for a time when a job asks for it: `raise Defer(30, limit="smtp")`. A newer hold replaces the
    older one of a limit.

    A hold is a job that is stored with the deferral. Its first run pauses the limit; it becomes due again when the time
    is over by the storage's clock, and then resumes the limit. No version fences a change of a limit, so a stalled run
    can pause the limit after another run has resumed it. Maintenance ends such a pause (`treadle.worker.maintenance`).
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.task = SystemTask(HOLD, self.run)

    async def run(self, record: Record, now: float) -> Outcome:
        """Pause or resume the limit, depending on `now`, the storage's time. Both are idempotent."""
        try:
            held = _read(record.job.payload)
        except UNREADABLE as error:
            text = f"the payload of this row is no request to let a limit rest: {error}"
            return Outcome(
                id=record.job.id, version=record.version, state=State.FAILED, attempt=1, reason=ABORTED, error=text
            )
        until = record.created_at + held.seconds
        remaining = until - now
        await self._limits.hold(held.limit, until, remaining > 0)
        if remaining > 0:
            return Outcome(id=record.job.id, version=record.version, state=State.READY, delay=remaining)
        return Outcome(id=record.job.id, version=record.version, state=State.SUCCEEDED, result="null")


PARTS: Final = ("slots", "rate", "how", "burst", "hold", "max_waiting", "when_full")
OF_RATE: Final = ("how", "burst")  # fields that mean nothing without a rate


def dropped(uses: Iterable[LimitUse], rule: Limit, given: Collection[str] = ()) -> str | None:
    """The parts of the rule that applied to this name before, and that the new rule has not, for the person who sets
    it: a rule is replaced whole. None if there are none.

    uses   the limits before the change
    given  names of parts that the caller chose, even if they are the default
    """
    rules = {use.key: use.unpaused for use in uses}
    before = rule_for(rules, rule.name)
    if before is None or rule.empty:
        return None
    plain, old, new = asdict(Limit("")), asdict(before), asdict(rule)
    lost: dict[str, Any] = {
        part: old[part]
        for part in PARTS
        if part not in given and old[part] != new[part] == plain[part] and not (part in OF_RATE and rule.rate is None)
    }
    if before.rate is None:
        lost = {part: value for part, value in lost.items() if part not in OF_RATE}
    if rule.max_waiting is None and "max_waiting" not in lost:
        lost.pop("when_full", None)
    if not lost:
        return None
    kept = {part: old[part] for part in lost}
    if "rate" in lost:
        kept |= {"per": before.per} | {part: old[part] for part in OF_RATE}
    source = "it had" if before.name == rule.name else f"it had from the rule {before.name!r}"
    named = ", ".join(f"{part.replace('_', '-')} {value}" for part, value in lost.items())
    return f"a rule is replaced whole: {source} {named} before; {set_limit(replace(rule, **kept))} keeps this"
