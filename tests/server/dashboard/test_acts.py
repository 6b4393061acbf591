"""Every act of the dashboard, and that the storage really changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio
from playwright.async_api import Locator, Page, Route, expect

from tests.server.dashboard.shop import Shop
from tests.server.dashboard.visits import Visit
from tests.waiting import until
from treadle import flow
from treadle.admin import selection

pytestmark = pytest.mark.slow

DIALOG: Final = "dialog"
PRUNED: Final = 60.0  # s after its end that a deleted row is kept at most


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    """A shop of this module's own: its tests change what they find."""
    async with Shop(tmp_path_factory.mktemp("acts")) as shop:
        yield shop


async def message(page: Page, words: str) -> Locator:
    """The short message about an act, once it is there."""
    found = page.get_by_role("region", name="Messages").locator("div").filter(has_text=re.compile(words)).last
    await expect(found).to_be_visible()
    return found


async def agree(page: Page, button: str) -> None:
    """Press the button of the open dialog, which then closes."""
    dialog = page.get_by_role(DIALOG)
    await dialog.get_by_role("button", name=button).click()
    await expect(dialog).to_have_count(0)


async def is_deleted(shop: Shop, id: str) -> bool:
    """Whether the row has gone or is pruned within a minute, as a deleted one is."""
    rows = (await shop.app.jobs.list(ids=[id])).records
    return not rows or (rows[0].expires_at or 0.0) - (rows[0].ended_at or 0.0) <= PRUNED


# --- one job


async def test_retry_of_a_job(visit: Visit, shop: Shop) -> None:
    id = await shop.ended("thumbnail", "/img/again.png", 13)
    before = await shop.row(id)
    page = await visit.open(f"jobs/{id}")
    await page.get_by_role("button", name="Retry").click()
    await message(page, "thumbnail is queued again")
    after = await until(lambda: _reopened(shop, id, before.version), "the job runs again and fails")
    assert after.reopenings == before.reopenings + 1


async def _reopened(shop: Shop, id: str, version: int) -> object:
    row = await shop.row(id)
    return row if row.version > version and str(row.state) == "failed" else None


async def test_cancel_opens_a_dialog_that_can_be_closed(visit: Visit, shop: Shop) -> None:
    job = await shop.send("print_letter", "Ada", 1)
    page = await visit.open(f"jobs/{job.id}")
    await page.get_by_role("button", name="Cancel").click()
    await agree(page, "Keep it")
    assert str((await shop.row(job.id)).state) == "ready"
    await page.get_by_role("button", name="Cancel").click()
    await agree(page, "Cancel the job")
    await message(page, "1 job cancelled")
    assert str((await shop.row(job.id)).state) == "cancelled"


async def test_run_now_of_a_scheduled_job(visit: Visit, shop: Shop) -> None:
    job = await shop.send("send_mail", "soon@example.org", 2, delay=3600)
    page = await visit.open(f"jobs/{job.id}")
    await page.get_by_role("button", name="Run now").click()
    await shop.until(job.id, "succeeded")
    await expect(page.locator("main")).to_contain_text("sent 2")


async def test_a_job_is_paused_and_resumed(visit: Visit, shop: Shop) -> None:
    job = await shop.send("send_mail", "later@example.org", 2, delay=3600)
    page = await visit.open(f"jobs/{job.id}")
    await page.get_by_role("button", name="Pause", exact=True).click()
    await message(page, "send_mail paused")
    await page.get_by_role("button", name="Resume", exact=True).click()
    await message(page, "send_mail resumed")
    row = await shop.row(job.id)
    assert (str(row.state), row.reason) == ("ready", None)


async def test_a_job_runs_again_from_a_step(visit: Visit, shop: Shop) -> None:
    job = await shop.send("approve", 21)
    await shop.until(job.id, "waiting")
    await shop.app.jobs.signal(job.id, "approved", "yes")
    await job.result(30)
    page = await visit.open(f"jobs/{job.id}")
    before = await shop.row(job.id)
    await page.get_by_role("button", name="Again from here").first.click()
    await agree(page, "Run again")
    await message(page, "approve runs again")
    after = await until(lambda: _ended_again(shop, job.id, before.version), "the job runs again")
    assert after.reopenings == before.reopenings + 1


