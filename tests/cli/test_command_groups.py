"""The help pages: at most 20 commands in groups, whole summaries, and the nearest name for a mistyped command."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from treadle.cli.root import COMMANDS, SECTIONS, run, treadle


def groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    yield path, group
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from groups(command, (*path, name))


GROUPS = dict(groups(treadle))


def test_a_person_sees_at_most_twenty_commands_in_five_groups() -> None:
    shown = [name for names in SECTIONS.values() for name in names]
    assert len(shown) <= 20
    assert len(SECTIONS) == 5
    assert sorted(shown) == sorted(COMMANDS)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("path", GROUPS)
def test_no_summary_is_cut(path: tuple[str, ...], width: int) -> None:
    answer = CliRunner().invoke(treadle, [*path, "--help"], terminal_width=width)
    assert answer.exit_code == 0
    assert not [line for line in answer.output.splitlines()[1:] if line.endswith("...")], "a summary is cut"
    assert max(map(len, answer.output.splitlines())) <= width
    names = GROUPS[path].list_commands(click.Context(GROUPS[path]))
    assert all(f"\n  {name} " in answer.output for name in names)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("jbos", "jobs"),
        ("migrate", "storage migrate"),
        ("migarte", "storage migrate"),
        ("stats", "queues stats"),
        ("workers", "queues workers"),
        ("workflows", "jobs workflows"),
        ("queues lst", "list"),
        ("storage relay lst", None),  # `storage relay` takes an app in the place of a command
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest(
    typed: str, meant: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(typed.split()) == 2
    assert (f"did you mean '{meant}'?" in capsys.readouterr().err) == (meant is not None)
