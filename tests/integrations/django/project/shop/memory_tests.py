"""Tests on the database in memory that Django makes for SQLite by default."""

from django.contrib.auth.models import User
from django.test import TestCase, TransactionTestCase

from shop import tasks
from shop.models import Order
from treadle import StorageError, Worker
from treadle.integrations.django import app
from treadle.integrations.django.testing import run_due

FILE = '"TEST": {"NAME": BASE_DIR / "test.db"}'


class InMemory:
    def test_jobs_run(self):
        order = Order.objects.create(what="a boat")
        sent = tasks.pay.enqueue(order.pk)
        self.assertEqual(run_due(), 1)
        sent.refresh()
        self.assertEqual(sent.status, "SUCCESSFUL")
        with app.sync.testing() as t:
            tasks.note.enqueue_sync(order.pk)
            self.assertEqual(t.drain(), 1)
        order.refresh_from_db()
        self.assertEqual(order.paid, 2)

    def test_the_admin_shows_them(self):
        self.client.force_login(User.objects.create_superuser("ada"))
        self.assertContains(self.client.get(f"/admin/treadle/job/{tasks.pay.enqueue(1).id}/change/"), "shop.tasks.pay")

    def test_the_storage_of_the_app_is_another(self):
        """A list without jobs, and a worker that runs none, would be wrong silently."""
        for call in (
            app.sync.jobs.list,
            lambda: app.sync.jobs.cancel(tasks.pay.enqueue(1).id),
            lambda: app.sync.call(Worker(app).run()),
        ):
            with self.assertRaisesMessage(StorageError, FILE):
                call()


class InATestCase(InMemory, TestCase):
    pass


class Committed(InMemory, TransactionTestCase):
    def test_a_flush_empties_the_tables(self):
        self.assertTrue(tasks.pay.using(key="k").enqueue(1))
        self.assertEqual(run_due(), 1)

    test_it_again = test_a_flush_empties_the_tables

    def test_an_act_of_the_admin(self):
        self.client.force_login(User.objects.create_superuser("ada"))
        id = tasks.pay.enqueue(1).id
        answer = self.client.post("/admin/treadle/job/", {"action": "run_now", "_selected_action": [id]}, follow=True)
        self.assertIn(FILE, next(str(each) for each in answer.context["messages"]))