async def _ended_again(shop: Shop, id: str, version: int) -> object:
    row = await shop.row(id)
    return row if row.version > version and str(row.state) == "succeeded" else None


async def test_delete_of_a_job(visit: Visit, shop: Shop) -> None:
    id = await shop.ended("thumbnail", "/img/gone.png", 64)
    page = await visit.open(f"jobs/{id}")
    await page.get_by_role("button", name="Delete").click()
    await agree(page, "Delete the job")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert await is_deleted(shop, id)


async def test_a_signal_to_a_job_that_waits_for_it(visit: Visit, shop: Shop) -> None:
    job = await shop.send("approve", 21)
    await shop.until(job.id, "waiting")
    page = await visit.open(f"jobs/{job.id}")
    await page.get_by_role("button", name="Signal").click()
    dialog = page.get_by_role(DIALOG)
    await dialog.get_by_label("Name").fill("approved")
    await dialog.get_by_label("Value").fill("{wrong")
    await dialog.get_by_role("button", name="Send the signal").click()
    await expect(dialog).to_contain_text("Expected JSON")
    await dialog.get_by_label("Value").fill('{"by": "Ada"}')
    await agree(page, "Send the signal")
    assert await job.result(30) == {"by": "Ada"}


async def test_enqueue_by_the_form_of_a_task(visit: Visit, shop: Shop) -> None:
    page = await visit.open("jobs")
    await page.locator("main").get_by_role("button", name="Enqueue a job").click()
    dialog = page.get_by_role(DIALOG)
    await dialog.get_by_label("Task").fill("shop.print_letter")
    await dialog.get_by_label("to").fill("Grace")
    await dialog.get_by_label("page").fill("7")
    await dialog.get_by_role("button", name=re.compile("^Enqueue")).click()
    await message(page, "Job enqueued")
    rows = (await shop.app.jobs.list(task="shop.print_letter", search="Grace")).records
    assert len(rows) == 1


async def test_send_again_with_changed_arguments_is_a_new_job(visit: Visit, shop: Shop) -> None:
    id = await shop.ended("thumbnail", "/img/small.png", 13)
    page = await visit.open(f"jobs/{id}")
    await page.get_by_role("button", name="Send again").click()
    dialog = page.get_by_role(DIALOG)
    await expect(dialog.get_by_label("path")).to_have_value("/img/small.png")
    await dialog.get_by_label("size").fill("64")
    await dialog.get_by_role("button", name=re.compile("^Enqueue|^Send")).click()
    await message(page, "Job enqueued")
    rows = (await shop.app.jobs.list(task="shop.thumbnail", search="small.png")).records
    assert sorted(str(row.state) for row in rows if row.id == id) == ["failed"]
    assert len(rows) == 2


# --- many jobs


async def test_retry_of_selected_jobs(visit: Visit, shop: Shop) -> None:
    ids = [await shop.ended("thumbnail", f"/img/pick{n}.png", 13) for n in range(3)]
    page = await visit.open("jobs?status=failed&task=shop.thumbnail")
    for id in ids[:2]:
        await page.get_by_role("checkbox", name=re.compile(id)).check()
    chosen = page.get_by_role("region", name="Selected jobs")
    await expect(chosen).to_contain_text("2 selected")
    await chosen.get_by_role("button", name="Retry").click()
    await agree(page, "Retry 2 jobs")
    await expect(page.get_by_role("region", name="Operations")).to_contain_text("2 jobs retried")
    for id, times in zip(ids, (1, 1, 0), strict=True):
        row = await until(lambda id=id: shop.until(id, "failed"), "it failed again")
        assert row.reopenings == times


