"""`treadle jobs follow`: prints what the runs of a job write to a stream, while they write it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from treadle.admin import stored_values
from treadle.cli.filters import hinting, stored_ids
from treadle.cli.job_view import ENCODE
from treadle.cli.output import FAILED, OK, USAGE, Stop, data, note, piece, plural
from treadle.cli.target import Target, targeted
from treadle.core.clock import moment_text
from treadle.core.redaction import in_json

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.core.payload_redaction import Redaction

LOG: Final = "log"


@click.command()
@targeted
@click.argument("id")
@click.argument("name", required=False)
@click.option("--from", "start", type=click.IntRange(0), default=0, help="Offset of the first entry. [default: 0]")
@click.option("--reveal", is_flag=True, help="Show the values whose names look like secrets, too.")
@click.option("--json", "json_", is_flag=True, help="Print one JSON document for each entry, for programs.")
def follow(target: Target, id: str, name: str | None, start: int, reveal: bool, json_: bool) -> None:
    """Print the stream NAME of a job until the job ends, or until Ctrl-C. Texts are printed as they are written, other
    values as JSON, one a line.

    Without NAME it is the only stream of the job; `log` has the log lines of its runs. When a step runs again, a note
    says how many of the printed chunks are void.
    """

    async def act(app: App) -> None:
        [stored] = await stored_ids(app, [id])
        row = await hinting(app, id, app.jobs.get(stored))
        chosen = await _stream_of(app, stored, name, row.state.final)
        redactor = app._core.redactor
        printer = Printer(chosen, json_, None if reveal else redactor.of(row.job.task))
        try:
            async for entry in app.jobs.follow(stored, chosen, start=start):
                printer.show(entry)
        finally:
            printer.end_line()
        if not json_:
            note(f"job {stored} {(await app.jobs.get(stored)).state}")

    try:
        target.run(act)
    except KeyboardInterrupt:
        raise Stop(OK) from None


async def _stream_of(app: App, id: str, name: str | None, has_ended: bool) -> str:
    """The stream to follow: the given one, else the only one."""
    names = await app.jobs.streams(id)
    if name is None and len(names) > 1:
        raise Stop(USAGE, f"job {id} has several streams, name one of them: {', '.join(names)}")
    chosen = name if name is not None else names[0] if names else LOG
    if has_ended and chosen not in names:
        others = f"; it has {', '.join(names)}" if names else ""
        raise Stop(FAILED, f"job {id} has ended without a stream {chosen!r}{others}")
    return chosen


class Printer:
    """Prints the entries of one stream."""

    def __init__(self, name: str, json_: bool, redaction: Redaction | None) -> None:
        self._name, self._json, self._redaction = name, json_, redaction
        self._printed = list[tuple[int, str]]()  # the offsets and steps of the chunks that are not void
        self._in_line = False

    def show(self, entry: Any) -> None:
        """Print a chunk, or the note of a reset."""
        if hasattr(entry, "to"):
            self._reset(entry.offset, entry.to, entry.step)
            return
        self._printed.append((entry.offset, entry.step))
        value = self._shown(entry.value)
        if self._json:
            self._line({"offset": entry.offset, "step": entry.step, "value": value})
        elif isinstance(value, str):
            piece(value)
            self._in_line = not value.endswith("\n") if value else self._in_line
        elif isinstance(value, Mapping) and self._name == LOG and "text" in value:
            data(f"{moment_text(value.get('time', 0.0))} {value.get('level')} {value.get('logger')} {value['text']}")
        else:
            self.end_line()
            self._line(value)

    def end_line(self) -> None:
        """End a line that is not complete."""
        if self._in_line:
            piece("\n")
            self._in_line = False

    def _reset(self, offset: int, to: int, step: str) -> None:
        if self._json:
            self._line({"offset": offset, "step": step, "to": to})
            return
        kept = [one for one in self._printed if one[0] < to or one[1] != step]
        void, self._printed = len(self._printed) - len(kept), kept
        self.end_line()
        who = f"step {step!r}" if step else "the job"
        note(f"[{who} runs again: {plural(void, 'chunk')} that it wrote above {'is' if void == 1 else 'are'} void]")

    def _shown(self, value: Any) -> Any:
        """The value as JSON can carry it, without secrets."""
        carried = stored_values.carried(value, repr(type(value)), ENCODE)
        if self._redaction is not None:
            carried = self._redaction.named(self._name, carried)
        return msgspec.json.decode(carried) if isinstance(carried, msgspec.Raw) else carried

    @staticmethod
    def _line(value: Any) -> None:
        data(in_json(msgspec.json.encode(value).decode()))
