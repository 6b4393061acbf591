"""Tasks of `@app.task` follow `commit`, as Django's tasks do, and `app.sync.testing()` runs both kinds."""

from contextlib import suppress

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase, override_settings

from shop import odd_tasks, tasks
from shop.models import Order
from shop.test_modes import TASKS as MODES
from treadle import BadOption, Key, KeyHeld, chain
from treadle.integrations.django import app, app_of
from treadle.integrations.django.testing import run_due

BACKEND = "treadle.integrations.django.TreadleBackend"


def ids():
    return {row.job.id for row in app.sync.jobs.list().records}


class Commits(TransactionTestCase):
    def tearDown(self):
        app.sync.close()

    def test_jobs_are_stored_by_the_transaction(self):
        with transaction.atomic():
            order = Order.objects.create(what="a boat")
            one = tasks.note.enqueue_sync(order.pk)
            two = app.sync.enqueue(tasks.note.job(order.pk), tasks.note.job(order.pk))
            flow = chain(tasks.note.job(order.pk), tasks.note.options(pass_result=False).job(order.pk)).enqueue_sync()
            self.assertFalse({job.id for job in (one, *two, flow)} & ids())
        self.assertLessEqual({job.id for job in (one, *two, flow)}, ids())

    def test_a_django_task_cannot_be_in_a_chain(self):
        with self.assertRaisesMessage(BadOption, "found a Django task; only tasks of @app.task can be in a chain"):
            chain(tasks.note.job(1), tasks.pay)
        with self.assertRaisesMessage(AttributeError, "'job': a Django task; only tasks of @app.task have it"):
            tasks.pay.job(1)

    def test_a_rollback_takes_them_with_it(self):
        before = ids()
        with suppress(ZeroDivisionError), transaction.atomic():
            tasks.note.enqueue_sync(1)
            raise ZeroDivisionError
        with transaction.atomic(), suppress(ZeroDivisionError), transaction.atomic():
            tasks.note.enqueue_sync(1)
            raise ZeroDivisionError
        self.assertEqual(ids(), before)

    def test_outside_of_a_transaction_they_are_stored_at_once(self):
        self.assertIn(tasks.note.enqueue_sync(1).id, ids())

    def test_a_key_of_the_transaction_counts(self):
        with transaction.atomic():
            first, second = (tasks.note.options(key="k").enqueue_sync(1) for _ in range(2))
        self.assertEqual((first.id, first.created, second.created), (second.id, True, False))
        app.sync.jobs.cancel(first)

    def test_after_the_commit(self):
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"commit": "after"}}}):
            with transaction.atomic():
                job = tasks.note.enqueue_sync(1)
                self.assertNotIn(job.id, ids())
            self.assertIn(job.id, ids())
            with suppress(ZeroDivisionError), transaction.atomic():
                lost = tasks.note.enqueue_sync(1)
                raise ZeroDivisionError
            self.assertNotIn(lost.id, ids())

    def test_a_key_that_another_job_has_at_the_commit(self):
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"commit": "after"}}}):
            holder = tasks.note.options(key="k").enqueue_sync(1)
            with transaction.atomic():
                job = tasks.note.options(key="k").enqueue_sync(2)
                other = tasks.note.enqueue_sync(3)
                sent = tasks.pay.using(key="p").enqueue(1)
                twice = tasks.pay.using(key="p").enqueue(1)
                self.assertTrue(job.created)
            self.assertEqual((job.id, job.created, other.created), (holder.id, False, True))
            self.assertEqual(app.sync.jobs.get(job).job.payload, "[1]")
            twice.refresh()
            self.assertEqual((twice.id, twice.status), (sent.id, "READY"))
            with self.assertRaises(KeyHeld), transaction.atomic():
                tasks.note.options(key=Key("k", conflict="raise")).enqueue_sync(4)

    def test_now(self):
        if connection.vendor == "sqlite":
            return  # it has one writer, which is this transaction
        with override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"commit": "now"}}}):
            with suppress(ZeroDivisionError), transaction.atomic():
                job = tasks.note.enqueue_sync(1)
                raise ZeroDivisionError
            self.assertIn(job.id, ids())


class InATest(TestCase):
    def setUp(self):
        self.order = Order.objects.create(what="a boat")

    def paid(self):
        self.order.refresh_from_db()
        return self.order.paid

    def test_both_kinds_run(self):
        with app.sync.testing() as t:
            with transaction.atomic():
                tasks.note.enqueue_sync(self.order.pk)
                sent = tasks.pay.enqueue(self.order.pk)
                t.assert_not_enqueued(tasks.note)
            sent.refresh()
            self.assertEqual((sent.status, t.drain()), ("READY", 2))
            sent.refresh()
            self.assertEqual((sent.status, self.paid()), ("SUCCESSFUL", 2))

    def test_run_due_runs_its_kind(self):
        with app.sync.testing() as t:
            with transaction.atomic():
                tasks.note.enqueue_sync(self.order.pk)
                sent = tasks.pay.enqueue(self.order.pk)
                tasks.chained.enqueue(1)
            self.assertEqual((run_due(), self.paid()), (4, 2))
            sent.refresh()
            self.assertEqual((sent.status, t.drain(), self.paid()), ("SUCCESSFUL", 1, 3))

    def test_a_rollback_takes_both_with_it(self):
        with app.sync.testing() as t:
            with suppress(ZeroDivisionError), transaction.atomic():
                tasks.note.enqueue_sync(self.order.pk)
                tasks.pay.enqueue(self.order.pk)
                raise ZeroDivisionError
            self.assertEqual((run_due(), t.drain()), (0, 0))

    def test_a_test_leaves_no_jobs(self):
        tasks.note.enqueue_sync(self.order.pk)
        if connection.vendor == "postgresql":
            self.assertEqual(ids(), set())

    @override_settings(TASKS=MODES)
    def test_each_mode(self):
        for alias in ("elsewhere", "boxed"):
            far = app_of(alias)
            with self.subTest(alias), far.sync.testing() as t:
                with transaction.atomic():
                    sent = odd_tasks.echo.using(backend=alias).enqueue(1)
                self.assertEqual(t.drain(), 1)
                sent.refresh()
                self.assertEqual(sent.status, "SUCCESSFUL")
