"""The admin pages, under Django's permissions."""

from datetime import timedelta
from io import StringIO
from unittest.mock import patch

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection, transaction
from django.test import Client, TestCase, TransactionTestCase
from django.urls import reverse
from django.utils import timezone

from shop import odd_tasks, tasks
from treadle.integrations.django import app_of, database_app
from treadle.integrations.django.testing import run_due

LIST, SCHEDULES = "/admin/treadle/job/", "/admin/treadle/schedule/"


class Admin(TransactionTestCase):
    def setUp(self):
        self.user = User.objects.create_user("ada", password="ada", is_staff=True)
        self.client.force_login(self.user)
        with transaction.atomic():
            self.later = odd_tasks.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(
                "<b>boat</b>", password="hunter2"
            )
            self.failed = tasks.fails.using(**odd_tasks.once).enqueue()
            run_due()

    def tearDown(self):
        app_of().sync.close()

    def allow(self, *names):
        self.user.user_permissions.add(
            *(Permission.objects.get(codename=name, content_type__app_label="treadle") for name in names)
        )

    def page(self, job):
        return reverse("admin:treadle_job_change", args=[job.id])

    def state(self, job):
        with self.subTest(job.id):
            return str(app_of().sync.jobs.get(job.id).state)

    def test_the_pages_need_the_permission_to_view(self):
        for page in (LIST, SCHEDULES, self.page(self.later)):
            self.assertEqual(self.client.get(page).status_code, 403)
            self.assertEqual(self.client.post(page, {"action": "cancel"}).status_code, 403)
        self.allow("view_job")
        self.assertContains(self.client.get("/admin/"), "Background jobs")
        listed = self.client.get(LIST)
        self.assertContains(listed, "shop.tasks.fails")
        self.assertNotContains(listed, "OutOfStock")
        shown = self.client.get(self.page(self.later))
        self.assertContains(shown, "It is not queued yet")
        self.assertNotContains(shown, "boat")
        self.assertNotContains(self.client.get(self.page(self.failed)), "no boats")
        self.assertNotContains(self.client.get(f"{LIST}?q=boats"), "shop.tasks.fails</a>")
        for page, acts in ((LIST, "cancel"), (self.page(self.failed), "retry"), (self.page(self.failed), "delete")):
            answer = self.client.post(page, {"action": acts, "_selected_action": [self.failed.id], "confirmed": "yes"})
            self.assertEqual(answer.status_code, 403)
        self.assertEqual(self.state(self.failed), "failed")

    def test_payloads_need_their_own_permission(self):
        self.allow("view_job", "view_payload")
        shown = self.client.get(self.page(self.later))
        self.assertContains(shown, "&lt;b&gt;boat&lt;/b&gt;")
        self.assertNotContains(shown, "hunter2")
        self.assertContains(self.client.get(self.page(self.failed)), "no boats")
        self.assertContains(self.client.get(f"{LIST}?q=no+boats&status=failed"), "shop.tasks.OutOfStock")

    def test_filters_narrow_the_list(self):
        self.allow("view_job")
        self.assertContains(self.client.get(f"{LIST}?status=scheduled"), self.later.id)
        self.assertNotContains(self.client.get(f"{LIST}?status=scheduled"), self.failed.id)
        self.assertContains(self.client.get(f"{LIST}?task=shop.tasks.fails"), self.failed.id)
        self.assertContains(self.client.get(f"{LIST}?queue=nowhere"), "No job matches")
        for odd in ("status=odd", "cursor=odd", "cursor=%00", "q=%00", "queue=%ff", "unknown=1", f"q={'x' * 5000}"):
            self.assertIn(self.client.get(f"{LIST}?{odd}").status_code, (200, 302), odd)
        for id in ("unknown", "a b", "%00", "x" * 300):
            self.assertEqual(self.client.get(f"{LIST}{id}/change/").status_code, 404, id)

    def test_acts_change_the_job(self):
        self.allow("view_job", "change_job", "delete_job")
        said = self.client.post(self.page(self.failed), {"action": "retry"}, follow=True)
        self.assertContains(said, "1 job was retried.")
        self.assertEqual(self.state(self.failed), "ready")
        said = self.client.post(self.page(self.later), {"action": "run_now"}, follow=True)
        self.assertContains(said, "1 job was queued.")
        both = {"_selected_action": [self.failed.id, self.later.id]}
        asked = self.client.post(LIST, {"action": "cancel", **both})
        self.assertContains(asked, "these 2 jobs?")
        self.assertEqual(self.state(self.later), "ready")
        said = self.client.post(LIST, {"action": "cancel", "confirmed": "yes", **both}, follow=True)
        self.assertContains(said, "2 jobs were cancelled.")
        said = self.client.post(LIST, {"action": "run_now", **both}, follow=True)
        self.assertContains(said, "could not be queued in their state")
        said = self.client.post(self.page(self.later), {"action": "delete", "confirmed": "yes"}, follow=True)
        self.assertContains(said, "1 job was deleted.")
        for odd in ({}, {"action": "drop"}, {"action": "retry"}):
            self.assertEqual(self.client.post(LIST, odd, follow=True).status_code, 200)
        acts = [(entry.act, entry.by) for entry in app_of().sync.audit.list().entries]
        self.assertEqual({by for _, by in acts}, {"ada (Django admin)"})
        self.assertIn("job.retry", {act for act, _ in acts})

    def test_schedules_can_be_paused_with_the_permission(self):
        app_of().sync.schedules.upsert("report", app_of().tasks["shop.tasks.report"].job(), every=3600)
        self.allow("view_schedule")
        self.assertContains(self.client.get(SCHEDULES), "shop.tasks.report")
        self.assertEqual(self.client.post(SCHEDULES, {"action": "pause"}).status_code, 403)
        self.allow("change_schedule")
        for verb in ("pause", "resume", "trigger"):
            said = self.client.post(SCHEDULES, {"action": verb, "_selected_action": ["report"]}, follow=True)
            self.assertContains(said, "1 schedule")
        self.assertEqual(len(app_of().sync.jobs.list(task="shop.tasks.report", state="ready").records), 1)
        self.assertContains(self.client.post(SCHEDULES, {"action": "odd"}, follow=True), "Select an action")
        app_of().sync.schedules.delete("report")

    def test_rows_of_treadle_are_no_jobs(self):
        """A user who may cancel jobs cannot cancel a schedule by the id of its row."""
        app_of().sync.schedules.upsert("report", app_of().tasks["shop.tasks.report"].job(), every=3600)
        with connection.cursor() as cursor:
            tables = {"sqlite": "job", "postgresql": "treadle.job"}
            query = f"SELECT id, state FROM {tables[connection.vendor]} WHERE task = 'treadle.schedule'"
            cursor.execute(query)
            [before] = cursor.fetchall()
            self.allow("view_job", "view_payload", "change_job", "delete_job")
            self.assertEqual(self.client.get(f"{LIST}{before[0]}/change/").status_code, 404)
            for verb in ("cancel", "run_now", "retry", "delete"):
                asked = {"action": verb, "confirmed": "yes", "_selected_action": [before[0], "a b", "x" * 1000, "\0"]}
                self.assertContains(self.client.post(LIST, asked, follow=True), "4 could not be")
                self.client.post(f"{LIST}{before[0]}/change/", asked)
            cursor.execute(query)
            self.assertEqual(cursor.fetchall(), [before])
        twice = {"action": "retry", "_selected_action": [self.failed.id] * 2}
        self.assertContains(self.client.post(LIST, twice, follow=True), "1 job was retried.<")
        self.assertNotIn("a b", [entry.target for entry in app_of().sync.audit.list().entries])
        app_of().sync.schedules.delete("report")

    def test_a_forged_request_changes_nothing(self):
        self.allow("view_job", "change_job")
        strict = Client(enforce_csrf_checks=True)
        strict.force_login(self.user)
        self.assertEqual(strict.post(self.page(self.failed), {"action": "retry"}).status_code, 403)
        self.client.get(f"{self.page(self.failed)}?action=retry&confirmed=yes")
        self.assertEqual(self.state(self.failed), "failed")
        asked = self.client.post(LIST, {"action": "cancel", "_selected_action": "<script>x"})
        self.assertContains(asked, "&lt;script&gt;x")
        self.assertNotContains(asked, "<script>x")

    def test_the_storage_stays_open_between_views(self):
        self.allow("view_job")
        core, store = app_of()._core, database_app.store_of("default")
        self.client.get(LIST)
        self.assertIsNone(core.loop)  # in tests nothing stays open: the database could not be dropped
        with patch.object(database_app, "in_tests", return_value=False):
            self.client.get(LIST)
            opened = core.loop
            self.assertIsNotNone(opened)
            self.client.get(self.page(self.later))
            self.assertIs(core.loop, opened)
            self.assertTrue(store._kept_open._timer.is_alive())
            store._kept_open._timer.cancel()
            store._kept_open.close()  # as the timer does after a pause
            self.assertIsNone(core.loop)
            self.client.get(LIST)  # and it is opened again
            self.assertIsNotNone(core.loop)
            store._kept_open._timer.cancel()
            store._kept_open.close()

    def test_the_command_acts_on_the_storage_of_the_project(self):
        with self.assertRaises(SystemExit) as left:
            call_command("treadle", "jobs", "show", "unknown", stdout=StringIO())
        self.assertEqual(left.exception.code, 1)
        call_command("treadle", "jobs", "cancel", self.later.id)
        self.assertEqual(self.state(self.later), "cancelled")