async def test_delete_of_all_that_match_names_the_filter_and_leaves_later_jobs(visit: Visit, shop: Shop) -> None:
    for n in range(3):
        await shop.ended("thumbnail", f"/img/old{n}.png", 13, labels=["old"])
    page = await visit.open("jobs?status=failed&label=old")
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Select all that match").click()
    await page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Delete").click()
    dialog = page.get_by_role(DIALOG)
    await expect(dialog).to_contain_text("3 jobs match")
    await expect(dialog).to_contain_text("old")
    later = await shop.ended("thumbnail", "/img/later.png", 13, labels=["old"])
    await agree(page, "Delete 3 jobs")
    await expect(page.get_by_role("region", name="Operations")).to_contain_text("3 jobs deleted")
    rows = (await shop.app.jobs.list(label="old")).records
    assert [row.id for row in rows if not await is_deleted(shop, row.id)] == [later]


async def test_above_a_thousand_the_number_is_typed(visit: Visit, shop: Shop) -> None:
    letter = shop.task("print_letter").options(labels=["flood"])
    await shop.app.enqueue([letter.job("Ada", n) for n in range(1_100)])
    page = await visit.open("jobs?status=queued&label=flood")
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Select all that match").click()
    await page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role(DIALOG)
    button = dialog.get_by_role("button", name=re.compile("^Cancel 1,100 jobs"))
    await expect(button).to_be_disabled()
    field = dialog.get_by_label(re.compile("Type 1,?100 to confirm"))
    await field.fill("110")
    await expect(button).to_be_disabled()
    await field.fill("1100")
    await button.click()
    await expect(page.get_by_role("region", name="Operations")).to_contain_text("1,100 jobs cancelled")
    assert (await shop.app.jobs.list(label="flood", state="cancelled", limit=0, count=True)).total == 1_100


