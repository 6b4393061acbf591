"""The first page of `treadle top`: figures, notices, and the panels of queues, failures, limits and workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Static

from treadle.contrib.top import rows, scopes, summary
from treadle.contrib.top.grid import padded
from treadle.contrib.top.listing import STYLES, Listing
from treadle.contrib.top.page import Page
from treadle.contrib.top.summary import TILE, Tile

PANELS: Final = ("queues", "failures", "limits", "workers")
EMPTY: Final = {
    "queues": "No queue has jobs or workers yet. `treadle enqueue TASK` sends a job.",
    "failures": "No failed jobs.",
    "limits": "No limits. `treadle limits set NAME --slots N` adds one.",
    "workers": "No worker has sent a heartbeat. `treadle worker MODULE:APP` starts one.",
}
SCOPES: Final[Mapping[str, Callable[[Any], scopes.Scope]]] = {  # the jobs behind a row of each panel
    "queues": scopes.of_queue,
    "failures": scopes.of_group,
    "limits": lambda use: scopes.of_limit(use.key),
    "workers": scopes.of_worker,
}


class Dashboard(Page):
    """Everything at a glance. On a small screen one panel at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"panel('{name}')", name, show=False) for number, name in enumerate(PANELS, 1)),
        Binding("tab", "next_panel(1)", "Next panel", show=False),
        Binding("shift+tab", "next_panel(-1)", "Previous panel", show=False),
        Binding("p", "pause", "Pause or resume"),
        Binding("b", "bound", "Bound of the queue"),
        Binding("r", "retry", "Retry"),
    ]
    hints = (("enter", "jobs"), ("p", "pause"), ("r", "retry"), ("b", "bound"), ("1-4", "panels"))

    def __init__(self) -> None:
        super().__init__()
        self._panel = "queues"

    def compose(self) -> ComposeResult:
        yield from self.head()
        yield Static(id="tiles")
        yield Static(id="notices")
        yield Static(id="tabs")
        with Vertical(id="panels"):
            yield Listing(rows.QUEUES, "1 Queues", EMPTY["queues"], id="queues")
            with Horizontal(id="lower"):
                yield Listing(rows.FAILURES, "2 Failures", EMPTY["failures"], id="failures")
                with Vertical(id="side"):
                    yield Listing(rows.LIMITS, "3 Limits", EMPTY["limits"], id="limits")
                    yield Listing(rows.WORKERS, "4 Workers", EMPTY["workers"], id="workers")
        yield from self.foot()

    def on_mount(self) -> None:
        self.focus_listing()

    def panel(self, name: str) -> Listing:
        return self.query_one(f"#{name}", Listing)

    # --- showing

    def show(self) -> None:
        super().show()
        snapshot = self.reader.snapshot
        self._arrange()
        if snapshot is None:
            sentence = "The storage has not answered yet." if self.reader.outage else "Reading the storage ..."
            for name in PANELS:
                self.panel(name).show((), sentence)
            return
        overview = snapshot.overview
        self.panel("queues").show(rows.queues(overview), EMPTY["queues"])
        self.panel("failures").show(rows.failures(snapshot.failures, overview.at), EMPTY["failures"])
        self.panel("limits").show(rows.limits(overview), EMPTY["limits"])
        self.panel("workers").show(rows.workers(overview), EMPTY["workers"])
        self._show_figures()
        self._arrange()

    def _show_figures(self) -> None:
        snapshot = self.reader.snapshot
        assert snapshot is not None
        width, height = self.app.size.width, self.app.size.height
        field = self.query_one("#tiles", Static)
        if self.is_small:
            field.update(Content.styled(summary.strip(snapshot), "$foreground"))
        else:
            field.update(_drawn(summary.tiles(snapshot), width - 4))
        most = 0 if height < 16 else 1 if height < HIGH_ENOUGH else 3
        shown = summary.notices(snapshot, most)
        notices = self.query_one("#notices", Static)
        notices.display = bool(shown)
        notices.update(Content("\n").join(Content.styled(text, STYLES[tone]) for text, tone in shown))

    def _arrange(self) -> None:
        """Show the panels that have room, and the names of the others."""
        lower, side = self.query_one("#lower"), self.query_one("#side")
        for name in PANELS:
            self.panel(name).display = not self.is_small or name == self._panel
        lower.display = not self.is_small or self._panel != "queues"
        side.display = not self.is_small or self._panel in ("limits", "workers")
        room = self.query_one("#panels").content_size.height
        wanted = len(self.panel("queues").rows) + 3
        self.panel("queues").styles.height = "1fr" if self.is_small else max(5, min(wanted, room // 2))
        names: list[Content] = []
        for number, name in enumerate(PANELS, 1):
            style = "bold $text-accent underline" if name == self._panel else "$text-muted"
            names.append(Content.styled(f"{number} {name.capitalize()}", style))
        self.query_one("#tabs", Static).update(Content(" ").join(names))

    # --- panels

    def focus_listing(self) -> None:
        self.panel(self._panel).focus()

    def action_panel(self, name: str) -> None:
        self._panel = name
        self._arrange()
        self.focus_listing()

    def action_next_panel(self, by: int) -> None:
        self.action_panel(PANELS[(PANELS.index(self._panel) + by) % len(PANELS)])

    def on_descendant_focus(self) -> None:
        focused = self.focused
        if isinstance(focused, Listing) and focused.id in PANELS:
            self._panel = focused.id

    def on_listing_chosen(self, event: Listing.Chosen) -> None:
        self.top.open_jobs(SCOPES[event.listing.id or ""](event.row.shows))

    # --- acts

    def _chosen(self, panel: str) -> Any:
        """The queue, group or limit in the chosen row of this panel; None if it is empty, or another one is in use."""
        row = self.panel(panel).current
        return row.shows if row is not None and self._panel == panel else None

    def action_pause(self) -> None:
        if (queue := self._chosen("queues")) is not None:
            self.top.ask(self.top.acts.pause(queue))
        elif (use := self._chosen("limits")) is not None:
            self.top.ask(self.top.acts.pause_limit(use))
        else:
            self.say("p pauses or resumes a queue or a limit: choose one in the panel of queues (1) or limits (3)")

    def action_bound(self) -> None:
        if (queue := self._chosen("queues")) is None:
            self.say("b sets how many jobs of a queue may wait: choose one in the panel of queues (1)")
        else:
            self.top.ask_bound(queue)

    def action_retry(self) -> None:
        if (group := self._chosen("failures")) is None:
            self.say("r retries a group of failed jobs: choose one in the panel of failures (2)")
        else:
            self.top.ask(self.top.acts.retry_group(group))


HIGH_ENOUGH: Final = 30  # a screen with so many lines shows three notices


def _drawn(tiles: Sequence[Tile], width: int) -> Content:
    """The tiles side by side, as many as fit: labels, values and details, one line each."""
    shown = tiles[: max(1, width // TILE)]
    size = width // len(shown)
    lines = [
        Content.assemble(*((padded(tile.label, size), "$text-muted") for tile in shown)),
        Content.assemble(*((padded(tile.value, size), f"bold {STYLES[tile.tone].split()[-1]}") for tile in shown)),
        Content.assemble(*((padded(tile.detail, size - 1) + " ", "$text-muted") for tile in shown)),
    ]
    return Content("\n").join(lines)
