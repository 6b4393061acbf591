"""`app.testing()` in a `TestCase` of Django, whose transaction is never committed: the end of the outermost block of
`atomic` that the code under test opens counts as its commit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.test import TestCase

from tests.django_alias import django_alias
from treadle import App
from treadle.testing.sync_app import SyncTesting

Body = Callable[[TestCase, SyncTesting], None]

app = App("postgresql://nobody@127.0.0.1:1/nowhere")  # a test does not connect to it


@app.task
def send(to: str) -> str:
    return to


@pytest.fixture
def alias(tmp_path: Path) -> Iterator[str]:
    with django_alias(tmp_path / "shop.db") as alias:
        yield alias


def in_test_case(alias: str, body: Body) -> None:
    ran: list[None] = []

    class Shop(TestCase):
        databases = frozenset({alias})

        def test_it(self) -> None:
            with app.sync.testing() as t:
                body(self, t)
            ran.append(None)

    Shop("test_it").debug()
    assert ran == [None]
    assert "savepoint_commit" not in vars(connections[alias])


def names(t: SyncTesting) -> list[str]:
    return [call.args[0] for call in t.enqueued(send)]


def test_a_block_that_has_ended_has_stored_its_jobs(alias: str) -> None:
    def body(case: TestCase, t: SyncTesting) -> None:
        with transaction.atomic(using=alias):
            job = send.options(within=connections[alias]).enqueue_sync("ada")
            assert names(t) == []
        assert names(t) == ["ada"]
        assert t.drain() == 1
        assert job.result_sync(timeout=0) == "ada"

    in_test_case(alias, body)


def test_the_outermost_block_counts(alias: str) -> None:
    def body(case: TestCase, t: SyncTesting) -> None:
        with transaction.atomic(using=alias):
            with transaction.atomic(using=alias):
                send.options(within=connections[alias]).enqueue_sync("inner")
            with contextlib.suppress(KeyError), transaction.atomic(using=alias):
                send.options(within=connections[alias]).enqueue_sync("lost")
                raise KeyError
            with transaction.atomic(using=alias, savepoint=False):
                send.options(within=connections[alias]).enqueue_sync("without a savepoint")
            assert names(t) == []
        assert names(t) == ["inner", "without a savepoint"]
        with contextlib.suppress(KeyError), transaction.atomic(using=alias):
            with transaction.atomic(using=alias):
                send.options(within=connections[alias]).enqueue_sync("lost with the outer one")
            raise KeyError
        assert len(names(t)) == 2

    in_test_case(alias, body)


def test_a_job_outside_of_a_block_is_stored_at_once(alias: str) -> None:
    def body(case: TestCase, t: SyncTesting) -> None:
        send.options(within=connections[alias]).enqueue_sync("ada")
        assert names(t) == ["ada"]

    in_test_case(alias, body)


def test_captured_callbacks_store_no_job_twice(alias: str) -> None:
    def body(case: TestCase, t: SyncTesting) -> None:
        with case.captureOnCommitCallbacks(using=alias, execute=True), transaction.atomic(using=alias):
            send.options(within=connections[alias], keep=60).enqueue_sync("ada")
        assert t.drain() == 1
        with case.captureOnCommitCallbacks(using=alias, execute=True), transaction.atomic(using=alias):
            send.options(within=connections[alias]).enqueue_sync("bob")
        assert (names(t), t.drain()) == (["ada", "bob"], 1)

    in_test_case(alias, body)
