"""The live screen of `treadle top`, as a person sees it and types at it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import pytest
from textual.events import Resize

from tests.contrib.top.screen import Shown, shown
from treadle import Limit, Retry
from treadle.contrib.top import job_pages, scopes
from treadle.contrib.top.job_pages import JobPage
from treadle.contrib.top.page import Page
from treadle.core.model import State
from treadle.testing import drain
from treadle_testkit.shows import shows

Open = Callable[..., AbstractAsyncContextManager[Shown]]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    return partial(shown, monkeypatch)


async def state_of(it: Shown, task: str) -> list[State]:
    page = await it.treadle.jobs.list(task=task)
    return sorted(row.state for row in page.records)


@shows("`treadle top` shows queues, failures in groups, blocking limits and workers on a live screen")
async def test_everything_at_a_glance(opened: Open) -> None:
    async with opened() as it:
        assert "● live" in it.lines[0]
        assert "5" in it.line("mail", "open")
        assert "! no worker" not in it.line("mail", "open")
        assert "images" in it.text
        assert "3" in it.line("send", "ConnectionError: smtp").split("send")[0]
        assert "4" in it.line("gpu", "‖ paused")
        assert "3/8" in it.line("alpha", "mail")
        assert "Limit 'gpu' is paused and blocks 4 jobs" in it.text
        assert "stats" not in it.place.calls


@shows("`treadle top` asks before it pauses a queue, and records the act")
async def test_a_queue_is_paused_after_a_question(opened: Open) -> None:
    async with opened() as it:
        await it.press("j", "p")
        await it.sees("Pause queue mail?")
        await it.press("enter")  # the button that changes nothing has the focus
        await it.closed()
        assert "queue:mail" not in {use.key for use in await it.treadle.limits.list()}
        await it.press("p")
        await it.sees("Pause queue mail?")
        await it.press("y")
        await it.sees("✓ queue mail is paused")
        await it.sees("Queue 'mail' is paused with 5 queued jobs.")
        assert it.line("mail", "‖ paused")
        [entry] = (await it.treadle.audit.list()).entries
        assert (entry.act, entry.target, entry.source) == ("queue.pause", "mail", "cli")
        await it.press("p")
        await it.sees("Resume queue mail?")
        await it.press("y")
        await it.sees("✓ queue mail is not paused any more")


@shows("`treadle top` pauses and resumes a limit after a question, also the one of all queues")
async def test_a_limit_is_resumed_and_paused_after_a_question(opened: Open) -> None:
    async with opened() as it:
        assert "0/2" in it.line("gpu", "‖ paused by")
        await it.press("3", "p")
        await it.sees("Resume limit gpu?")
        await it.press("y")
        await it.sees("✓ limit gpu is not paused any more")
        await it.press("p")
        await it.sees("Pause limit gpu?")
        await it.press("y")
        await it.sees("✓ limit gpu is paused")
        acts = [(entry.act, entry.target) for entry in (await it.treadle.audit.list()).entries]
        assert sorted(acts) == [("limit.pause", "gpu"), ("limit.resume", "gpu")]
        await it.treadle.limits.pause("queue")
        await it.look()
        assert it.line("mail", "‖ paused")
        await it.press("1", "p")
        await it.sees("Resume the limit queue?")
        await it.press("y")
        await it.sees("✓ limit queue is not paused any more")


@shows("`treadle top` sets how many jobs of a queue may wait, after a question, and records the act")
async def test_a_queue_is_bounded_after_a_question(opened: Open) -> None:
    async with opened() as it:
        await it.treadle.limits.set(Limit("queue:mail", slots=4))
        await it.press("j", "b")
        await it.sees("Bound of queue mail")
        await it.sees("When full, a call that enqueues more is refused.")
        await it.press("x", "enter")
        await it.sees("expected 1 to 1,000,000,000, or nothing for any number")
        await it.press("backspace", "7", "down", "enter")
        await it.sees("Bound queue mail to 7 waiting jobs?")
        await it.sees("6 jobs wait now. When it is full,")
        await it.press("y")
        await it.sees("✓ queue mail may have 7 waiting jobs")
        [use] = [use for use in await it.treadle.limits.list() if use.key == "queue:mail"]
        assert use.rule == Limit("queue:mail", slots=4, max_waiting=7, when_full="drop_oldest")
        [entry] = (await it.treadle.audit.list()).entries
        assert (entry.act, entry.target, entry.source) == ("limit.set", "queue:mail", "cli")
        assert entry.filter == "max_waiting=7, when_full=drop_oldest"
        await it.sees("6/7")
        await it.press("b")
        await it.sees("When full, a call that enqueues more cancels the jobs")
        await it.press("escape")
        await it.closed()
        await it.press("b", "backspace", "enter")
        await it.sees("Remove the bound of queue mail?")
        await it.press("y")
        await it.sees("✓ queue mail may have any number of waiting jobs")
        assert [use.rule for use in await it.treadle.limits.list() if use.key == "queue:mail"] == [
            Limit("queue:mail", slots=4)
        ]
        await it.press("2", "b")
        await it.sees("choose one in the panel of queues (1)")


async def test_a_page_finds_the_jobs_of_an_old_group(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "MOST", 2)

    async with opened() as it:

        @it.treadle.task(name="send.old", queue="mail", retry=Retry(attempts=1))
        async def fails(number: int) -> None:
            raise ValueError("odd" if number else "first")

        for number in range(5):
            await fails.enqueue(number)
            await drain(it.treadle)
        await it.look()
        [group] = [each for each in it.top.reader.snapshot.failures.groups if each.signature.endswith("first")]  # type: ignore[union-attr]
        it.top.open_jobs(scopes.of_group(group))
        await it.look()
        await it.sees("1 failed")
        monkeypatch.setattr(job_pages, "SCANNED", 3)
        await it.look()
        await it.sees("None of the first 3 failed jobs is one of them; there are more.")


@shows("`treadle top` retries the failed jobs of a group, and says how many there are before")
async def test_a_group_is_retried(opened: Open) -> None:
    async with opened() as it:
        await it.press("2", "r")
        await it.sees("Retry 3 failed jobs of send?")
        await it.press("y")
        await it.sees("✓ 3 jobs reopened")
        assert await state_of(it, "send") == [State.READY] * 8
        [entry] = (await it.treadle.audit.list()).entries
        assert (entry.act, entry.done, entry.source) == ("jobs.retry", 3, "cli")
        await it.sees("No failed jobs.")


@shows("`treadle top` opens a job with the reason why it does not run, and its last error")
async def test_a_failed_job_is_opened_and_retried(opened: Open) -> None:
    async with opened() as it:
        await it.press("2", "enter")
        await it.sees("─ 3 failed")
        await it.press("enter")
        await it.sees("It failed (error)")
        assert "last error" in it.text
        assert "ConnectionError: smtp refused connection" in it.text
        await it.press("r")
        await it.sees("Retry send?")
        await it.press("y")
        await it.sees("It is queued, and the only worker of 'mail' does not have the task 'send'.")
        await it.press("r")
        await it.sees("only failed and cancelled jobs can be retried")
        await it.press("escape", "escape")
        await it.sees("1 Queues")


async def test_a_blocked_job_shows_the_limit_that_blocks_it(opened: Open) -> None:
    async with opened() as it:
        await it.press("3", "enter")
        await it.sees("─ 4 blocked")
        assert "blocked by gpu" in it.line("resize")
        await it.press("enter")
        await it.sees("The limit 'gpu' is paused")


@shows("`treadle top` runs a scheduled job now, and cancels a job, each after a question")
async def test_a_scheduled_job_is_run_now_and_cancelled(opened: Open) -> None:
    async with opened() as it:
        await it.press("j", "enter")
        await it.sees("─ 5 queued")
        await it.press("right")
        await it.sees("─ 1 scheduled")
        await it.press("n")
        await it.sees("Run report now?")
        await it.press("y")
        await it.sees("No scheduled jobs.")
        await it.press("left")
        await it.sees("─ 6 queued")
        await it.press("end", "c")
        await it.sees("Cancel report?")
        await it.press("y")
        await it.sees("✓ 1 job cancelled")
        assert await state_of(it, "report") == [State.CANCELLED]


async def test_a_filter_narrows_every_panel(opened: Open) -> None:
    async with opened() as it:
        await it.press("slash", *"IMA", "enter")
        await it.sees("1 of 2")
        assert "nothing contains 'IMA'" in it.text
        await it.press("escape")
        assert "1 of 2" not in it.text
        await it.press("slash", "q", "question_mark", "enter")
        await it.sees("nothing contains 'q?'")


@pytest.mark.parametrize("how", ["left", "quit"])
async def test_a_look_or_a_tick_while_a_page_ends_shows_nothing(
    opened: Open, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The widgets of a page go before the page; a tick or a look in between found none and ended `treadle top`."""
    ended = list[Page]()

    def late(page: Page) -> None:
        it.top._tick()
        page.say("late")
        page.on_resize(Resize(page.size, page.size))
        assert not page.is_ready
        ended.append(page)

    async with opened() as it:
        await it.press("2", "enter")
        await it.sees("─ 3 failed")
        await it.press("enter")
        await it.sees("It failed (error)")
        page = it.top.page
        monkeypatch.setattr(JobPage, "on_unmount", late, raising=False)
        if how == "left":
            await it.press("escape")
            await it.sees("─ 3 failed")
    assert ended == [page]


