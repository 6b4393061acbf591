"""`treadle jobs follow`: prints what the runs of a job write to a stream, while they write it."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import click
import msgspec

from treadle.admin import ShownStream
from treadle.cli.filters import hinting, stored_ids
from treadle.cli.output import FAILED, OK, USAGE, Stop, data, note, piece, plural
from treadle.cli.target import Target, targeted
from treadle.core.clock import moment_text
from treadle.core.model import Record
from treadle.core.redaction import in_json
from treadle.policy.run_log import LOG

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.workflow.streams import Entry


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
        chosen = await _stream_of(app, row, name)
        printer = Printer(chosen, ShownStream(row, None if reveal else app._core.redactor.redaction), json_)
        try:
            async with aclosing(app.jobs.follow_pages(stored, chosen, start)) as pages:
                async for entries in pages:
                    for entry in entries:
                        printer.show(entry)
        finally:
            printer.end_line()
        if not json_:
            note(f"job {stored} {(await app.jobs.get(stored)).state}")

    try:
        target.run(act)
    except KeyboardInterrupt:
        raise Stop(OK) from None


async def _stream_of(app: App, row: Record, name: str | None) -> str:
    """The stream to follow: the given one, else the only one."""
    names = await app.jobs.streams(row.id)
    if name is None and len(names) > 1:
        raise Stop(USAGE, f"job {row.id} has several streams, name one of them: {', '.join(names)}")
    chosen = name if name is not None else names[0] if names else LOG
    if row.state.final and chosen not in names:
        others = f"; it has {', '.join(names)}" if names else ""
        raise Stop(FAILED, f"job {row.id} has ended without a stream {chosen!r}{others}")
    return chosen


class Printer:
    """Prints the entries of one stream."""

    def __init__(self, name: str, shown: ShownStream, json_: bool) -> None:
        self._is_log, self._shown, self._json = name == LOG, shown, json_
        self._printed = list[tuple[int, str]]()  # the offsets and steps of the chunks that are not void
        self._in_line = False

    def show(self, entry: Entry) -> None:
        """Print a chunk, or the note of a reset."""
        if entry.to is not None:
            self._reset(entry, entry.to)
            return
        self._printed.append((entry.offset, entry.step))
        raw = self._shown.value(entry.text)
        if self._json:
            self._line({"offset": entry.offset, "step": entry.step, "value": raw})
            return
        value = msgspec.json.decode(raw)
        if isinstance(value, str):
            piece(value)
            self._in_line = not value.endswith("\n") if value else self._in_line
        elif self._is_log and isinstance(value, dict) and value.keys() >= {"time", "level", "logger", "text"}:
            data(f"{moment_text(value['time'])} {value['level']} {value['logger']}: {value['text']}")
        else:
            self.end_line()
            self._line(value)

    def end_line(self) -> None:
        """End a line that is not complete."""
        if self._in_line:
            piece("\n")
            self._in_line = False

    def _reset(self, entry: Entry, to: int) -> None:
        if self._json:
            self._line({"offset": entry.offset, "step": entry.step, "to": to})
            return
        kept = [one for one in self._printed if one[0] < to or one[1] != entry.step]
        void, self._printed = len(self._printed) - len(kept), kept
        self.end_line()
        runs = f"step {entry.step!r} runs" if entry.step else "the job runs"
        note(f"[{runs} again: {plural(void, 'chunk')} above {'is' if void == 1 else 'are'} void]")

    @staticmethod
    def _line(value: object) -> None:
        data(in_json(msgspec.json.encode(value).decode()))
