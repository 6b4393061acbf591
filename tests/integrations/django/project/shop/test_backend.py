"""The promises that Django's own tests make for a backend, in words of our own, over Treadle."""

import copy
import json
import logging
import pickle
import sys
from datetime import timedelta

import django
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings
from django.utils import timezone

from shop import odd_tasks, tasks
from shop.models import Order
from shop.odd_tasks import once
from treadle.errors import BadSession, JobFailed
from treadle.integrations.django import TreadleBackend, TreadleTask, app_of
from treadle.integrations.django.compat import LOGGER
from treadle.integrations.django.testing import run_due

if django.VERSION >= (6, 0):
    from django.tasks import TaskResultStatus, default_task_backend, task_backends
    from django.tasks.base import Task
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist, TaskResultMismatch
    from django.tasks.signals import task_enqueued
else:
    from django_tasks import TaskResultStatus, default_task_backend, task_backends
    from django_tasks.base import Task
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
    from django_tasks.signals import task_enqueued


class Backend(TestCase):
    def test_the_backend_lists_its_features(self):
        backend = default_task_backend
        self.assertIsInstance(task_backends["default"], TreadleBackend)
        self.assertTrue(backend.supports_defer)
        self.assertTrue(backend.supports_async_task)
        self.assertTrue(backend.supports_get_result)
        self.assertTrue(backend.supports_priority)
        self.assertIs(backend.task_class, TreadleTask)

    def test_a_result_before_and_after(self):
        for task in (odd_tasks.echo, odd_tasks.aecho):
            with self.subTest(task.name):
                sent = task.enqueue(1, two="three")
                self.assertEqual(sent.status, TaskResultStatus.READY)
                self.assertFalse(sent.is_finished)
                self.assertIsNotNone(sent.enqueued_at)
                self.assertEqual((sent.started_at, sent.last_attempted_at, sent.finished_at), (None, None, None))
                self.assertEqual((sent.args, sent.kwargs, sent.attempts), ([1], {"two": "three"}, 0))
                self.assertEqual(sent.task, task)
                with self.assertRaisesMessage(ValueError, "Task has not finished yet"):
                    sent.return_value  # noqa: B018
                run_due()
                sent.refresh()
                self.assertTrue(sent.is_finished)
                self.assertEqual((sent.status, sent.return_value), ("SUCCESSFUL", [[1], {"two": "three"}]))
                self.assertEqual((sent.errors, sent.attempts, len(sent.worker_ids)), ([], 1, 1))
                self.assertLessEqual(sent.enqueued_at, sent.started_at)
                self.assertLessEqual(sent.started_at, sent.finished_at)
                self.assertEqual(sent.started_at, sent.last_attempted_at)

    def test_async_forms_enqueue_and_read_results(self):
        async def enqueue():
            sent = await odd_tasks.echo.aenqueue("a")
            await sent.arefresh()
            return sent, await odd_tasks.echo.aget_result(sent.id)

        sent, found = async_to_sync(enqueue)()
        self.assertEqual((sent.id, sent.status, found.args), (found.id, "READY", ["a"]))

    def test_arguments_become_json(self):
        sent = odd_tasks.echo.enqueue((1, 2), {"a": b"text"}, status=TaskResultStatus.READY)
        self.assertEqual((sent.args, sent.kwargs), ([[1, 2], {"a": "text"}], {"status": "READY"}))
        run_due()
        sent.refresh()
        self.assertEqual(sent.return_value, [[[1, 2], {"a": "text"}], {"status": "READY"}])
        for value in (object(), {1, 2}, timezone.now(), b"\xff"):
            with self.subTest(value), self.assertRaises((TypeError, ValueError)):
                odd_tasks.echo.enqueue(value)

    def test_arguments_with_names_of_our_parameters_reach_the_task(self):
        sent = odd_tasks.echo.enqueue(args=[1], kwargs={}, task="b", name="c", options={"$type": "d"})
        run_due()
        sent.refresh()
        self.assertEqual(sent.return_value[1]["options"], {"$type": "d"})
        self.assertEqual(sorted(sent.kwargs), ["args", "kwargs", "name", "options", "task"])

    def test_a_failed_task_has_its_error(self):
        for task, error, text in (
            (odd_tasks.deep, ValueError, "This Task failed due to ValueError"),
            (odd_tasks.unstorable, TypeError, "object"),
            (odd_tasks.exits, SystemExit, "no"),
        ):
            with self.subTest(task.name):
                sent = task.using(**once).enqueue()
                run_due()
                sent.refresh()
                self.assertEqual((sent.status, len(sent.errors), sent.attempts), ("FAILED", 1, 1))
                self.assertIs(sent.errors[0].exception_class, error)
                self.assertIn(text, sent.errors[0].traceback)
                self.assertTrue(sent.errors[0].traceback.startswith("Traceback (most recent call last):"))
                self.assertTrue(sent.errors[0].traceback.splitlines()[-1].startswith(error.__name__))
                self.assertTrue(sent.errors[0].traceback.endswith("\n"))
                with self.assertRaisesMessage(ValueError, "Task failed"):
                    sent.return_value  # noqa: B018

    def test_the_class_of_an_error(self):
        for kind, error in (
            ("lines", ValueError),
            ("nested", JobFailed),  # no path leads to a class within a class
            ("chained", JobFailed),
            ("local", JobFailed),
            ("silent", odd_tasks.Silent),  # its text raises
            ("group", ExceptionGroup),
            ("other", json.JSONDecodeError),
        ):
            with self.subTest(kind):
                sent = odd_tasks.raises.using(**once).enqueue(kind)
                run_due()
                sent.refresh()
                self.assertIs(sent.errors[0].exception_class, error)
        self.assertNotIn("antigravity", sys.modules)

    def test_django_logs_the_states_of_a_task(self):
        logging.disable(logging.NOTSET)
        self.addCleanup(logging.disable, logging.CRITICAL)
        for task, ending in ((odd_tasks.echo, "state=SUCCESSFUL"), (odd_tasks.deep, "state=FAILED")):
            with self.subTest(task.name), self.assertLogs(LOGGER, "DEBUG") as lines:
                sent = task.using(**once).enqueue()
                run_due()
            self.assertEqual(len(lines.output), 3)
            for line, word in zip(lines.output, ("enqueued", "state=RUNNING", ending), strict=True):
                self.assertIn(sent.id, line)
                self.assertIn(word, line)
                self.assertNotIn("NoneType", line)
        self.assertIn("This Task failed due to ValueError", lines.output[-1])

    def test_a_task_is_checked_again_when_it_is_enqueued(self):
        mail = odd_tasks.echo.using(queue_name="mail")
        only = {"BACKEND": "treadle.integrations.django.TreadleBackend", "QUEUES": ["default"]}
        with (
            override_settings(TASKS={"default": only}),
            self.assertRaisesMessage(InvalidTask, "Queue 'mail' is not valid for backend"),
        ):
            mail.enqueue()

    def test_wrong_arguments_fail_when_the_task_runs(self):
        sent = odd_tasks.urgent.using(**once).enqueue("one too many")
        run_due()
        sent.refresh()
        self.assertIs(sent.errors[0].exception_class, TypeError)

    def test_a_cancelled_job_is_a_failed_result(self):
        sent = odd_tasks.echo.enqueue()
        from treadle.core.model import Outcome, State
        from treadle.integrations.django.database_app import connection_of, store_of
        from treadle.storage.user_session import at_once

        store = store_of("default")
        at_once(
            store.app._core.bound(connection_of(store)).settle(
                [Outcome(id=sent.id, version=0, state=State.CANCELLED, reason="asked")]
            )
        )
        sent.refresh()
        self.assertEqual((sent.status, sent.errors[0].exception_class.__name__), ("FAILED", "JobCancelled"))
        self.assertEqual(run_due(), 0)

    def test_results_that_are_not_there(self):
        for id in ("", "unknown", "a b", "'; DROP TABLE job", "x" * 300, "\0"):
            with self.subTest(id), self.assertRaises(TaskResultDoesNotExist):
                default_task_backend.get_result(id)
        sent = odd_tasks.echo.enqueue()
        with self.assertRaises(TaskResultMismatch):
            tasks.pay.get_result(sent.id)
        job = app_of().stub("shop.tasks.renamed").job()
        app_of().sync.enqueue(job, within=connection)
        with self.assertRaisesMessage(TaskResultDoesNotExist, "this code has no Django task 'shop.tasks.renamed'"):
            default_task_backend.get_result(job.id)

    def test_priority_queue_and_time(self):
        later = timezone.now() + timedelta(hours=1)
        sent = odd_tasks.urgent.using(run_after=later, priority=-7).enqueue()
        found = odd_tasks.urgent.get_result(sent.id)
        self.assertEqual((found.task.priority, found.task.queue_name, found.task.backend), (-7, "mail", "default"))
        self.assertLess(abs(found.task.run_after - later), timedelta(seconds=5))
        self.assertEqual(run_due(), 0)
        self.assertEqual(odd_tasks.urgent.get_result(odd_tasks.urgent.enqueue().id).task.priority, 5)

    def test_a_task_may_change_its_backend(self):
        self.assertEqual(odd_tasks.echo.using(backend="plain").enqueue(1).backend, "plain")
        self.assertEqual(odd_tasks.echo.using(backend="plain").using(backend="default").enqueue(1).backend, "default")

    def test_tasks_can_be_copied(self):
        changed = odd_tasks.echo.using(priority=3, key="k")
        self.assertEqual(copy.copy(changed).options, {"key": "k"})
        if django.VERSION >= (6, 1):  # a task of 6.0 cannot be pickled
            self.assertEqual(pickle.loads(pickle.dumps(changed)), changed)

    def test_the_signal_comes_after_the_row(self):
        seen = []

        def receive(sender, task_result, **kwargs):
            seen.append((sender, default_task_backend.get_result(task_result.id).status))

        task_enqueued.connect(receive)
        self.addCleanup(task_enqueued.disconnect, receive)
        odd_tasks.echo.enqueue()
        self.assertEqual(seen, [(TreadleBackend, "READY")])

    def test_options_of_the_decorator_and_of_using(self):
        if not hasattr(odd_tasks, "decorated"):
            self.skipTest("Django 6.0 passes no options from the decorator")
        sent = odd_tasks.decorated.enqueue()
        run_due()
        sent.refresh()
        self.assertEqual((sent.status, sent.attempts), ("FAILED", 2))
        own = odd_tasks.decorated.using(**once).enqueue()
        run_due()
        own.refresh()
        self.assertEqual(own.attempts, 1)
        self.assertEqual(app_of().tasks["shop.odd_tasks.decorated"]._core.timeout, 30)

    @override_settings(USE_TZ=False)
    def test_times_are_naive_without_time_zones(self):
        sent = odd_tasks.echo.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
        self.assertIsNone(sent.enqueued_at.tzinfo)
        self.assertIsNone(odd_tasks.echo.get_result(sent.id).enqueued_at.tzinfo)
        self.assertEqual(run_due(), 0)


