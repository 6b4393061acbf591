"""The parts that all pages of `treadle top` have: the state of the connection, filter, last message and keys."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, cast

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Input, Static

from treadle.contrib.top.acts import Act, Acts
from treadle.contrib.top.grid import Tone, padded
from treadle.contrib.top.listing import STYLES, Listing
from treadle.contrib.top.reader import Reader
from treadle.contrib.top.scopes import Scope
from treadle.contrib.top.style import is_small
from treadle.contrib.top.summary import alert, link
from treadle.core.clock import wall
from treadle.core.redaction import in_line

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.server.overview import QueueOverview

GAP: Final = "   "


class Host(Protocol):
    """The application that shows the pages."""

    treadle: App
    reader: Reader
    acts: Acts
    url: str
    is_frozen: bool

    def open_jobs(self, scope: Scope) -> None: ...
    def open_job(self, id: str) -> None: ...
    def ask(self, act: Act | Awaitable[Act]) -> None: ...
    def ask_bound(self, queue: QueueOverview) -> None: ...
    def look_now(self) -> None: ...


class Page(Screen[None]):
    """One page. Subclasses yield their part of the screen between the head and the foot."""

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "Filter"),
        Binding("escape", "leave", "Back"),
        Binding("question_mark", "app.help", "Help"),
        Binding("space", "app.freeze", "Stop looking"),
        Binding("t", "app.theme", "Dark or light"),
        Binding("q", "leave_or_quit", "Quit"),
    ]
    hints: ClassVar[Sequence[tuple[str, str]]] = ()
    _is_ready = False

    @property
    def top(self) -> Host:
        return cast("Host", self.app)

    @property
    def reader(self) -> Reader:
        return self.top.reader

    def head(self) -> ComposeResult:
        yield Static(id="link")
        yield Static(id="alert")

    def foot(self) -> ComposeResult:
        yield Input(placeholder="show only rows that contain ...", id="filter")
        yield Static(id="said")
        yield Static(id="keys")

    # --- what a page does

    async def look(self) -> None:
        """Read what only this page shows. Called within each look."""

    def show(self) -> None:
        """Show the last snapshot. Called after each look, and when the size has changed."""
        self.show_link()
        self._show_keys()

    @property
    def listings(self) -> Sequence[Listing]:
        return list(self.query(Listing))

    @property
    def title_text(self) -> str:
        return f"treadle top  {self.top.url}"

    def on_mount(self) -> None:
        self._is_ready = True
        self._choose_layout(self.app.size.width, self.app.size.height)
        self.show()

    @property
    def is_ready(self) -> bool:
        """Whether the widgets of the page exist, so that it can show something.

        Textual removes them before it unmounts the page, and sets `display` to false first. A look or a timer may
        still end meanwhile; its result is dropped.
        """
        return self._is_ready and self.display

    def on_resize(self, event: events.Resize) -> None:
        self._choose_layout(event.size.width, event.size.height)
        if self.is_ready:
            self.show()

    def _choose_layout(self, width: int, height: int) -> None:
        self.set_class(is_small(width, height), "-small")

    @property
    def is_small(self) -> bool:
        return self.has_class("-small")

    # --- head and foot

    def show_link(self) -> None:
        """Show the state of the connection. Called every second."""
        reader, width = self.reader, max(10, self.app.size.width - 2)
        state, tone = link(reader.outage, reader.age, reader.pause, wall())
        if self.top.is_frozen and reader.outage is None:
            state, tone = "‖ stopped (space looks again)", "warn"
        title = padded(in_line(self.title_text), max(0, width - cell_len(state) - 2)) if width > cell_len(state) else ""
        parts = [(title, "bold $foreground"), ("  ", ""), (state, STYLES[tone])]
        self.query_one("#link", Static).update(Content.assemble(*parts))
        banner = self.query_one("#alert", Static)
        banner.display = reader.outage is not None
        if reader.outage is not None:
            banner.update(Content(alert(reader.outage, reader.snapshot is not None, wall())))

    def say(self, text: str, tone: Tone = "") -> None:
        """Show a message until the next key; "" hides it."""
        if not self.is_ready:
            return
        message = self.query_one("#said", Static)
        message.display = bool(text)
        message.update(Content.styled(in_line(text), STYLES[tone]))

    def _show_keys(self) -> None:
        """The keys that fit: `?` and `q` always, the others by their order."""
        always, width = (("?", "help"), ("q", "quit")), self.app.size.width - 2
        room = width - sum(_size(hint) for hint in always)
        shown = []
        for hint in (*self.hints, ("/", "filter")):
            if _size(hint) <= room:
                shown.append(hint)
                room -= _size(hint)
        parts = [
            Content.assemble((key, "bold $text-accent"), " ", (what, "$text-muted")) for key, what in (*shown, *always)
        ]
        self.query_one("#keys", Static).update(Content(GAP).join(parts))

    # --- the filter

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        for listing in self.listings:
            listing.narrow(event.value.strip())

    def on_input_submitted(self) -> None:
        field = self.query_one("#filter", Input)
        field.display = bool(field.value.strip())
        self.focus_listing()

    def action_leave(self) -> None:
        """Clear the filter; without one, go back to the page before."""
        field = self.query_one("#filter", Input)
        if field.display:
            field.value, field.display = "", False
            self.focus_listing()
        elif len(self.app.screen_stack) > 2:
            self.dismiss()

    async def action_leave_or_quit(self) -> None:
        if len(self.app.screen_stack) > 2:
            self.dismiss()
        else:
            await self.app.action_quit()

    def focus_listing(self) -> None:
        """Focus the list of this page."""
        if listings := self.listings:
            listings[0].focus()

    def on_key(self) -> None:
        self.say("")


def _size(hint: tuple[str, str]) -> int:
    return len(hint[0]) + 1 + len(hint[1]) + len(GAP)
