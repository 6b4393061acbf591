"""The pages of jobs in `treadle top`: a list by state, and one job with the reason why it does not run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from treadle.admin import JobAttempt
from treadle.cli import job_view
from treadle.cli.output import age, lasts
from treadle.contrib.top.acts import JobVerb
from treadle.contrib.top.listing import Listing
from treadle.contrib.top.page import Page
from treadle.contrib.top.scopes import COLUMNS, Scope, row_of
from treadle.core.errors import Stale, error_line
from treadle.core.model import Record
from treadle.core.redaction import visible

MOST: Final = 200  # jobs of one page
SCANNED: Final = 5_000  # the most rows that one read of a list examines
ACTS: Final = (
    Binding("c", "act('cancel')", "Cancel"),
    Binding("n", "act('run_now')", "Run now"),
    Binding("r", "act('retry')", "Retry"),
)


class JobsPage(Page):
    """The jobs of a scope, one state at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left", "state(-1)", "Previous state", show=False),
        Binding("right", "state(1)", "Next state", show=False),
        *ACTS,
    ]
    hints = (("enter", "why"), ("←→", "state"), ("r", "retry"), ("c", "cancel"), ("n", "run now"), ("esc", "back"))

    def __init__(self, scope: Scope) -> None:
        super().__init__()
        self._scope, self._at = scope, scope.first
        self._rows: Sequence[Record] | None = None
        self._more, self._looked = False, 0

    @property
    def title_text(self) -> str:
        return self._scope.title

    def compose(self) -> ComposeResult:
        yield from self.head()
        yield Static(id="states")
        yield Listing(COLUMNS, "Jobs", "Reading ...", id="jobs")
        yield from self.foot()

    def on_mount(self) -> None:
        self.focus_listing()

    async def look(self) -> None:
        status, rows, unread, cursor = self._scope.statuses[self._at], list[Record](), SCANNED, None
        while True:
            page = await self.top.treadle.jobs.list(
                limit=min(MOST, unread),
                scan=unread,
                cursor=cursor,
                order=self._scope.order(status),
                status=status,
                **self._scope.filters,
            )
            rows += filter(self._scope.keeps, page.records)
            scanned, cursor = page.scanned or len(page.records), page.cursor
            unread -= scanned
            if cursor is None or len(rows) >= MOST or unread <= 0 or not scanned:
                break
        if status == self._scope.statuses[self._at]:  # the person may have gone on while this was read
            self._rows, self._looked = rows[:MOST], SCANNED - unread
            self._more = cursor is not None or len(rows) > MOST

    def show(self) -> None:
        super().show()
        status = self._scope.statuses[self._at]
        parts = [
            Content.styled(name, "bold $text-accent underline" if name == status else "$text-muted")
            for name in self._scope.statuses
        ]
        self.query_one("#states", Static).update(Content("  ").join(parts))
        listing = self.query_one("#jobs", Listing)
        if self._rows is None:
            listing.show((), "Reading ...")
            return
        now = self.top.treadle._core.now()
        listing.border_title = f"{len(self._rows):,}{'+' if self._more else ''} {status}"
        none = f"No {status} jobs."
        if self._more:
            none = f"None of the first {self._looked:,} {status} jobs is one of them; there are more."
        listing.show([row_of(row, now) for row in job_view.redacted(self.top.treadle, self._rows)], none)

    def action_state(self, by: int) -> None:
        self._at = (self._at + by) % len(self._scope.statuses)
        self._rows = None
        self.show()
        self.top.look_now()

    @property
    def _row(self) -> Record | None:
        current = self.query_one("#jobs", Listing).current
        return next((row for row in self._rows or () if current is not None and row.id == current.key), None)

    def on_listing_chosen(self) -> None:
        if (row := self._row) is not None:
            self.top.open_job(row.id)

    def action_act(self, verb: JobVerb) -> None:
        act_on(self, self._row, verb)


class JobPage(Page):
    """One job: why it does not run or how it ended, its facts, attempts and last error."""

    BINDINGS: ClassVar[list[BindingType]] = [*ACTS]
    hints = (("r", "retry"), ("c", "cancel"), ("n", "run now"), ("esc", "back"))

    def __init__(self, id: str) -> None:
        super().__init__()
        self._job_id = id
        self._row: Record | None = None
        self._text = Content("Reading ...")

    @property
    def title_text(self) -> str:
        task = "" if self._row is None else f" {self._row.job.task}"
        return f"job{task} {self._job_id}"

    def compose(self) -> ComposeResult:
        yield from self.head()
        with VerticalScroll(id="job"):
            yield Static(id="facts")
        yield from self.foot()

    def focus_listing(self) -> None:
        self.query_one("#job").focus()

    def on_mount(self) -> None:
        self.focus_listing()

    async def look(self) -> None:
        app = self.top.treadle
        row = await app.jobs.get(self._job_id)
        why, history = (
            await app.jobs.explain(self._job_id),
            await app.jobs.history(self._job_id, hide=app._core.redactor.row),
        )
        now, self._row = app._core.now(), row
        why = app._core.redactor.text(why, row)
        [row] = job_view.redacted(app, [row])
        pairs = [(name, value) for name, value in job_view.shown(app, row, why, now) if name not in ("why", "error")]
        runs = [(f"attempt {attempt.number}", _attempt(attempt, now)) for attempt in history.attempts]
        self._text = _drawn(why, [*pairs, *runs], row.error)

    def show(self) -> None:
        super().show()
        self.query_one("#facts", Static).update(self._text)

    def action_act(self, verb: JobVerb) -> None:
        act_on(self, self._row, verb)


def act_on(page: Page, row: Record | None, verb: JobVerb) -> None:
    """Ask for an act on one job, or say why there is none."""
    if row is None:
        page.say("no job is chosen")
        return
    try:
        act = page.top.acts.job(row, verb)
    except Stale as error:
        page.say(str(error), "warn")
    else:
        page.top.ask(act)


def _attempt(attempt: JobAttempt, now: float) -> str:
    sentence = str(attempt.outcome)
    if attempt.started_at is not None:
        sentence += f" {age(attempt.started_at, now)}"
        if attempt.ended_at is not None:
            sentence += f", took {lasts(attempt.ended_at - attempt.started_at)}"
    because = error_line(attempt.error) or attempt.reason
    return f"{sentence}: {because}" if because else sentence


def _drawn(why: str, pairs: Sequence[tuple[str, object]], error: str | None) -> Content:
    shown = [(name, visible(str(value))) for name, value in pairs if value is not None and value != ""]
    width = max((len(name) for name, _ in shown), default=0)
    lines = [Content.styled(visible(why), "bold $text-accent"), Content("")]
    for name, value in shown:
        first, *more = value.split("\n")
        lines.append(Content.assemble((f"{name:<{width}}  ", "$text-muted"), (first, "$foreground")))
        lines += [Content.styled(" " * (width + 2) + line, "$foreground") for line in more]
    if error:
        lines += [Content(""), Content.styled("last error", "bold $text-error")]
        lines += [Content.styled(line, "$foreground") for line in visible(error).split("\n")]
    return Content("\n").join(lines)
