"""`manage.py treadle ...`: every command of `treadle`, for the App of this project.

The command line of Treadle reads the words. A worker runs in processes of its own, which import the project themselves.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, handle_default_options

from treadle.cli import root
from treadle.cli.group import HELP, Group
from treadle.cli.options import excluding_reload
from treadle.cli.output import USAGE, note
from treadle.cli.target import IMPLIED
from treadle.core.command_lines import PROGRAM
from treadle.integrations.django.compat import InvalidTask

MODULE: Final = "treadle.integrations.django.worker"
OURS: Final = ("--settings", "--pythonpath", "--backend")  # options with a value that Treadle's command line lacks
OPTIONS: Final = {
    "url": "Another storage. [default: that of this project]",
    "app": "Another app, as module:attribute or file.py:attribute. [default: that of this project]",
}
PLACES: Final = (
    (r"(?s)that of --url, else of .*? current directory", "that of this project, unless --url or --app names another"),
    (r"(?s)Without MODULE:APP it runs .*? package", "It imports the `tasks` module of each installed app"),
    (r"; without MODULE:APP, for the only app in this directory|Without MODULE:APP [^.]*\. ", ""),
    (r"With MODULE:APP the", "The"),
    (r"the app MODULE:APP", "the app of this project"),
    (r"MODULE:APP(?: \([^)]*\))?", "this project"),
)


class Command(BaseCommand):
    """Passes its arguments on."""

    help = "Run a command of Treadle for this project: worker, jobs, queues, schedules, doctor, migrate and others."
    requires_system_checks: Any = ()

    def run_from_argv(self, argv: list[str]) -> None:
        for_treadle, own = split(argv[2:])
        handle_default_options(Namespace(settings=own.get("--settings"), pythonpath=own.get("--pythonpath")))
        for_children(own.get("--pythonpath"))
        leave(for_treadle or ["--help"], own.get("--backend"))

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("words", nargs="*", help="the command and its arguments")

    def handle(self, *args: Any, **options: Any) -> None:
        """For `call_command("treadle", "jobs", "list")`. Raises SystemExit if the command fails."""
        leave(list(options["words"]), None)


def leave(words: list[str], alias: str | None) -> None:
    """Run the command. Exits unless its code is 0."""
    own = f" --backend {shlex.quote(alias)}" if alias else ""
    before = os.environ.get(PROGRAM, "")  # of the whole process, in which `call_command` may run this
    os.environ[PROGRAM], os.environ[IMPLIED] = f"python {shlex.quote(sys.argv[0])} treadle{own}", app_name(alias)
    place(root.treadle, _command(words)[0])
    try:
        code = root.run(completed(words, alias))
    except (ImproperlyConfigured, InvalidTask) as error:
        sys.stderr.write(f"treadle: {error}\n")
        code = USAGE
    finally:
        os.environ[PROGRAM] = before
    if code:
        sys.exit(code)


def place(*commands: click.Command | None) -> None:
    """Let the help pages of these commands name this project, where they name an app and its storage."""
    for command in filter(None, commands):
        for pattern, text in PLACES:
            command.help = re.sub(pattern.replace(" ", r"\s+"), text, command.help or "")
        for parameter in command.params:
            if isinstance(parameter, click.Option) and parameter.name in ("url", "app"):
                parameter.help = OPTIONS[parameter.name]


def split(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words for Treadle, and the options of manage.py and of this command among them."""
    rest, own, unread = list[str](), dict[str, str](), iter(words)
    for word in unread:
        name, equals, value = word.partition("=")
        if name not in OURS:
            rest.append(word)
        else:
            own[name] = value if equals else next(unread, "")
    return rest, own


def for_children(pythonpath: str | None) -> None:
    """Worker processes find the project where this process found it, whatever their directory is."""
    folders = [*([pythonpath] if pythonpath else []), str(Path(sys.argv[0]).resolve().parent)]
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([known] if known else [])])


def app_name(alias: str | None) -> str:
    """The App of a backend, as the command line takes it."""
    return f"{MODULE}:{alias or 'app'}"


def completed(words: list[str], alias: str | None) -> list[str]:
    """The words with the app of this project, if the command takes an app and no storage was named. With DEBUG, worker
    and up start again when the code changes, unless there is a --no-reload or an option that excludes it. Windows lacks
    the signals for it."""
    reloads = settings.DEBUG and not {"--reload", "--no-reload"} & set(words)
    words = [word for word in words if word != "--no-reload"]
    command, arguments = _command(words)
    if command is None or {*HELP} & {*words}:
        return words
    names = {parameter.name: parameter for parameter in command.params}
    if "app" not in names:
        return words
    known = _parsed(command, arguments)
    if known.get("app") is not None or known.get("url") is not None or known.get("protocol") is not None:
        return words
    app = app_name(alias)
    added = [app] if isinstance(names["app"], click.Argument) else ["--app", app]
    if command.name == "worker" and not known.get("queues"):
        added += [word for queue in queues(alias) for word in ("--queues", queue)]
    if "reload" in names and reloads and sys.platform != "win32":
        excluding = excluding_reload(known)
        if excluding is None:
            added.append("--reload")
        else:
            note(f"treadle: {command.name} does not start again when the code changes, because of {excluding}")
    return [*words, *added]


def queues(alias: str | None) -> list[str]:
    """The queues that a worker serves: those of the tasks, and QUEUES of the backends, because `.using` may name
    them."""
    from treadle.integrations.django.compat import task_backends
    from treadle.integrations.django.database_app import first_alias, store_of
    from treadle.integrations.django.loading import prepare

    alias = alias or first_alias()
    known = {task.queue for task in prepare(alias).tasks.values()}
    return sorted(known.union(*(task_backends[name].queues for name in store_of(alias).backends)))


def _command(words: Sequence[str]) -> tuple[click.Command | None, list[str]]:
    """The command that the words name, or the default of their group, with the words after its name; None if they name
    none."""
    command: click.Command = root.treadle
    unread = list(words)
    while isinstance(command, click.Group):
        if isinstance(command, Group):
            unread = command.with_default(unread)
        while unread and unread[0].startswith("-"):
            unread.pop(0)
        if not unread:
            return None, []
        inner = command.get_command(click.Context(command), unread.pop(0))
        if inner is None:
            return None, []
        command = inner
    return command, unread


def _parsed(command: click.Command, words: Sequence[str]) -> dict[str, Any]:
    """The parameters in these words. Mistakes are left for Treadle's command line to report."""
    try:
        return command.make_context(command.name, list(words), resilient_parsing=True).params
    except click.ClickException:
        return {}
