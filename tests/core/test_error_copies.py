"""Errors are copied and pickled with their fields, for example from a process pool of the user."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from treadle import Abort, Defer, errors
from treadle.admin.storage_move import AlreadyMoved
from treadle.errors import TreadleError
from treadle.testing import NotEmpty

DONE = ("j1", "mail", "aborted", "ValueError: no")
FIELDS: dict[str, tuple[Any, ...]] = {
    "AnswerTooLarge": ("a server", 10, "jobs", "ask for less"),
    "BadArgument": ("mail", "to", "is missing"),
    "BadDependency": ("shop.session", "depends on itself"),
    "BadOption": ("delay", "expected 0 or more, found -1"),
    "BadResult": ("mail", "cannot be stored"),
    "BadSession": ("a Connection", "it is closed"),
    "BadStep": ("charge", "its name is too long"),
    "DependencyFailed": ("shop.pool", "failed before the first claim"),
    "ForeignRow": ("j1", "a", "b"),
    "IdTaken": ("j1", None, "mail", True),
    "JobCancelled": DONE,
    "JobExpired": DONE,
    "JobFailed": DONE,
    "JobNotDone": DONE,
    "KeyHeld": ("key", "j1"),
    "AlreadyDecided": ("r1", "refund", True, "ann", "lost", 1_700_000_000.0),
    "MayNotDecide": ("r1", "refund", "group:finance", "bob"),
    "QueueFull": ("mail", 100, 99, 2),
    "LifespanFailed": ("shop.resources", "ended without a yield"),
    "Locked": ("postgresql://b/shop", "the key '42'", ["j1"], 4711, "shop", 40.0, "idle in transaction"),
    "ProcessDied": ("mail", -9, "SIGKILL"),
    "RemoteFailure": ("ValueError", "builtins", "no", "Traceback ..."),
    "ResourceFailed": ("shop.pool", "failed"),
    "SchemaTooNew": (9, 3),
    "SchemaTooOld": (1, 3, "jobs.db"),
    "MailboxFull": ("j1", "add", 1_000),
    "AskRefused": ("j1", "add", "no"),
    "Signalled": ("j1", "paid"),
    "Stale": ("j1", "running"),
    "StepFailed": ("charge", "Declined", "no money"),
    "StepMismatch": ("j1", "charge", "", "ship"),
    "StorageMoved": ("sqlite:///a.db", "redis://b"),
    "TooLarge": ("the payload", 20, 10),
    "UnknownJob": ("j1",),
    "UnknownSchedule": ("nightly", "daily"),
    "UnknownTask": ("mial", ("mail",), "mail"),
    "UnknownVersion": ("j1", "mail", 1, (2, 3)),
    "UnknownUpstream": ("j1", "j2"),
    "Unsupported": ("memory", "sessions", "use SQLite"),
    "WorkflowFailed": (*DONE, [errors.JobFailed(*DONE), errors.JobExpired(*DONE)]),
}
NAMED = [
    getattr(errors, name)(*FIELDS.get(name, ("the reason",)))
    for name in errors.__all__
    if name[0] != "_" and isinstance(getattr(errors, name), type)
]
OTHERS = [Abort("no"), Defer(3), AlreadyMoved("moved"), NotEmpty("a", "2 jobs", "empty it")]
ROUND_TRIPS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda error: pickle.loads(pickle.dumps(error)),
}


def shown(error: BaseException) -> tuple[Any, ...]:
    inner = [shown(each) for each in error.exceptions] if isinstance(error, ExceptionGroup) else []
    fields = {name: value for name, value in vars(error).items() if name != "failures"}
    return type(error), str(error), [] if inner else error.args, fields, inner


@pytest.mark.parametrize("how", ROUND_TRIPS)
@pytest.mark.parametrize("error", [*NAMED, *OTHERS], ids=lambda error: type(error).__name__)
def test_a_copy_has_the_class_the_message_and_the_fields(error: Exception, how: str) -> None:
    error.add_note("seen in a test")
    assert shown(ROUND_TRIPS[how](error)) == shown(error)


def test_every_error_with_an_init_of_its_own_is_in_the_table() -> None:
    found = {
        name
        for name in errors.__all__
        if isinstance(kind := getattr(errors, name), type)
        and issubclass(kind, TreadleError)
        and "__init__" in vars(kind)
    }
    assert found <= FIELDS.keys()


def test_a_copied_workflow_failure_still_splits() -> None:
    error: Any = pickle.loads(pickle.dumps(errors.WorkflowFailed(*FIELDS["WorkflowFailed"])))
    expired, rest = error.split(errors.JobExpired)
    assert [type(each.exceptions[0]) for each in (expired, rest)] == [errors.JobExpired, errors.JobFailed]
    assert (expired.id, rest.task) == ("j1", "mail")
