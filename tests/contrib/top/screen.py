"""Shows `treadle top` without a terminal: a storage that can be away, looks that the test starts, and what is seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import pytest
from textual.events import Key
from textual.screen import Screen

from tests.waiting import NotSeen, Signal
from treadle import App, Limit, Retry
from treadle.contrib.top.page import Page
from treadle.contrib.top.reader import Reader
from treadle.contrib.top.screens import TopApp
from treadle.core.model import Presence
from treadle.errors import StorageUnavailable
from treadle.storage.contract import Storage
from treadle.storage.memory import MemoryStorage
from treadle.storage.proxy import StorageProxy
from treadle.testing import drain

T = TypeVar("T")
CHARACTERS = {"slash": "/", "question_mark": "?", "space": " ", "left_square_bracket": "["}


class Place(StorageProxy):
    """A storage that can be away. It notes the names of the calls."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.away = False
        self.calls: list[str] = []

    async def around(self, verb: str, call: Callable[[Storage], Awaitable[T]]) -> T:
        self.calls.append(verb)
        if self.away and verb != "close":
            raise StorageUnavailable("the server refused the connection")
        return await call(self.storage)


class Shown:
    """The screen under test. Nothing waits for time: a key has been handled when the screen has been drawn again."""

    def __init__(self, app: App, place: Place) -> None:
        self.treadle, self.place = app, place
        self.rests, self.drawn = Signal(), Signal()
        self.pauses: list[float | None] = []
        self.time = 1_000.0
        self.top = TopApp(app, Reader(app, clock=lambda: self.time), "memory", self._rest)

    async def _rest(self, seconds: float | None, wake: asyncio.Event) -> None:
        """Rest until somebody wants to look, however long that takes."""
        self.pauses.append(seconds)
        self.rests.send()
        await wake.wait()

    async def look(self) -> None:
        """Look once more, and show it."""
        before = self.rests.sent
        self.top.look_now()
        await self.rests.until(lambda: self.rests.sent > before, "the next look")
        await self.settled()

    async def press(self, *keys: str) -> None:
        """Press keys, one after the other has been handled."""
        for key in keys:
            self.top.post_message(Key(key, key if len(key) == 1 else CHARACTERS.get(key)))
            await self.settled()

    async def settled(self) -> None:
        """Wait until each widget has handled its messages and the screen is drawn, or another screen is shown."""
        for _ in range(2):
            screen, done = self.top.screen, asyncio.Event()
            self.top.call_later(screen.call_after_refresh, self._passed, done)
            await self.drawn.until(
                lambda done=done, screen=screen: done.is_set() or self.top.screen is not screen, "a drawn screen"
            )

    def _passed(self, done: asyncio.Event) -> None:
        done.set()
        self.drawn.send()

    async def sees(self, words: str) -> str:
        """Wait until the screen shows these words; return the first line that has them."""
        try:
            await self.drawn.until(lambda: words in self.words, f"{words!r} on the screen")
        except NotSeen as error:
            raise NotSeen(f"{error}; it shows:\n{self.text}") from None
        return next((line for line in self.lines if words in line), "")

    async def closed(self) -> None:
        """Wait until no dialog is open. The page below a dialog is visible, too."""
        await self.drawn.until(lambda: isinstance(self.top.screen, Page), "the page without a dialog")

    @property
    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.top.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def words(self) -> str:
        """The text without the ends of its lines."""
        return " ".join(self.text.split())

    def line(self, *words: str) -> str:
        """The first line with all these words."""
        found = [line for line in self.lines if all(word in line for word in words)]
        assert found, f"no line has {words}:\n{self.text}"
        return found[0]


@asynccontextmanager
async def shown(
    patch: pytest.MonkeyPatch, width: int = 120, height: int = 34, fill: bool = True
) -> AsyncIterator[Shown]:
    """The screen on a memory storage: with two queues, failed jobs, a limit that blocks, and a worker."""
    place = Place(MemoryStorage())
    app = App(storage=place)
    async with app:
        if fill:
            await filled(app)
        place.calls.clear()
        found = Shown(app, place)
        found.drawn.after(patch, Screen, "_compositor_refresh")
        async with found.top.run_test(size=(width, height)):
            await found.rests.until(lambda: found.rests.sent > 0, "the first look")
            await found.settled()
            yield found
            found.place.away = False


async def filled(app: App) -> None:
    @app.task(name="send", queue="mail", retry=Retry(attempts=1))
    async def send(number: int) -> None:
        if number < 3:
            raise ConnectionError(f"smtp refused connection {number}")

    @app.task(name="resize", queue="images", limits=("gpu",))
    async def resize(number: int) -> None: ...

    @app.task(name="report", queue="mail")
    async def report() -> None: ...

    for number in range(3):
        await send.enqueue(number)
    await drain(app)
    await app.limits.set(Limit("gpu", slots=2))
    await app.limits.pause("gpu")
    for number in range(4):
        await resize.enqueue(number)
    await drain(app)
    for number in range(5):
        await send.enqueue(10 + number)
    await report.options(delay=600).enqueue()
    worker = Presence(worker="alpha", host="box", pid=7, queues=("mail",), slots=8, running=3, ttl=3600)
    await app.storage.heartbeat(worker, [], 30)
