"""Tests as users write them: `manage.py test` runs them in the transaction of each TestCase."""

import logging
import sys

import django
from django.db import connection, transaction
from django.test import TestCase

from shop import tasks
from shop.models import Order
from treadle import Retry
from treadle.errors import KeyHeld
from treadle.integrations.django import app
from treadle.integrations.django.testing import Runaway, run_due

if django.VERSION >= (6, 0):
    from django.tasks import default_task_backend
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
else:
    from django_tasks import default_task_backend
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started

logging.disable(logging.CRITICAL)


class Jobs(TestCase):
    def setUp(self):
        self.order = Order.objects.create(what="a boat")

    def test_a_job_runs_in_the_transaction_of_the_test(self):
        sent = tasks.send.enqueue(self.order.pk, to="ada")
        self.assertEqual((sent.status, sent.args, sent.kwargs), ("READY", [self.order.pk], {"to": "ada"}))
        self.assertEqual(run_due(), 1)
        sent.refresh()
        self.assertEqual(sent.return_value, "a boat for ada")
        self.assertEqual(run_due(), 0)

    def test_a_test_sees_no_jobs_of_the_one_before(self):
        self.assertEqual(run_due(), 0)

    def test_async_tasks_use_the_connection_of_the_test(self):
        tasks.apay.enqueue(self.order.pk)
        self.assertEqual(run_due(), 1)
        self.order.refresh_from_db()
        self.assertEqual(self.order.paid, 1)

    def test_tasks_of_the_app_run_in_the_transaction_of_the_test(self):
        with app.sync.testing() as t:
            tasks.note.enqueue_sync(self.order.pk)
            self.assertEqual(run_due(), 0)  # it knows the jobs of Django's tasks only
            self.assertEqual(t.drain(), 1)
        self.order.refresh_from_db()
        self.assertEqual(self.order.paid, 1)

    def test_jobs_that_jobs_enqueue_run_too(self):
        tasks.chained.enqueue(3)
        self.assertEqual(run_due(), 7)
        self.order.refresh_from_db()
        self.assertEqual(self.order.paid, 3)

    def test_a_loop_of_jobs_ends(self):
        tasks.chained.enqueue(100)
        with self.assertRaisesMessage(Runaway, "10 jobs were run"):
            run_due(limit=10)

    def test_a_rollback_takes_the_job_with_it(self):
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            inside = tasks.pay.enqueue(self.order.pk)
            inside.refresh()
            raise ZeroDivisionError
        self.assertEqual(run_due(), 0)
        with self.assertRaises(TaskResultDoesNotExist):
            inside.refresh()

    def test_a_savepoint_takes_only_its_own_jobs(self):
        with transaction.atomic():
            kept = tasks.pay.enqueue(self.order.pk)
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                tasks.pay.enqueue(self.order.pk)
                raise ZeroDivisionError
        self.assertEqual(run_due(), 1)
        kept.refresh()
        self.assertEqual(kept.status, "SUCCESSFUL")

    def test_a_failed_task_has_its_error(self):
        failed = tasks.fails.using(retry=Retry(attempts=2, base=0)).enqueue()
        self.assertEqual(run_due(), 2)
        failed.refresh()
        self.assertEqual((failed.status, failed.attempts, len(failed.errors)), ("FAILED", 2, 2))
        self.assertIs(failed.errors[-1].exception_class, tasks.OutOfStock)
        self.assertIn("Traceback", failed.errors[-1].traceback)
        with self.assertRaisesMessage(ValueError, "Task failed"):
            failed.return_value  # noqa: B018
        with self.assertRaises(tasks.OutOfStock):
            tasks.fails.using(retry=Retry(attempts=1)).enqueue()
            run_due(raise_errors=True)

    def test_ctrl_c_in_a_task_ends_the_test(self):
        sent = tasks.interrupted.enqueue()
        with self.assertRaises(KeyboardInterrupt):
            run_due()
        sent.refresh()
        self.assertEqual(sent.status, "READY")

    def test_a_retry_with_a_delay_stays(self):
        failed = tasks.fails.using(retry=Retry(attempts=2, base=60)).enqueue()
        self.assertEqual((run_due(), run_due()), (1, 0))
        failed.refresh()
        self.assertEqual((failed.status, failed.attempts), ("READY", 1))

    def test_the_context_of_a_task(self):
        asked = tasks.whoami.enqueue("x")
        run_due()
        asked.refresh()
        self.assertEqual(asked.return_value, [asked.id, 1, "RUNNING", ["x"]])

    def test_a_key_is_held_until_the_job_has_ended(self):
        first = tasks.pay.using(key="order").enqueue(self.order.pk)
        second = tasks.pay.using(key="order").enqueue(self.order.pk)
        self.assertEqual(first.id, second.id)
        self.assertEqual(run_due(), 1)
        self.assertNotEqual(tasks.pay.using(key="order").enqueue(self.order.pk).id, first.id)
        from treadle import Key

        with self.assertRaises(KeyHeld):
            tasks.pay.using(key=Key("order", conflict="raise")).enqueue(self.order.pk)
        self.order.refresh_from_db()  # the transaction continues

    def test_receivers_are_called_and_their_errors_change_nothing(self):
        seen = []

        def receive(signal, task_result, sender, **kwargs):
            seen.append((task_result.status, sys.exc_info()[0]))
            raise ZeroDivisionError("a receiver that raises changes nothing")

        for signal in (task_enqueued, task_started, task_finished):
            signal.connect(receive)
            self.addCleanup(signal.disconnect, receive)
        paid = tasks.pay.enqueue(self.order.pk)
        failed = tasks.fails.using(retry=Retry(attempts=1)).enqueue()
        run_due()
        paid.refresh()
        failed.refresh()
        self.assertEqual((paid.status, failed.status), ("SUCCESSFUL", "FAILED"))
        self.assertEqual(
            [status for status, _ in seen], ["READY", "READY", "RUNNING", "SUCCESSFUL", "RUNNING", "FAILED"]
        )
        self.assertEqual([error for _, error in seen], [None] * 5 + [tasks.OutOfStock])

    def test_the_number_of_queries(self):
        tasks.pay.enqueue(self.order.pk)
        with self.assertNumQueries(0):  # none of Django's: the job goes over the driver's connection
            tasks.pay.enqueue(self.order.pk)
        self.assertTrue(connection.in_atomic_block)
        self.assertEqual(default_task_backend.app.storage.capabilities.transactions, True)