class CommitsInATest(TestCase):
    """The transaction of a TestCase holds what its test stores, whatever `commit` says, and nothing waits for it."""

    def test_commit_after_enqueues_at_the_commit(self):
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            sent = odd_tasks.echo.using(backend="after").enqueue(1)
            self.assertEqual(run_due(), 0)
        self.assertEqual(run_due(), 1)
        sent.refresh()
        self.assertEqual(sent.status, "SUCCESSFUL")

    def test_commit_now_enqueues_at_once(self):
        with transaction.atomic():
            odd_tasks.echo.using(backend="now").enqueue(1)
        self.assertEqual(run_due(), 1)

    def test_a_test_leaves_no_jobs(self):
        self.assertEqual(run_due(), 0)


class Commits(TransactionTestCase):
    def test_commit_now_enqueues_at_once(self):
        echo = odd_tasks.echo.using(backend="now")
        self.assertEqual(echo.enqueue(1).status, "READY")
        try:
            with transaction.atomic():
                kept = echo.enqueue(2)
                raise ZeroDivisionError
        except ZeroDivisionError:
            kept.refresh()
            self.assertEqual(connection.vendor, "postgresql")
        except BadSession as error:
            self.assertIn("enqueue before or after it", str(error))
            self.assertEqual(connection.vendor, "sqlite")
        app_of("now").sync.close()

    def test_commit_after_enqueues_at_the_commit(self):
        echo = odd_tasks.echo.using(backend="after")
        with transaction.atomic():
            sent = echo.enqueue(1)
            self.assertEqual((sent.status, sent.enqueued_at), ("READY", None))
            with self.assertRaises(TaskResultDoesNotExist):
                sent.refresh()
        sent.refresh()
        self.assertIsNotNone(sent.enqueued_at)
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            lost = echo.enqueue(2)
            raise ZeroDivisionError
        with self.assertRaises(TaskResultDoesNotExist):
            lost.refresh()
        self.assertIsNotNone(echo.enqueue(3).enqueued_at)  # outside of a transaction it is stored at once
        transaction.set_autocommit(False)
        try:  # Django has no on_commit for a transaction that it does not manage
            with self.assertRaises(transaction.TransactionManagementError):
                echo.enqueue(4)
        finally:
            transaction.set_autocommit(True)
        app_of("after").sync.close()

    def test_a_backend_of_another_storage_enqueues_there(self):
        echo = odd_tasks.echo.using(backend="elsewhere")
        with transaction.atomic():
            Order.objects.create(what="a boat")
            sent = echo.enqueue(1)
        sent.refresh()
        self.assertEqual(len(app_of("elsewhere").sync.jobs.list().records), 1)
        app_of("elsewhere").sync.close()

    def test_an_outbox_stores_jobs_with_the_commit(self):
        echo, app = odd_tasks.echo.using(backend="boxed"), app_of("boxed")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            echo.enqueue(1)
            raise ZeroDivisionError
        with transaction.atomic():
            sent = echo.enqueue(2)
            sent.refresh()
        sent.refresh()  # it is in the outbox, and not delivered yet
        self.assertEqual((sent.status, sent.args), ("READY", [2]))
        self.assertEqual([row.id for row in app.sync.call(app.outbox.list())], [sent.id])
        with transaction.atomic():
            with self.assertRaises(ZeroDivisionError), transaction.atomic():
                echo.enqueue(3)
                raise ZeroDivisionError
            last = echo.enqueue(4)
        relay = app.outbox._relay(app._core.opened)
        app.sync.call(relay.everything())
        self.assertEqual(app.sync.call(app.outbox.list()), [])
        self.assertEqual({row.job.id for row in app.sync.jobs.list().records}, {sent.id, last.id})
        sent.refresh()
        self.assertEqual((sent.status, sent.args), ("READY", [2]))
        app.sync.close()

    def test_same_without_a_transaction(self):
        sent = odd_tasks.echo.enqueue(1)
        sent.refresh()
        self.assertEqual(sent.status, "READY")
        self.assertEqual(run_due(), 1)


