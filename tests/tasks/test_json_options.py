"""An option of a job is offered in Python, over HTTP and on the command line, with one description, and in the guide.

An option that is not offered everywhere is named in `PYTHON_ONLY` or `NOT_IN_CLI`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from msgspec import Struct
from msgspec.structs import fields, replace

from treadle import App, Key, Retry
from treadle.cli.enqueue import enqueue
from treadle.core.model import NewJob
from treadle.policy.retry import DEFAULT
from treadle.server.views import JobAsked, spec_of
from treadle.storage.memory import MemoryStorage
from treadle.tasks.json_options import (
    DESCRIPTIONS,
    JobOptions,
    KeyAsked,
    RetryAsked,
    WhenAsked,
)
from treadle.tasks.options import NAMES
from treadle.tasks.when import When
from treadle.testing import HandClock

GUIDE: Final = Path(__file__).resolve().parents[2] / "docs/guides/options.md"
JSON: Final = frozenset(JobOptions.__struct_fields__)
CALL: Final = ["task", "args", "kwargs"]  # the fields of a request that are not options

# Options that are not offered everywhere. All others are the same in Python, over HTTP and for `treadle enqueue`.
PYTHON_ONLY: Final = frozenset({"inline", "within"})  # they concern the process that enqueues
NOT_IN_CLI: Final = frozenset(  # they belong to a task or to a program; a person rarely sets them for one job
    {
        "run_at",
        "deadline",
        "retry",
        "lease",
        "max_lost",
        "cost",
        "aging",
        "keep",
        "keep_failed",
        "when",
        "wait_timeout",
        "pass_result",
    }
)

GIVEN: Final[dict[str, object]] = {  # a value of each option, as JSON, that is not the default
    "queue": "mail",
    "priority": 3,
    "delay": 5,
    "run_at": 2_000_000_000,
    "deadline": 2_000_000_000,
    "expires": 60,
    "timeout": 7,
    "retry": {"attempts": 2, "base": 3, "factor": 4, "max": 50, "jitter": 0.25},
    "lease": 9,
    "max_lost": 1,
    "key": {"key": "k", "conflict": "raise", "window": 8, "until": "started", "shared": True},
    "lane": "tenant",
    "limits": ["api"],
    "cost": 2,
    "aging": 11,
    "keep": 70,
    "keep_failed": 80,
    "after": ["j0"],
    "when": {"required": 1, "of": "done"},
    "wait_timeout": 12,
    "pass_result": True,
    "labels": ["x"],
    "headers": {"h": "v"},
    "id": "j1",
}
NEEDS: Final = {  # options that have an effect only together with another one
    "cost": ("limits",),
    "when": ("after",),
    "wait_timeout": ("after",),
    "pass_result": ("after",),
}


def test_http_offers_every_option_that_is_not_for_python_alone() -> None:
    assert JSON == NAMES - PYTHON_ONLY
    assert list(JobAsked.__struct_fields__) == [*CALL, *JobOptions.__struct_fields__]


def test_the_command_line_offers_every_option_that_is_not_left_out() -> None:
    offered = {option.name: option.help for option in typed()}
    assert offered == {name: DESCRIPTIONS[name] for name in JSON - NOT_IN_CLI}


def typed() -> list[Any]:
    """The options of `treadle enqueue` that are options of the job."""
    return [each for each in enqueue.params if each.name in NAMES]


def test_names_left_out_are_options() -> None:
    assert NOT_IN_CLI < JSON
    assert PYTHON_ONLY < NAMES


def test_the_guide_has_a_row_for_each_option() -> None:
    table = GUIDE.read_text().partition("| option |")[2].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(NAMES)


def test_openapi_shows_the_descriptions() -> None:
    shown = msgspec.json.schema(JobAsked)["$defs"]["JobAsked"]["properties"]
    assert {name: shown[name]["description"] for name in JSON} == DESCRIPTIONS
    assert all(shown[name]["description"] for name in CALL)


@pytest.mark.parametrize("name", sorted(JSON))
def test_a_description_is_a_phrase_with_its_default(name: str) -> None:
    assert re.fullmatch(r"[A-Z].+\. \[default: .+\]", DESCRIPTIONS[name])


@pytest.mark.parametrize("name", [each.name for each in fields(JobOptions) if "float" in str(each.type)])
def test_the_description_of_a_duration_or_time_has_its_unit(name: str) -> None:
    assert "econds" in DESCRIPTIONS[name]


def test_a_stated_default_is_the_default() -> None:
    job = NewJob(id="j")
    stated = {name: text.rpartition("[default: ")[2].removesuffix("]") for name, text in DESCRIPTIONS.items()}
    for name in ("queue", "priority", "delay", "aging", "keep", "keep_failed"):
        assert stated[name] == str(getattr(job, name)).removesuffix(".0")
    assert stated["retry"] == f"{DEFAULT.attempts} attempts"
    for field in fields(RetryAsked):
        described = field.type.__metadata__[0].description
        assert described.endswith(f"[default: {str(getattr(DEFAULT, field.name)).removesuffix('.0')}]")


@pytest.mark.parametrize(("asked", "kind"), [(KeyAsked, Key), (RetryAsked, Retry), (WhenAsked, When)])
def test_an_object_has_the_fields_of_its_class(asked: type[Struct], kind: type[Struct]) -> None:
    assert asked.__struct_fields__ == kind.__struct_fields__


@pytest.mark.parametrize("name", sorted(JSON - {"id"}))
def test_an_option_of_a_request_reaches_the_row(name: str) -> None:
    others = {each: GIVEN[each] for each in ("id", *NEEDS.get(name, ()))}
    assert row(others | {name: GIVEN[name]}) != row(others)


def test_the_id_of_a_request_is_the_id_of_the_row() -> None:
    assert row({"id": "j1"}).id == "j1"


def row(given: dict[str, object]) -> NewJob:
    """The row of a job with these options, of a task that the app does not have."""
    clock = HandClock(1_000_000.0)
    asked = msgspec.json.decode(msgspec.json.encode({"task": "t", **given}), type=JobAsked)
    return replace(spec_of(App(storage=MemoryStorage(clock), clock=clock)._core, asked).new, nonce=None)
