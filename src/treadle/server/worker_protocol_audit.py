"""Records the acts of operators that arrive by the worker protocol in the audit log.

These are changes of limits, schedules and counts, signals, prunes, and outcomes of jobs that no worker has claimed. A
client that has stored an entry of its own about an act names it, and the log names the act then.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from treadle.admin import audit
from treadle.core import defaults, open_entry
from treadle.core.clock import monotonic
from treadle.core.limit_model import Declare, Limit, LimitChange, Pause
from treadle.core.model import LeaseRenewal, NewJob, Outcome, Record, State
from treadle.core.query_model import Query
from treadle.core.redaction import in_line
from treadle.policy.judge import HOLD
from treadle.scheduling import ticker
from treadle.server import system_rows
from treadle.server.auth import rights
from treadle.server.rows_of_jobs import check_signal
from treadle.workflow.approvals import APPROVAL, is_request
from treadle.workflow.locks import LOCK
from treadle.workflow.mailbox import ANSWER
from treadle.workflow.signals import ONCE, SIGNAL
from treadle.workflow.streams import PAGE

if TYPE_CHECKING:
    from treadle.app.core import AppCore

log = logging.getLogger("treadle.audit")

ROOM: Final = 400  # characters of the details of one entry; an act with more has several entries
CLAIMS: Final = 50_000  # claims that this process remembers, so that their outcomes need not be looked up
LASTS: Final = 86_400.0  # s that an open entry stands for acts
PRUNES: Final = 3_600.0  # s in which the prunes of one token have one entry: a leader prunes twice a minute


class ProtocolAct(NamedTuple):
    """One act: its name, what it is about, and details."""

    act: str
    target: str
    details: str = ""


class ProtocolActs:
    """The acts by the worker protocol on one app."""

    def __init__(self, app: AppCore) -> None:
        self._app = app
        self._claims: dict[tuple[str, int], None] = {}
        self._pruned: dict[str, float] = {}

    @asynccontextmanager
    async def recorded(self, call: Any, acts: Sequence[ProtocolAct]) -> AsyncIterator[None]:
        """Record the acts of a call. Raises StorageError if an entry cannot be stored; the block does not run then."""
        by, own = call.by, list[ProtocolAct]()
        id, entry = await self._named(call) if acts else (None, None)
        for act in acts:
            if entry is not None and _covers(entry, act):
                log.info("%s", in_line(f"{by} within the entry {id}: {act.act} {act.target or '-'} {act.details}"))
            else:
                own.append(act)
        async with AsyncExitStack() as stack:
            for act in _together(own):
                record = self._app.audit.record(act.act, act.target, filter=act.details or None, by=by, source="server")
                await stack.enter_async_context(record)
            yield

    async def _named(self, call: Any) -> tuple[str, audit.Act] | tuple[None, None]:
        """The open entry that the call names, if the same token has stored it within a day."""
        id = call.request.headers.get(open_entry.HEADER)
        if id is None or not audit.is_id(id):
            return None, None
        [row] = await self._app.storage.get([id])
        if row is None or row.state.final or not audit.is_entry(row) or not rights.has_begun(call.token, row):
            return None, None
        return (id, audit.read_act(row.job.payload)) if self._app.now() - row.created_at < LASTS else (None, None)

    # --- which calls are acts

    async def of_changes(self, changes: Sequence[LimitChange]) -> list[ProtocolAct]:
        """Changes of limits, except rules that workers declare and that are declared already."""
        stored = await self._app.storage.limits(use=False) if any(isinstance(one, Declare) for one in changes) else ()
        known = {use.key: use.behind or use.rule for use in stored if use.declared}
        return [
            _of_change(change)
            for change in changes
            if not (isinstance(change, Declare) and known.get(change.rule.name) == change.rule)
        ]

    async def of_jobs(self, jobs: Iterable[NewJob]) -> list[ProtocolAct]:
        """Rows of schedules, signals and holds of limits, except schedules that are stored already."""
        acts = []
        for job in jobs:
            if job.task.partition(":")[0] == ticker.TASK:
                if not await self._is_scheduled(job):
                    acts.append(ProtocolAct("schedule.set", _schedule(job)))
            elif job.task == HOLD:
                acts.append(ProtocolAct("limit.hold", system_rows.check_hold_row(job)))
            elif job.id.startswith(SIGNAL):
                acts.append(ProtocolAct("job.signal", check_signal(job)))
        return acts

    async def _is_scheduled(self, job: NewJob) -> bool:
        labels = Query(
            queue=defaults.SYSTEM_QUEUE, state=ticker.UNFINISHED, label=ticker.label(_schedule(job)), limit=10
        )
        rows = (await self._app.storage.find(labels)).records
        return job.key_conflict == "keep" and any(row.job.key == job.key for row in rows)

    async def of_outcomes(self, outcomes: Sequence[Outcome], of_operators: Collection[str]) -> list[ProtocolAct]:
        """Outcomes that only an operator may store, and outcomes of jobs that no worker has claimed. Reads the rows of
        outcomes whose claim this process does not remember."""
        acts, unclaimed = list[ProtocolAct](), list[tuple[Outcome, bool]]()
        for out in outcomes:
            if audit.is_id(out.id) or out.id.startswith((ONCE, LOCK, ANSWER, PAGE)):
                continue
            own = (SIGNAL, APPROVAL)
            if out.id.startswith(own) and out.id not in of_operators:  # a worker releases a message or a request
                continue
            is_own = out.id in of_operators and out.id.startswith((*own, system_rows.SCHEDULE))
            if is_own or (out.id, out.version) not in self._claims:
                unclaimed.append((out, is_own))
            if out.id in of_operators:
                acts += await self.of_jobs(job for job in out.followups if system_rows.is_of_operators(job))
        rows = await self._app.storage.get([out.id for out, _ in unclaimed]) if unclaimed else ()
        for (out, is_own), row in zip(unclaimed, rows, strict=True):
            if row is not None and is_own:
                acts.append(_of_own_row(row, out))
            elif row is not None and row.version == out.version and row.state is not State.RUNNING:
                acts.append(ProtocolAct("job.settle", out.id, f"state={out.state}"))
        return acts

    async def of_renewals(self, renewals: Iterable[LeaseRenewal]) -> list[ProtocolAct]:
        """Changes of schedules with a heartbeat."""
        ids = [one.id for one in renewals if one.checkpoints and system_rows.remembered(one.id, one.checkpoints)]
        rows = await self._app.storage.get(ids) if ids else ()
        return [ProtocolAct("schedule.set", _schedule(row.job)) for row in rows if row is not None]

    def of_prune(self, name: str) -> list[ProtocolAct]:
        """The first prune of a token within an hour."""
        last = self._pruned.get(name)
        if last is not None and monotonic() - last < PRUNES:
            return []
        return [ProtocolAct("rows.prune", "", "and those of the next hour")]

    def pruned(self, name: str) -> None:
        """Remember that a prune of this token was recorded: further ones are not recorded for an hour."""
        if self.of_prune(name):
            self._pruned[name] = monotonic()

    def claimed(self, rows: Iterable[Record]) -> None:
        """Remember claims: the outcomes of claimed jobs are not acts."""
        for row in rows:
            self._claims[row.id, row.version] = None
        while len(self._claims) > CLAIMS:
            del self._claims[next(iter(self._claims))]


def _covers(entry: audit.Act, act: ProtocolAct) -> bool:
    """Whether an entry describes the act: it has the same kind, and the same target or none."""
    kinds = [name.partition(".")[0].replace("queue", "limit").removesuffix("s") for name in (entry.act, act.act)]
    targets = [name.removeprefix("queue:") for name in (entry.target, act.target)]
    return kinds[0] == kinds[1] and targets[0] in ("", targets[1])


def _schedule(job: NewJob) -> str:
    """The name of the schedule that a row stores."""
    return (job.key or "").partition(" ")[2]


def _of_own_row(row: Record, out: Outcome) -> ProtocolAct:
    """The outcome of a signal, a request for approval or a schedule."""
    if is_request(row.id):
        return ProtocolAct("approval.decide", row.job.parent or row.id, out.result or "")
    if row.id.startswith(SIGNAL):
        return ProtocolAct("job.signal", row.job.parent or row.id, f"state={out.state}")
    paused = dict(out.checkpoints).get("paused")
    verb = "delete" if out.state.final else "set" if paused is None else "pause" if paused else "resume"
    return ProtocolAct(f"schedule.{verb}", _schedule(row.job))


def _of_change(change: LimitChange) -> ProtocolAct:
    if isinstance(change, Declare):
        return ProtocolAct("limit.declare", change.rule.name, _details(change.rule))
    if isinstance(change, Limit):
        return ProtocolAct("limit.delete" if change.empty else "limit.set", change.name, _details(change))
    verb = "pause" if isinstance(change, Pause) else "resume"
    kind, _, queue = change.name.partition(":")
    what, name = ("queue", queue) if kind == "queue" and queue not in ("", "*") else ("limit", change.name)
    until = "" if change.until is None else f", until={change.until:.0f}"
    return ProtocolAct(f"{what}.{verb}", name, "" if change.why == "paused" else f"why={change.why}{until}")


def _details(rule: Limit) -> str:
    """The values of a rule that are not the default."""
    fields = [(name, getattr(rule, name)) for name in rule.__struct_fields__[1:]]
    return ", ".join(f"{name}={value}" for name, value in fields if value != getattr(_PLAIN, name))


_PLAIN: Final = Limit("")


def _together(acts: Sequence[ProtocolAct]) -> Iterator[ProtocolAct]:
    """The acts as entries: equal acts share one as far as their details fit."""
    if len(acts) == 1:
        yield acts[0]
        return
    for name in dict.fromkeys(act.act for act in acts):
        text = ""
        for line in (f"{act.target} {act.details}".strip() for act in acts if act.act == name):
            if text and len(text) + len(line) > ROOM:
                yield ProtocolAct(name, "", text)
                text = ""
            text = f"{text}; {line}" if text else line
        yield ProtocolAct(name, "", text)
