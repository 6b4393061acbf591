"""The live screen of `treadle top`: looks at the storage again and again, and asks before each act.

Ctrl-C, q and SIGTERM end it, and the terminal is as it was before.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from textual.app import App as Screens
from textual.binding import Binding, BindingType

from treadle.contrib.top.acts import Act, Acts
from treadle.contrib.top.dashboard import Dashboard
from treadle.contrib.top.dialogs import Ask, EnterBound, Help
from treadle.contrib.top.grid import Tone
from treadle.contrib.top.job_pages import JobPage, JobsPage
from treadle.contrib.top.page import Page
from treadle.contrib.top.reader import Reader
from treadle.contrib.top.scopes import Scope
from treadle.contrib.top.style import CSS, DARK, LIGHT
from treadle.core.errors import TreadleError
from treadle.server.overview import QueueOverview

if TYPE_CHECKING:
    from treadle.app import App

Rest = Callable[[float | None, asyncio.Event], Awaitable[None]]


async def rest(seconds: float | None, wake: asyncio.Event) -> None:
    """Wait for some seconds (None: without end), or until `wake` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await wake.wait()


async def run(app: App, every: float, url: str) -> None:
    """Show the screen until the person quits. Raises the error that ended it, if there was one."""
    screens = TopApp(app, Reader(app, every), url)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError):  # Windows: the keys still work
            loop.add_signal_handler(number, screens.exit)
    await screens.run_async()
    if screens.failure is not None:
        raise screens.failure


class TopApp(Screens[None]):
    """The screens on one app. `rest` is for tests."""

    CSS = CSS
    TITLE = "treadle top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c,ctrl+q", "quit", "Quit", show=False, priority=True)]

    def __init__(self, app: App, reader: Reader, url: str, rest: Rest = rest) -> None:
        super().__init__()
        self.treadle, self.reader, self.url, self._rest = app, reader, url, rest
        self.acts = Acts(app, self.say)
        self.is_frozen = False
        self.failure: Exception | None = None
        self._wake = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self.register_theme(DARK)
        self.register_theme(LIGHT)
        self.theme = DARK.name

    async def on_mount(self) -> None:
        await self.push_screen(Dashboard())
        self._looking = asyncio.create_task(self._looks())
        self.set_interval(1.0, self._tick)

    async def on_unmount(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking
        await self.acts.close()

    # --- looking

    @property
    def page(self) -> Page | None:
        """The page that is shown, also below a dialog."""
        return next((screen for screen in reversed(self.screen_stack) if isinstance(screen, Page)), None)

    async def _looks(self) -> None:
        try:
            while True:
                self._wake.clear()
                page = self.page
                await self.reader.look(None if page is None else page.look)
                if page is not None and page.is_ready:
                    page.show()
                await self._rest(None if self.is_frozen else self.reader.pause, self._wake)
        except Exception as error:
            self._handle_exception(error)

    def _tick(self) -> None:
        if (page := self.page) is not None and page.is_ready:
            page.show_link()

    def look_now(self) -> None:
        """End the pause before the next look."""
        self._wake.set()

    # --- pages

    def open_jobs(self, scope: Scope) -> None:
        self.push_screen(JobsPage(scope), lambda _: self.look_now())
        self.look_now()

    def open_job(self, id: str) -> None:
        self.push_screen(JobPage(id), lambda _: self.look_now())
        self.look_now()

    def action_help(self) -> None:
        self.push_screen(Help())

    def action_freeze(self) -> None:
        self.is_frozen = not self.is_frozen
        self._tick()
        if not self.is_frozen:
            self.look_now()

    def action_theme(self) -> None:
        self.theme = LIGHT.name if self.theme == DARK.name else DARK.name

    # --- acts

    def say(self, text: str, tone: Tone = "") -> None:
        if (page := self.page) is not None:
            page.say(text, tone)

    def ask(self, act: Act | Awaitable[Act]) -> None:
        """Ask, act if the answer is yes, and show the outcome."""
        self.run_worker(self._ask(act))

    def ask_bound(self, queue: QueueOverview) -> None:
        """Ask for the bound of a queue, then continue like `ask`."""
        self.run_worker(self._ask_bound(queue))

    async def _ask_bound(self, queue: QueueOverview) -> None:
        answer = await self.push_screen_wait(EnterBound(queue))
        if answer is not None:
            await self._ask(self.acts.bound(queue, *answer))

    async def _ask(self, act: Act | Awaitable[Act]) -> None:
        try:
            chosen = act if isinstance(act, Act) else await act
            if not await self.push_screen_wait(Ask(chosen)):
                return
            self.say(f"{chosen.yes} ...")
            self.say(f"✓ {await chosen.run()}", "good")
        except (TreadleError, OSError, TimeoutError) as error:
            self.say(f"✕ {error}", "bad")
        self.look_now()

    def _handle_exception(self, error: Exception) -> None:
        """End the screen. The command reports the error in one line; a traceback could show values of jobs."""
        self.failure = error
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        self._close_messages_no_wait()
