"""Runners in other languages report the real costs of a run."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.test_children import call as call
from tests.server.test_children import claim, settle
from tests.server.test_children import url as url
from treadle_testkit.shows import shows

ASKED = {"task": "ask", "args": [], "limits": {"tokens:ann": 60, "requests": 1}}


async def started(call: Any) -> Any:
    """A claimed job that has reserved 60 tokens of 100."""
    for name, rate in (("tokens", 100), ("requests", 9)):
        status, answer = await call("PUT", f"/v1/limits/{name}", {"rate": rate, "per": 86_400})
        assert status == 200, answer
    for _ in range(2):
        status, answer = await call("POST", "/v1/jobs", ASKED)
        assert status in (200, 201), answer
    [row] = await claim(call, 1, limit=9)
    return row


async def used(call: Any) -> dict[str, int]:
    _, answer = await call("GET", "/v1/limits")
    return {use["key"]: use["starts"] for use in answer["limits"] if use["starts"]}


@shows("a runner in another language reports the real cost of a run")
@pytest.mark.parametrize(
    "end", [{"succeed": 1}, {"fail": "boom"}, {"abort": "no"}, {"defer": 60}, {"state": "succeeded", "result": "1"}]
)
async def test_a_report_has_the_real_cost(call: Any, end: dict[str, Any]) -> None:
    row = await started(call)
    assert await settle(call, row, spent=[["tokens:ann", 20]], **end) == "applied"
    assert await used(call) == {"tokens:ann": 20, "requests": 1}
    assert len(await claim(call, 2)) == 1


async def test_a_limit_that_the_job_does_not_name_is_refused(call: Any) -> None:
    row = await started(call)
    report = {"id": row["job"]["id"], "version": row["version"], "succeed": 1, "spent": [["tokens", 20]]}
    status, answer = await call("POST", "/v1/work/settle", {"outcomes": [report]})
    assert (status, answer["error"]) == (422, "bad_option")
    assert "found 'tokens'; its limits are tokens:ann, requests" in answer["message"]
    assert await used(call) == {"tokens:ann": 60, "requests": 1}
