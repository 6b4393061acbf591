"""The questions before an act, and the page with all keys."""

from __future__ import annotations

from typing import ClassVar, Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from treadle.contrib.top.acts import Act
from treadle.contrib.top.bounds import WHEN_FULL, number
from treadle.contrib.top.style import is_small
from treadle.core.limit_model import WhenFull
from treadle.core.redaction import in_line
from treadle.server.overview import QueueOverview

KEYS: Final = (
    ("Anywhere", (("?", "these keys"), ("/", "show only rows that contain a text"), ("q", "quit, or back"))),
    (
        "Panels",
        (
            ("1 2 3 4", "queues, failures, limits, workers"),
            ("tab", "the next panel"),
            ("j k, arrows", "move"),
            ("g G", "the first row, the last row"),
            ("enter", "the jobs behind a row"),
            ("p", "pause or resume the queue or the limit"),
            ("b", "set how many jobs of the queue may wait"),
            ("r", "retry the failed jobs of the group"),
            ("space", "stop looking, or look again"),
            ("t", "dark or light"),
        ),
    ),
    (
        "Jobs",
        (
            ("left right", "jobs in another state"),
            ("enter", "why it does not run, and its last error"),
            ("r", "retry a failed job"),
            ("c", "cancel a job and its children"),
            ("n", "run a scheduled job now"),
            ("esc", "back"),
        ),
    ),
)


class Ask(ModalScreen[bool]):
    """Asks before an act. The button that changes nothing has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,q", "answer(False)", "No"),
        Binding("left,right", "app.focus_next", show=False),
    ]

    def __init__(self, act: Act) -> None:
        super().__init__()
        self._act = act

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Content.styled(self._act.question, "bold $foreground"), id="question")
            yield VerticalScroll(Static(Content(self._act.detail)), can_focus=False)
            with Horizontal(id="answers"):
                yield Button(f"{self._act.yes} (y)", id="yes", compact=True)
                yield Button("Back (n)", id="no", compact=True)

    def on_mount(self) -> None:
        self.query_one("#no").focus()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(is_small(event.size.width, event.size.height), "-small")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_answer(self, answer: bool) -> None:
        self.dismiss(answer)


class EnterBound(ModalScreen[tuple[int | None, WhenFull] | None]):
    """Asks how many jobs of a queue may wait, and what happens when it is full. None: the person left it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "leave", "Back"),
        Binding("up", "other(-1)", show=False),
        Binding("down", "other(1)", show=False),
    ]

    def __init__(self, queue: QueueOverview) -> None:
        super().__init__()
        self._queue = queue
        self._when_full: WhenFull = queue.when_full or "refuse"

    def compose(self) -> ComposeResult:
        most = self._queue.max_waiting
        with Vertical(id="dialog"):
            yield Static(
                Content.styled(f"Bound of queue {in_line(self._queue.name)}", "bold $foreground"), id="question"
            )
            yield Static("How many jobs may wait to be started? Nothing: any number.")
            yield Input("" if most is None else str(most), id="most", max_length=20)
            yield Static(id="when-full")
            yield Static(id="wrong")
            yield Static(Content.styled("enter continues, up and down choose, esc leaves", "$text-muted"))

    def on_mount(self) -> None:
        self.query_one("#most").focus()
        self._show()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(is_small(event.size.width, event.size.height), "-small")

    def _show(self, wrong: str = "") -> None:
        self.query_one("#when-full", Static).update(Content(f"When full, {WHEN_FULL[self._when_full]}."))
        self.query_one("#wrong", Static).update(Content.styled(wrong, "$text-error"))

    def action_other(self, by: int) -> None:
        choices = list(WHEN_FULL)
        self._when_full = choices[(choices.index(self._when_full) + by) % len(choices)]
        self._show()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.dismiss((number(event.value), self._when_full))
        except ValueError as error:
            self._show(str(error))

    def action_leave(self) -> None:
        self.dismiss(None)


class Help(ModalScreen[None]):
    """All keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,enter", "dismiss", "Back")]

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(self._text())

    def on_mount(self) -> None:
        self.query_one("#help").focus()

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(is_small(event.size.width, event.size.height), "-small")

    @staticmethod
    def _text() -> Content:
        lines: list[Content] = []
        for title, keys in KEYS:
            lines.append(Content.styled(title, "bold $text-accent"))
            lines += [
                Content.assemble((f"  {key:<12} ", "bold $foreground"), (what, "$foreground")) for key, what in keys
            ]
            lines.append(Content(""))
        lines.append(Content.styled("Each act asks before it acts.", "$text-muted"))
        return Content("\n").join(lines)