@shows("`treadle top` continues when the storage does not answer, and shows since when")
async def test_an_outage_is_shown_and_ends(opened: Open) -> None:
    async with opened() as it:
        it.place.away = True
        await it.look()
        assert "Storage unavailable since" in it.words
        assert "the server refused the connection" in it.words
        assert "The figures are the last ones." in it.words
        assert "✕ no storage for" in it.lines[0]
        assert it.line("mail", "open")
        await it.press("p")
        await it.sees("Pause queue images?")
        await it.press("y")
        await it.sees("✕ the server refused the connection")
        it.place.away = False
        await it.look()
        assert "Storage unavailable" not in it.text
        assert "● live" in it.lines[0]


async def test_a_storage_that_is_unavailable_at_first_is_awaited(opened: Open) -> None:
    async with opened(fill=False) as it:
        it.place.away, it.top.reader.snapshot = True, None
        await it.look()
        assert "The storage has not answered yet." in it.text
        it.place.away = False
        await it.look()
        assert "No queue has jobs or workers yet." in it.text


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (100, 24), (30, 8), (200, 60)])
async def test_any_size_has_its_screen(opened: Open, width: int, height: int) -> None:
    async with opened(width, height) as it:
        assert len(it.lines) == height
        assert all(len(line) <= width for line in it.lines)
        assert it.line("images", "open")
        assert "? help" in it.lines[-1]
        assert "2 Failures" in it.text
        assert ("JOBS" in it.text) == (width >= 100)


