"""`treadle --show-completion`: completes commands and options in a shell, and names and ids that the storage has.

A shell calls `treadle` at each press of Tab. The names are looked up for WAIT seconds at most, and nothing but
candidates is ever printed: no error, and no output of the app's modules.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import threading
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from treadle.cli.group import Group

if TYPE_CHECKING:
    from treadle.app import App

VARIABLE: Final = "_TREADLE_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
WAIT: Final = 1.0  # s that a look-up may take
JOBS: Final = 50  # newest jobs whose ids are candidates
KINDS: Final = {  # parameter name -> kind of its values, in every command
    "queue": "queue",
    "queues": "queue",
    "task": "task",
    "tasks": "task",
    "id": "job",
    "ids": "job",
    "app": "app",
}
NAMES: Final = {
    "queues": "queue",
    "limits": "limit",
    "schedules": "schedule",
}  # kind of `name` in a command
ELSEWHERE: Final = ("wasi", "delayed")  # commands whose arguments are not names in a storage


def print_code(shell: str) -> None:
    """Print the code that completes `treadle` commands in this shell, or in that of SHELL. Raises UsageError.

    bash: `eval "$(treadle --show-completion bash)"` in ~/.bashrc
    zsh:  `eval "$(treadle --show-completion zsh)"` in ~/.zshrc
    fish: `treadle --show-completion fish > ~/.config/fish/completions/treadle.fish`
    """
    named = shell or Path(os.environ.get("SHELL", "")).name
    if named not in SHELLS:
        raise click.UsageError("name the shell: --show-completion with bash, zsh or fish")
    kind = get_completion_class(named)
    assert kind is not None
    click.echo(kind(click.Command("treadle"), {}, "treadle", VARIABLE).source())


def complete(root: click.Group) -> int:
    """Print the candidates for the words in the environment -> 0."""
    shell = os.environ[VARIABLE].partition("_")[0]
    kind = get_completion_class(shell)
    if kind is None:
        return 0
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(Exception):
        completer = kind(root, {}, "treadle", VARIABLE)
        typed, incomplete = completer.get_completion_args()
        _equip(root, typed)
        lines = [completer.format_completion(item) for item in completer.get_completions(typed, incomplete)]
        sys.__stdout__.write("".join(f"{line}\n" for line in lines))  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
    os._exit(0)  # a look-up that takes longer is left behind


def _equip(root: click.Group, words: list[str]) -> None:
    """Give the parameters of the typed command their look-ups."""
    command: click.Command = root
    path = list[str]()
    for word in words:
        inner = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if inner is not None:
            command, path = inner, [*path, word]
    if isinstance(command, Group) and command.default is not None:
        command = command.get_command(click.Context(command), command.default) or command
    if not path or path[0] in ELSEWHERE:
        return
    for parameter in command.params:
        kind = NAMES.get(path[0]) if parameter.name == "name" else KINDS.get(parameter.name or "")
        if kind is not None:
            parameter.shell_complete = partial(candidates, kind)  # type: ignore[method-assign]


def candidates(kind: str, context: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
    """The names of this kind that begin like `incomplete`; after a comma, a further one."""
    before, comma, begun = incomplete.rpartition(",")
    items: list[CompletionItem[Any]] = []
    work = partial(_look_up, kind, context.params, items)
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(WAIT)
    return [
        CompletionItem(before + comma + str(item.value), help=item.help)
        for item in tuple(items)
        if str(item.value).startswith(begun)
    ]


def _look_up(kind: str, params: dict[str, Any], items: list[CompletionItem[Any]]) -> None:
    with contextlib.suppress(BaseException):
        if kind == "app":
            from treadle.cli.app_search import apps_in

            items += map(CompletionItem, apps_in(Path.cwd()))
            return
        from treadle.cli.target import Target

        target = params.get("target") or Target(params.get("url"), params.get("app"))
        target.check_there()
        items += asyncio.run(_from_storage(target.app, kind))


async def _from_storage(app: App, kind: str) -> list[CompletionItem[Any]]:
    async with app:
        return list(await LOOK_UPS[kind](app))


async def _queues(app: App) -> Iterable[CompletionItem[Any]]:
    from treadle.cli.queues import by_queue

    entries = by_queue(await app.queues.stats())
    return [CompletionItem(entry["queue"], help=f"{entry['queued']} queued") for entry in entries]


async def _tasks(app: App) -> Iterable[CompletionItem[Any]]:
    from treadle.core.defaults import SYSTEM_QUEUE

    stats = await app.queues.stats()
    stored = {count.task for count in stats.counts if count.task and count.queue != SYSTEM_QUEUE}
    return [CompletionItem(name) for name in sorted(stored | set(app.tasks))]


async def _limits(app: App) -> Iterable[CompletionItem[Any]]:
    return [CompletionItem(use.key) for use in await app.limits.list(use=False)]


async def _schedules(app: App) -> Iterable[CompletionItem[Any]]:
    return [CompletionItem(schedule.name) for schedule in await app.schedules.list()]


async def _jobs(app: App) -> Iterable[CompletionItem[Any]]:
    page = await app.jobs.list(limit=JOBS, count=False)
    return [CompletionItem(row.id, help=f"{row.job.task}, {row.state}") for row in page.records]


LOOK_UPS: Final[dict[str, Callable[[App], Any]]] = {
    "queue": _queues,
    "task": _tasks,
    "limit": _limits,
    "schedule": _schedules,
    "job": _jobs,
}
