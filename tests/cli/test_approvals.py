"""Requests for approval on the command line."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.cli.test_cli import Run, cli, here  # noqa: F401
from treadle import App, current
from treadle.admin.approval_links import read_link, secret_of
from treadle.testing import drain


def asked(*names: str, result: str = "") -> Any:
    """A job `one` asks for these decisions; with `result`, its result after they were made."""

    async def run() -> Any:
        async with App("sqlite:///treadle.db") as app:

            @app.task(name="refund")
            async def refund() -> list[Any]:
                waits = [
                    current().approve(name, by="group:finance", show={"amount": 99, "token": "t0ps"}) for name in names
                ]
                return [[one.approved, one.by, one.reason] for one in await asyncio.gather(*waits)]

            await refund.options(id="one").enqueue()
            await drain(app)
            return await (await app.jobs.handle("one")).result(0) if result else None

    return asyncio.run(run())


def test_a_request_is_listed_and_approved(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    asked("refund")
    code, out, _ = cli("jobs", "approvals", "--json")
    [request] = json.loads(out)
    assert (code, request["job"], request["name"], request["by"]) == (0, "one", "refund", "group:finance")
    assert request["show"] == {"amount": 99, "token": "***"}
    assert "group:finance" in cli("jobs", "approvals", "--by", "group:finance", "--job", "one")[1]
    assert cli("jobs", "approvals", "--by", "group:board")[1:] == ("", "no open requests\n")
    shown = cli("jobs", "show", "one")[1]
    assert "waits until the group 'finance' decides the request 'refund'" in shown.replace("It ", "")
    assert "treadle jobs approve one refund" in cli("jobs", "explain", "one")[1]
    code, out, _ = cli("jobs", "approve", "one", "--reason", "as agreed")
    assert (code, out.startswith("one: the request 'refund' is approved by ")) == (0, True)
    [[approved, by, reason]] = asked("refund", result="one")
    assert (approved, "@" in by, reason) == (True, True, "as agreed")
    entries = json.loads(cli("storage", "audit", "--json")[1])
    assert entries[0]["act"] == "approval.decide"


def test_mistakes_name_the_open_requests(cli: Run) -> None:  # noqa: F811
    asked("a", "b")
    code, _, err = cli("jobs", "approve", "one")
    assert (code, "has several open requests: name one of 'a', 'b'" in err) == (2, True)
    code, _, err = cli("jobs", "reject", "one", "c")
    assert (code, "has no open request 'c': it waits for 'a', 'b'" in err) == (1, True)
    assert cli("jobs", "reject", "one", "a")[0] == 0
    assert cli("jobs", "approve", "one")[0] == 0
    code, _, err = cli("jobs", "approve", "one")
    assert (code, "it has none" in err) == (1, True)
    assert "no job 'nobody'" in cli("jobs", "approve", "nobody")[2]
    assert asked("a", "b", result="one")[0][0] is False


def test_a_link_is_printed(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    asked("refund")
    link = ("jobs", "approval-link", "one", "--to", "zoe", "--server", "https://jobs.example.org/ops")
    monkeypatch.delenv("TREADLE_SESSION_SECRET", raising=False)
    code, _, err = cli(*link)
    assert (code, "set TREADLE_SESSION_SECRET here and at the server" in err) == (2, True)
    monkeypatch.setenv("TREADLE_SESSION_SECRET", "s" * 32)
    code, out, _ = cli(*link, "--expires", "1d")
    head, _, signed = out.strip().rpartition("/")
    read = read_link(signed, secret_of("s" * 32))
    assert (code, head, read.to if read else "") == (0, "https://jobs.example.org/ops/approve", "zoe")
    assert cli(*link[:-1], "jobs.example.org")[0] == 2