async def test_a_small_screen_shows_one_panel_at_a_time(opened: Open) -> None:
    async with opened(40, 12) as it:
        assert "gpu" not in it.text
        await it.press("2")
        await it.sees("send")
        await it.press("tab")
        await it.sees("gpu")
        await it.press("shift+tab", "p")
        await it.sees("p pauses or resumes a queue")
        await it.press("1", "p")
        await it.sees("Pause queue images?")
        await it.sees("Back (n)")
        await it.press("n")
        await it.closed()
        await it.press("question_mark")
        await it.sees("Anywhere")
        await it.press("escape")
        await it.closed()


async def test_without_colours_the_words_remain(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened() as it:
        assert it.top.no_color
        assert "▸ images" in it.text
        assert "‖ paused" in it.text


async def test_the_theme_the_list_of_keys_and_the_pause_have_keys(opened: Open) -> None:
    async with opened() as it:
        await it.press("t")
        assert it.top.theme == "treadle-light"
        await it.press("question_mark")
        await it.sees("Each act asks before it acts.")
        await it.press("q")
        await it.closed()
        await it.press("space")
        await it.sees("stopped (space looks again)")
        await it.look()
        assert it.pauses[-1] is None
        await it.press("space")
        await it.rests.until(lambda: it.pauses[-1] == 2.0, "looks again")


async def test_texts_of_jobs_are_shown_without_markup(opened: Open) -> None:
    async with opened(fill=False) as it:

        @it.treadle.task(name="[red]x", queue="[bold]q", retry=Retry(attempts=1))
        async def odd() -> None:
            raise ValueError("\x1b[2J\x1b]0;owned\x07[link=x]")

        await odd.enqueue()
        await drain(it.treadle)
        await it.look()
        assert it.line("[bold]q", "open")
        assert it.line("[red]x", "ValueError: ")
        await it.press("slash", "left_square_bracket", "b", "enter")
        await it.sees("/[b")
        await it.press("escape", "enter")
        await it.sees("─ 1 failed")
        await it.press("enter")
        await it.sees("It failed (error)")
        assert not {"\x1b", "\x07"} & set(it.text)


async def test_the_cursor_stays_on_its_row(opened: Open) -> None:
    async with opened() as it:
        await it.press("j")
        assert it.line("▸ mail")

        @it.treadle.task(name="early", queue="aaa")
        async def early() -> None: ...

        await early.enqueue()
        await it.look()
        assert it.line("aaa", "! no worker")
        assert it.line("▸ mail")