class AdminInTestCase(TestCase):
    """The jobs of the test are in its transaction, which no other connection sees."""

    def setUp(self):
        self.client.force_login(User.objects.create_superuser("ada", password="ada"))
        self.failed = tasks.fails.using(**odd_tasks.once).enqueue()
        run_due()
        self.queued = odd_tasks.echo.enqueue("boat", password="hunter2")

    def test_the_pages_show_the_jobs_of_the_test(self):
        listed = self.client.get(LIST)
        for job in (self.failed, self.queued):
            self.assertContains(listed, job.id)
        self.assertContains(self.client.get(f"{LIST}?status=failed"), "OutOfStock")
        self.assertNotContains(self.client.get(f"{LIST}?status=failed"), self.queued.id)
        page = self.client.get(reverse("admin:treadle_job_change", args=[self.queued.id]))
        self.assertContains(page, "boat")
        self.assertNotContains(page, "hunter2")
        self.assertEqual(self.client.get(SCHEDULES).status_code, 200)

    def test_an_act_names_the_test_that_can_do_it(self):
        said = self.client.post(reverse("admin:treadle_job_change", args=[self.failed.id]), {"action": "retry"})
        self.assertContains(said, "TransactionTestCase")
        self.failed.refresh()
        self.assertEqual(self.failed.status, "FAILED")
