"""The server matches its own description: no request of schemathesis gets a 5xx, or an answer against its schema."""

from __future__ import annotations

import json
import os
import urllib.request

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests.served import memory_url
from treadle import App
from treadle.server import Settings
from treadle.server.app import operations_of
from treadle.server.longpoll import LongPoll

URL = ""
EXAMPLES = int(os.environ.get("TREADLE_EXAMPLES", "5"))  # for each call; 60 were tried


def _document() -> dict[str, object]:
    global URL
    if not URL:
        URL = memory_url(None, Settings(max_wait=0.05, timeout=5))
    with urllib.request.urlopen(f"{URL}/v1/openapi.json") as answer:
        found: dict[str, object] = json.load(answer)
    return found


checks = [not_a_server_error, status_code_conformance, response_schema_conformance]


def _labels() -> list[str]:
    app = App("memory://")._core
    site = operations_of(app, Settings(), LongPoll(lambda: app.storage))
    return [f"{each.method} {each.path}" for each in site if not each.path.endswith("/events")]  # a stream has no end


@pytest.mark.slow
@pytest.mark.parametrize("label", _labels())
def test_every_call_answers_by_its_schema(label: str) -> None:
    schema = schemathesis.openapi.from_dict(_document())
    method, path = label.split()
    operation = schema[path][method]

    @settings(
        max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
    )
    @given(operation.as_strategy())
    def check(case: schemathesis.Case) -> None:
        case.call_and_validate(base_url=URL, checks=checks, timeout=20)

    check()


def test_every_operation_is_described() -> None:
    paths = _document()["paths"]
    assert isinstance(paths, dict)
    assert {"/v1/jobs", "/v1/jobs/{id}/events", "/v1/work/claim", "/v1/queues/{name}/pause"} <= paths.keys()


def test_the_page_of_the_document_loads_nothing_from_other_hosts() -> None:
    _document()
    with urllib.request.urlopen(f"{URL}/docs") as answer:
        text = answer.read().decode()
    assert "http://" not in text
    assert "https://" not in text
    assert "openapi.json" in text
