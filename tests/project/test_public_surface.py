"""The names that users may touch. All others belong to the engine, and may change in any release."""

from __future__ import annotations

import builtins
import functools
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import treadle
import treadle.errors
import treadle.storage.contract
import treadle.storage.optional_parts
import treadle.testing
from treadle import App, Worker, current
from treadle.testing import drain, given_storage

HERE = "tests/project/test_public_surface.py"

TREADLE = """
    AIMD Abort AlreadyDecided AnswerTooLarge App Approval AskRefused Backlog BadArgument BadCodec BadDependency
    BadOption BadResult BadSession BadStep BadTask BadUrl BatchTask Chunk Conclude Context DefaultCodec Defer
    DependencyFailed Event Failure Flow ForeignRow IdTaken Job JobCancelled JobExpired JobFailed JobFilter
    JobNotDone JobSpec Key KeyHeld Keys LifespanFailed Limit Locked MailboxFull MayNotDecide Middleware NotADatabase
    OldRows Options Outbox Probes ProcessDied QueueFull Record Redrive RemoteFailure Reset Retry RunOutcome
    SchemaTooNew SchemaTooOld Signalled Sizes Stale State StepFailed StepMismatch StorageDenied StorageError
    StorageFull StorageMoved StorageUnavailable Task TooLarge TreadleError UnknownJob UnknownSchedule UnknownTask
    UnknownUpstream UnknownVersion Unsupported Worker WorkerHealth WorkflowFailed all_done all_succeeded at_least
    chain current current_batch depends flow gather
"""

SURFACE = {
    "App": """
        audit autodiscover batch close cron dead delayed_handler enqueue events every find_task jobs lifespan limits
        metrics middleware on open outbox override queues reducer release schedule schedules storage stub sync task
        tasks testing url workflows
    """,
    "Worker": "concurrency health name run running start stop",
    "current()": """
        after approve as_completed attempt call cancelled child_headers deadline error first headers id kind
        labels lock lost map memo on_undo once parent patched progress publish receive receive_ask record report
        restart set_memo sleep spent state step step_key stream sync task timeout transaction upstream version wait
        wait_for worker workflow
    """,
    "Task": "enqueue enqueue_sync function job kind late name options queue",
    "BatchTask": "enqueue enqueue_sync function job kind late max_wait name options queue size",
    "Job": "created ended ended_sync id result result_sync task workflow",
}

# classes that these objects take or return, and that no public module exports
REACHED = """
    AsCompleted Ask Audit BatchDecorator BatchOptions Bound Continuation Dead HasId Jobs Lifespan Limits Lock
    MetricsReader Once Portal Queues Scheduled Schedules Scope Step Stream Stub Synchronous TimeLimit Waiting When
    Workflow Workflows
"""


@pytest.fixture
async def shown() -> dict[str, Any]:
    """One object for each entry of SURFACE."""
    app, found = App("memory://"), list[Any]()

    @app.task
    async def look() -> None:
        found.append(current())

    @app.batch()
    async def many(items: list[int]) -> list[int]:
        return items

    job = await look.enqueue()
    await drain(app)
    await app.close()
    return {"App": app, "Worker": Worker(app), "current()": found[0], "Task": look, "BatchTask": many, "Job": job}


def names_of(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def compare(owner: str, found: set[str], listed: str) -> None:
    more, fewer = sorted(found - set(listed.split())), sorted(set(listed.split()) - found)
    assert not more, (
        f"{owner} shows {', '.join(more)}, which {HERE} does not list: begin the name with an underscore, or move it "
        "to the core behind it; if users are to use it, describe it in docs/ and list it"
    )
    assert not fewer, (
        f"{owner} has no {', '.join(fewer)}, which {HERE} lists: users may depend on it; if it was released and has "
        "to go, say in changes/ what to use instead; then remove it from the list"
    )


@pytest.mark.parametrize("owner", SURFACE)
async def test_an_object_shows_the_listed_names(owner: str, shown: dict[str, Any]) -> None:
    compare(owner, names_of(shown[owner]), SURFACE[owner])


def test_the_package_exports_the_listed_names() -> None:
    compare("treadle", set(treadle.__all__), TREADLE)
    loose = {name for name in names_of(treadle) if not isinstance(getattr(treadle, name), ModuleType)}
    compare("treadle", loose - {"annotations"}, TREADLE)


def test_lists_are_sorted() -> None:
    for listed in (TREADLE, REACHED, *SURFACE.values()):
        assert listed.split() == sorted(set(listed.split()))
    assert list(treadle.__all__) == TREADLE.split()


async def test_an_object_leads_to_no_class_of_the_engine(shown: dict[str, Any]) -> None:
    reached = set[str]()
    for owner, thing in shown.items():
        for name in sorted(names_of(thing)):
            for kind in classes_of(thing, name):
                if is_exported(kind):
                    continue
                reached.add(kind.__name__)
                assert kind.__name__ in REACHED.split(), (
                    f"{owner}.{name} leads to {kind.__module__}.{kind.__qualname__}, a class of the engine: take "
                    f"or return a public type; if users need it, describe it in docs/ and list it in REACHED of {HERE}"
                )
    stale = set(REACHED.split()) - reached
    assert not stale, f"no object leads to {', '.join(sorted(stale))}: remove it from REACHED of {HERE}"


def classes_of(thing: object, name: str) -> Iterator[type]:
    """The classes in the annotations of a method or property; of any other attribute, the class of its value."""
    member = inspect.getattr_static(thing, name)
    function = inspect.unwrap(member.fget if isinstance(member, property) else member)
    if not inspect.isfunction(function):
        yield type(getattr(thing, name))
        return
    for hint in function.__annotations__.values():
        for word in re.findall(r"[A-Za-z_][\w.]*", re.sub(r"""(['"])\w*\1""", "", hint)):
            found = resolved(word, function.__globals__)
            if isinstance(found, type):
                yield found


def resolved(word: str, known: dict[str, Any]) -> object:
    """The object that an annotation names. Names imported for type checkers only are public ones."""
    first, *rest = word.split(".")
    scopes = known, vars(builtins), loaded(treadle), loaded(treadle.testing), vars(given_storage)
    scope = next(names for names in scopes if first in names)
    found = scope[first]
    for part in rest:
        found = getattr(found, part)
    return found


def is_exported(kind: type) -> bool:
    modules = (treadle, treadle.errors, treadle.testing, treadle.storage.contract, treadle.storage.optional_parts)
    inside = kind.__module__.partition(".")[0] == "treadle"
    return not inside or any(loaded(module).get(kind.__name__) is kind for module in modules)


@functools.cache
def loaded(module: ModuleType) -> dict[str, Any]:
    """The names of a module, with those that it imports at their first use."""
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
    return dict(vars(module))
