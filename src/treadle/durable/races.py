"""`current().first`: the first of several waits. The name of the winner is an entry of the history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from treadle.core.errors import BadOption
from treadle.durable.approvals import ApprovalWait
from treadle.durable.checkpoints import WAIT, StepRequest
from treadle.durable.failures import CUT_OFF
from treadle.durable.pending import Pending, first_of
from treadle.durable.step_taker import StepTaker
from treadle.durable.waits import Wait, Waiting, wait_of


class First:
    """The wait for the first of these. If several are over when it looks, the first one named has won."""

    kind = WAIT

    def __init__(self, run: StepTaker, request: StepRequest, parts: Mapping[str, Wait], keep: bool) -> None:
        self._run, self.request, self._parts, self._keep = run, request, parts, keep

    async def look(self) -> Pending | None:
        run, pending = self._run, list[Pending]()
        entry = run.checkpoints.entries.get(self.request.key)
        if entry is not None and entry.has_value:
            winner = self._parts[self._winner]
            if await winner.look() is None:  # else the reopening of the job has forgotten its failure
                self._may_be_cut_off(winner.request)
                return None
        for name, part in self._parts.items():
            waits = await part.look()
            if waits is None:
                name = await self._settled_winner(name)
                part = self._parts[name]
                value = Raw(msgspec.json.encode(name))
                run.checkpoints.keep(self.request, self.request.entry_of(value=value))
                self._may_be_cut_off(part.request)
                for loser, other in self._parts.items():
                    if loser != name:
                        other.lose()
                return None
            pending.append(waits)
        return first_of(pending)

    async def _settled_winner(self, name: str) -> str:
        """The winner, after the requests that lose were withdrawn. A decision that comes before this has won:
        its caller has the answer that it counts."""
        for other, part in self._parts.items() if not self._keep else ():
            is_decided = other != name and isinstance(part, ApprovalWait | First) and not await part.withdraw()
            if is_decided and not isinstance(self._parts[name], ApprovalWait):
                await part.look()
                return other
        return name

    async def withdraw(self) -> bool:
        """Withdraw the requests of this race, which is about to lose one itself. False: one was decided before."""
        parts = [part for part in self._parts.values() if isinstance(part, ApprovalWait | First)]
        return all([await part.withdraw() for part in parts])

    def _may_be_cut_off(self, winner: StepRequest) -> None:
        """If this is cut off, so is the winner."""
        checkpoints = self._run.checkpoints
        if (undo := checkpoints.if_cut_off.pop(winner.key, None)) is not None:

            def cut_off() -> None:
                checkpoints.keep(winner, winner.entry_of(failure=CUT_OFF), is_last=True)
                undo()

            checkpoints.if_cut_off[self.request.key] = cut_off

    @property
    def _winner(self) -> str:
        value = self._run.recorded(self.request).value
        assert isinstance(value, Raw)
        return msgspec.json.decode(value, type=str)

    def value(self) -> tuple[str, Any]:
        for part in self._parts.values():
            self._run.checkpoints.end(part.request)
        name = self._winner
        self._run.checkpoints.if_cut_off.pop(self.request.key, None)
        return name, self._parts[name].value()

    async def conclude(self) -> None:
        await self._parts[self._winner].conclude()
        if not self._keep:
            for name, part in self._parts.items():
                if name != self._winner:
                    await part.drop()

    def lose(self) -> None:
        for part in self._parts.values():
            part.lose()

    async def drop(self) -> None:
        for part in self._parts.values():
            await part.drop()


def parts_of(waits: Mapping[str, object]) -> dict[str, Wait]:
    """The waits that take part. Raises BadOption for anything else, such as a step, which runs here and now."""
    if not waits:
        raise BadOption("first", "expected at least one wait: first(paid=here.wait_for('paid'), late=here.sleep(60))")
    for name, wait in waits.items():
        if not isinstance(wait, Waiting):
            if hasattr(wait, "close"):
                wait.close()
            expected = "expected sleep(), wait_for(), call(), map() or first(), not awaited"
            raise BadOption("first", f"{name}: {expected}; found {type(wait).__name__}")
    return {name: wait_of(wait) for name, wait in waits.items() if isinstance(wait, Waiting)}
