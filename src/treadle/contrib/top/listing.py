"""The list in a panel: rows with a cursor.

The cursor stays on its row when a refresh moves the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.markup import escape
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from treadle.contrib.top.grid import GAP, Column, Row, Tone, fit, padded

STYLES: Final[dict[Tone, str]] = {
    "": "$foreground",
    "dim": "$text-muted",
    "strong": "bold $foreground",
    "good": "$text-success",
    "busy": "$text-accent",
    "warn": "$text-warning",
    "bad": "bold $text-error",
}
CURSOR: Final = "▸ "


class Listing(Widget, can_focus=True):
    """Rows of text under a header. Posts `Chosen` for Enter or a click on the row of the cursor."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "move(-1_000_000)", "First", show=False),
        Binding("end,G", "move(1_000_000)", "Last", show=False),
        Binding("enter", "choose", "Open", show=False),
    ]

    class Chosen(Message):
        """The row of the cursor was chosen."""

        def __init__(self, listing: Listing, row: Row) -> None:
            super().__init__()
            self.listing, self.row = listing, row

    def __init__(self, columns: Sequence[Column], title: str, empty: str, *, id: str) -> None:
        super().__init__(id=id)
        self.columns, self.title, self._empty = columns, title, empty
        self._all: Sequence[Row] = ()
        self._rows: Sequence[Row] = ()
        self._cursor, self._top, self._filter = 0, 0, ""
        self.border_title = title

    # --- rows

    @property
    def current(self) -> Row | None:
        """The row of the cursor; None: there are no rows."""
        return self._rows[self._cursor] if self._rows else None

    @property
    def rows(self) -> Sequence[Row]:
        """The rows that the filter leaves."""
        return self._rows

    def show(self, rows: Sequence[Row], empty: str | None = None) -> None:
        """Show these rows. `empty`: a sentence for the case that there are none."""
        self._all, self._empty = rows, self._empty if empty is None else empty
        self._choose_rows()

    def narrow(self, text: str) -> None:
        """Show only rows that contain this text; "" shows all."""
        self._filter = text
        self._choose_rows()

    def _choose_rows(self) -> None:
        before = self.current
        self._rows = [row for row in self._all if not self._filter or row.matches(self._filter)]
        index = next(
            (number for number, row in enumerate(self._rows) if before is not None and row.key == before.key), None
        )
        self._cursor = min(self._cursor, max(0, len(self._rows) - 1)) if index is None else index
        self._follow()

    # --- moving

    def action_move(self, by: int) -> None:
        self._cursor = min(max(0, self._cursor + by), max(0, len(self._rows) - 1))
        self._follow()

    def action_page(self, by: int) -> None:
        self.action_move(by * max(1, self._room))

    def action_choose(self) -> None:
        if (row := self.current) is not None:
            self.post_message(self.Chosen(self, row))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to a row; choose it if the cursor is there already."""
        offset = event.get_content_offset(self)
        index = self._top + offset.y - 1 if offset is not None and offset.y > 0 else -1
        if not 0 <= index < len(self._rows):
            return
        if index == self._cursor:
            self.action_choose()
        self._cursor = index
        self._follow()

    def on_mouse_scroll_down(self) -> None:
        self.action_move(1)

    def on_mouse_scroll_up(self) -> None:
        self.action_move(-1)

    def on_resize(self) -> None:
        self._follow()

    @property
    def _room(self) -> int:
        """Lines for rows, below the header."""
        return max(0, self.content_size.height - 1)

    def _follow(self) -> None:
        """Scroll so that the cursor is visible, and say where it is."""
        room = self._room
        if room:
            self._top = min(self._top, self._cursor, max(0, len(self._rows) - room))
            self._top = max(self._top, self._cursor - room + 1, 0)
        share = f"{len(self._rows):,} of {len(self._all):,} · /{self._filter}" if self._filter else ""
        place = f"{self._cursor + 1:,} of {len(self._rows):,}" if len(self._rows) > room > 0 else ""
        self.border_subtitle = escape(" · ".join(part for part in (share, place) if part))
        self.refresh()

    # --- drawing

    def render(self) -> Content:
        width, room = self.content_size.width, self._room
        if not self._rows:
            nothing = f"nothing contains {self._filter!r}" if self._filter and self._all else self._empty
            return Content.styled(nothing, "$text-muted")
        kept = fit(self.columns, self._rows, max(1, width - len(CURSOR)))
        lines = [self._header(kept, width)]
        last = min(len(self._rows), self._top + max(1, room))
        lines += [self._line(index, kept, width) for index in range(self._top, last)]
        return Content("\n").join(lines)

    def _header(self, kept: Sequence[tuple[int, int]], width: int) -> Content:
        names = [padded(self.columns[index].name.upper(), wide, self.columns[index].right) for index, wide in kept]
        return Content.styled(padded(" " * len(CURSOR) + (" " * GAP).join(names), width), "$text-muted")

    def _line(self, at: int, kept: Sequence[tuple[int, int]], width: int) -> Content:
        row, is_cursor = self._rows[at], at == self._cursor and self.has_focus
        parts: list[Content] = [Content.styled(CURSOR if is_cursor else " " * len(CURSOR), "bold $text-accent")]
        used = len(CURSOR)
        for number, (index, wide) in enumerate(kept):
            gap = " " * GAP if number else ""
            one = row.cells[index]
            text = padded(one.text, wide, self.columns[index].right)
            parts.append(Content.assemble(gap, (text, STYLES[one.tone])))
            used += len(gap) + wide
        parts.append(Content(" " * max(0, width - used)))
        line = Content.assemble(*parts)
        return line.stylize_before("on $cursor") if is_cursor else line

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