async def test_where_counting_stopped_the_typed_number_bounds_the_act(
    visit: Visit, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MATCHED", 3)
    letter = shop.task("print_letter").options(labels=["capped"])
    await shop.app.enqueue([letter.job("Ada", n) for n in range(6)])
    page = await visit.open("jobs?status=queued&label=capped")
    await page.get_by_role("checkbox", name="Select all rows").check()
    await page.get_by_role("button", name="Select all that match").click()
    await page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role(DIALOG)
    await expect(dialog).to_contain_text("Counting stopped at 3; more jobs match.")
    await dialog.get_by_label("How many at most?").fill("4")
    await agree(page, "Cancel at most 4 jobs")
    operations = page.get_by_role("region", name="Operations")
    await expect(operations).to_contain_text("4 jobs cancelled")
    await expect(operations).to_contain_text("More jobs match. They are as they were.")
    assert (await shop.app.jobs.list(label="capped", state="cancelled", limit=0, count=True)).total == 4


async def test_a_double_click_on_the_confirming_button_acts_once(visit: Visit, shop: Shop) -> None:
    id = await shop.ended("thumbnail", "/img/twice.png", 13, labels=["twice"])
    page = await visit.open("jobs?status=failed&label=twice")
    await page.get_by_role("checkbox", name=re.compile(id)).check()
    await page.get_by_role("region", name="Selected jobs").get_by_role("button", name="Delete").click()
    button = page.get_by_role(DIALOG).get_by_role("button", name="Delete 1 job")
    await expect(button).to_be_enabled()
    begun: list[str] = []
    clicked = asyncio.Event()

    async def hold(route: Route) -> None:
        begun.append(route.request.headers["idempotency-key"])
        await clicked.wait()
        await route.continue_()

    await page.route("**/v1/operations", hold)
    await button.dblclick()
    await button.press("Enter")
    clicked.set()
    await expect(page.get_by_role("region", name="Operations")).to_contain_text("1 job deleted")
    assert len(begun) == 1


async def test_a_group_of_failures_retries_one_first_then_all(visit: Visit, shop: Shop) -> None:
    ids = [await shop.ended("send_mail", f"x{n}@example.org", 37, queue="images") for n in range(3)]
    page = await visit.open("failures?queue=images")
    await page.get_by_role("link", name=re.compile("^ConnectionError")).click()
    await page.get_by_role("button", name="Retry one first").click()
    tried = page.get_by_role("status").filter(has_text="The retried job")
    await expect(tried).to_contain_text("failed")
    rows = [await shop.row(id) for id in ids]
    assert sum(row.reopenings for row in rows) == 1
    await page.get_by_role("button", name="Retry 3 jobs").click()
    await agree(page, "Retry 3 jobs")
    await expect(page.get_by_role("region", name="Operations")).to_contain_text("3 jobs retried")
    assert sum([(await shop.row(id)).reopenings for id in ids]) == 4


async def test_acts_are_listed_with_their_actor(visit: Visit, shop: Shop) -> None:
    id = await shop.ended("thumbnail", "/img/noted.png", 13)
    page = await visit.open(f"jobs/{id}")
    await page.get_by_role("button", name="Retry").click()
    await message(page, "is queued again")
    await visit.open("activity")
    await expect(page.locator("main")).to_contain_text(re.compile("retr", re.IGNORECASE))
    await expect(page.locator("main")).to_contain_text(id[:8])


# --- queues, limits, schedules


async def test_a_queue_is_paused_and_the_pause_undone(visit: Visit, shop: Shop) -> None:
    await shop.app.enqueue(shop.task("print_letter").job("Ada", 1))
    page = await visit.open("queues")
    await page.get_by_role("button", name="Pause the queue letters").click()
    note = await message(page, "Queue letters paused")
    assert await _paused(shop, "queue:letters")
    await note.get_by_role("button", name="Undo").click()
    await message(page, "Queue letters resumed")
    assert not await _paused(shop, "queue:letters")


async def _paused(shop: Shop, key: str) -> bool:
    return any(use.key == key and use.rule.slots == 0 for use in await shop.app.limits.list())


async def test_a_limit_is_added_changed_paused_and_removed(visit: Visit, shop: Shop) -> None:
    page = await visit.open("limits")
    await page.get_by_role("button", name="Add a limit").click()
    dialog = page.get_by_role(DIALOG)
    await dialog.get_by_label("Name").fill("gpu")
    await dialog.get_by_label("Slots").fill("3")
    await agree(page, "Set the limit")
    row = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="gpu"))
    await expect(row).to_contain_text("3 slots")
    assert {use.key: use.rule.slots for use in await shop.app.limits.list()}["gpu"] == 3

    await row.get_by_role("button", name="Edit gpu").click()
    await dialog.get_by_label("Slots").fill("5")
    await agree(page, "Set the limit")
    await expect(row).to_contain_text("5 slots")

    await row.get_by_role("button", name="Pause gpu").click()
    await message(page, "Limit gpu paused")
    assert await _paused(shop, "gpu")
    await row.get_by_role("button", name="Resume gpu").click()
    await message(page, "Limit gpu resumed")
    assert {use.key: use.rule.slots for use in await shop.app.limits.list()}["gpu"] == 5

    await row.get_by_role("button", name="Remove gpu").click()
    await agree(page, "Remove the limit")
    await expect(row).to_have_count(0)
    assert "gpu" not in {use.key for use in await shop.app.limits.list()}


