"""`treadle limits set` and `resume`: bounds of queues, the parts of a rule that a new one drops, rests."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import pytest

from tests.cli.test_cli import Run, cli, found, here
from treadle import App
from treadle.core.clock import wall
from treadle_testkit.shows import shows

__all__ = ["cli", "here"]


def test_a_bound_is_set_and_shown(cli: Run) -> None:
    cli("storage", "migrate")
    assert cli("limits", "set", "queue:mail", "--max-waiting", "100", "--when-full", "drop_lowest")[::2] == (
        0,
        "limit 'queue:mail' is set\n",
    )
    [row] = found(cli, "limits", "list")
    assert (row["max_waiting"], row["when_full"], row["slots"]) == (100, "drop_lowest", None)
    assert "100, drop the lowest" in cli("limits")[1]
    code, _, said = cli("limits", "set", "smtp", "--max-waiting", "5")
    assert (code, "queue" in said) == (2, True)
    assert cli("limits", "set", "queue:mail", "--max-waiting", "0")[0] == 2
    assert cli("limits", "set", "queue:mail", "--max-waiting", "5", "--when-full", "newest")[0] == 2


@shows("Setting a limit names each part of the earlier rule that is gone, and the command that keeps it", area="Limits")
@pytest.mark.parametrize(
    ("before", "after", "lost", "kept"),
    [
        ("--slots 2 --max-waiting 1", "--max-waiting 6", "slots 2", "--slots 2 --max-waiting 6"),
        (
            "--rate 5 --per 60 --how bucket --burst 9 --max-waiting 1",
            "--slots 3",
            "rate 5, max-waiting 1",
            "--slots 3 --rate 5 --per 60 --how bucket --burst 9 --max-waiting 1",
        ),
        ("--slots 2 --hold ended", "--slots 3", "hold ended", "--slots 3 --hold ended"),
        (
            "--max-waiting 2 --when-full drop_oldest",
            "--max-waiting 4",
            "when-full drop_oldest",
            "--max-waiting 4 --when-full drop_oldest",
        ),
        ("--max-waiting 2 --when-full drop_oldest", "--max-waiting 4 --when-full refuse", None, ""),
        ("--slots 2", "--slots 5 --rate 3", None, ""),
    ],
)
def test_the_parts_that_a_new_rule_drops_are_named(
    cli: Run, before: str, after: str, lost: str | None, kept: str
) -> None:
    cli("storage", "migrate")
    cli("limits", "set", "queue:mail", *before.split())
    code, _, said = cli("limits", "set", "queue:mail", *after.split())
    assert code == 0
    if lost is None:
        assert said == "limit 'queue:mail' is set\n"
        return
    command = f"treadle limits set queue:mail {kept}"
    assert f"a rule is replaced whole: it had {lost} before; `{command}` keeps this" in said
    assert cli(*shlex.split(command)[1:])[::2] == (0, "limit 'queue:mail' is set\n")


def test_a_rule_of_its_own_takes_a_queue_out_of_the_rule_of_all(cli: Run) -> None:
    cli("storage", "migrate")
    cli("limits", "set", "queue", "--slots", "2")
    cli("queues", "pause", "mail")
    said = cli("limits", "set", "queue:mail", "--max-waiting", "5")[2]
    assert "it had from the rule 'queue' slots 2 before; `treadle limits set queue:mail --slots 2 --max" in said


def test_a_rest_that_a_job_requested_is_named_and_ended_by_resume(cli: Run, here: Path) -> None:
    asyncio.run(_rests("smtp", "queue:mail"))
    code, _, said = cli("limits", "resume", "smtp")
    assert code == 0
    assert said.startswith("the limit still rests until ")
    assert "`treadle limits resume smtp --rest` ends the rest" in said
    assert cli("limits", "resume", "--rest", "smtp")[::2] == (0, "limit 'smtp' is not paused any more\n")
    assert "the limit still rests" in cli("queues", "resume", "mail")[2]
    assert cli("queues", "resume", "--rest", "mail")[::2] == (0, "queue 'mail' is not paused any more\n")
    assert "with its rest" in cli("storage", "audit", "list")[1]


async def _rests(*names: str) -> None:
    async with App("sqlite:///treadle.db") as app:
        for name in names:
            await app.limits.hold(name, wall() + 3600, held=True)