class Invalid(SimpleTestCase):
    def test_invalid_tasks_are_refused(self):
        def local(): ...

        class Shop:
            def method(self): ...

        for function in (local, Shop().method, len, lambda: None):
            with self.subTest(function), self.assertRaises(InvalidTask):
                TreadleTask(func=function, **odd_tasks.REQUIRED)
        for change in (
            {"priority": 101},
            {"priority": -101},
            {"priority": 1.5},
            {"queue_name": "unknown"},
            {"run_after": timezone.make_naive(timezone.now())},
            {"timeout": -1},
            {"retry": 3},
            {"limits": "smtp"},
            {"labels": [""]},
            {"delay": 3},
            {"queue": "mail"},
            {"run_at": timezone.now()},
            {"inline": True},
            {"within": None},
        ):
            with self.subTest(change), self.assertRaises(InvalidTask):
                odd_tasks.echo.using(**change)
        with self.assertRaisesMessage(InvalidTask, "did you mean timeout="):
            odd_tasks.echo.using(time_limit=3)
        with self.assertRaisesMessage(InvalidTask, "use run_after="):
            odd_tasks.echo.using(delay=3)

    def test_a_task_of_another_class(self):
        self.assertIsInstance(Task(func=odd_tasks.echo.func, **odd_tasks.REQUIRED), Task)