async def test_a_schedule_is_added_edited_paused_run_and_deleted(visit: Visit, shop: Shop) -> None:
    page = await visit.open("schedules")
    await page.get_by_role("button", name="Add a schedule").click()
    dialog = page.get_by_role(DIALOG)
    await dialog.get_by_label("Name", exact=True).fill("weekly")
    await dialog.get_by_label("Task").fill("shop.report")
    await dialog.get_by_label("Arguments by name").fill('{"name": "weekly"}')
    cron = dialog.get_by_label("Cron")
    visit.allow("status of 422")
    await cron.fill("not a line")
    await expect(dialog.get_by_role("status")).to_contain_text("cron")
    await cron.fill("30 6 * * mon")
    await dialog.get_by_label("Zone").fill("Asia/Tokyo")
    await expect(dialog.get_by_role("status")).to_contain_text("06:30")
    await agree(page, "Create the schedule")
    await page.get_by_role("link", name="weekly").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("weekly")

    await page.get_by_role("button", name="Edit").click()
    await cron.fill("0 7 * * mon")
    await expect(dialog.get_by_role("status")).to_contain_text("07:00")
    await agree(page, "Change the schedule")
    await expect(page.locator("main")).to_contain_text("0 7 * * mon")
    assert [each.timing for each in await shop.app.schedules.list() if each.name == "weekly"] == [
        "0 7 * * mon (Asia/Tokyo)"
    ]

    await page.get_by_role("button", name="Pause").click()
    await message(page, "Schedule weekly paused")
    assert [each.paused for each in await shop.app.schedules.list() if each.name == "weekly"] == [True]
    await page.get_by_role("button", name="Resume").click()
    await message(page, "Schedule weekly resumed")
    await page.get_by_role("button", name="Run now").click()
    await message(page, "Schedule weekly triggered")
    rows = (await shop.app.jobs.list(task="shop.report", search="weekly")).records
    assert len(rows) == 1

    await page.get_by_role("button", name="Delete").click()
    await agree(page, "Delete the schedule")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Schedules")
    assert await shop.app.schedules.list() == []


async def test_a_workflow_is_cancelled_as_a_whole(visit: Visit, shop: Shop) -> None:
    letters = [shop.task("print_letter").job("Ada", n) for n in range(3)]
    root = await shop.app.enqueue(flow(*letters))
    page = await visit.open(f"workflows/{root.id}")
    await page.get_by_role("button", name=re.compile("^Cancel")).click()
    await page.get_by_role(DIALOG).get_by_role("button", name=re.compile("^Cancel")).click()
    await shop.until(root.id, "cancelled")
    rows = (await shop.app.jobs.list(workflow=root.id)).records
    assert {str(row.state) for row in rows} == {"cancelled"}


# --- requests for approval


async def test_a_request_is_approved_in_the_inbox(visit: Visit, shop: Shop) -> None:
    job = await shop.send("refund", 12, 99)
    await shop.until(job.id, "waiting")
    page = await visit.open("approvals")
    request = page.get_by_test_id("request")
    await expect(request).to_contain_text("the group finance")
    await expect(request).to_contain_text("99")
    await request.get_by_label("Reason").fill("as agreed")
    await request.get_by_role("button", name="Approve").dblclick()
    await message(page, "The request refund is approved")
    await expect(page.get_by_text("Nothing waits for your decision")).to_be_visible()
    assert await job.result(30) == [True, "as agreed"]


async def test_a_request_is_rejected_on_the_page_of_its_job(visit: Visit, shop: Shop) -> None:
    job = await shop.send("refund", 13, 7)
    await shop.until(job.id, "waiting")
    page = await visit.open(f"jobs/{job.id}")
    request = page.get_by_test_id("request")
    await expect(page.get_by_test_id("why")).to_contain_text("It waits until the group 'finance' decides")
    await request.get_by_role("button", name="Reject").click()
    await message(page, "The request refund is rejected")
    assert await job.result(30) == [False, ""]
    await expect(request).to_have_count(0)


async def test_a_late_decision_shows_the_one_that_counts(visit: Visit, shop: Shop) -> None:
    visit.allow("409")
    job = await shop.send("refund", 14, 8)
    await shop.until(job.id, "waiting")
    page = await visit.open("approvals")
    await expect(page.get_by_test_id("request")).to_be_visible()
    [request] = (await shop.app.jobs.approvals(job=job)).requests
    await shop.app.jobs.decide(request, approved=False, by="ada", reason="no")
    await page.get_by_role("button", name="Approve").click()
    await message(page, "already rejected by ada")
    assert await job.result(30) == [False, "no"]
