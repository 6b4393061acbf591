"""The root command: imports a subcommand when it is called, and turns errors into one-line messages and exit codes.

`treadle --help` imports none of the library.
"""

from __future__ import annotations

import importlib
import keyword
import os
import sys
from collections.abc import Callable, Sequence

import click

from treadle import contrib
from treadle.cli.output import FAILED, INTERRUPTED, OK, UNREACHABLE, USAGE, Stop, complain

COMMANDS = {
    "init": ("treadle.cli.init", "Make a project that runs: an app, tasks, tests, and a README."),
    "worker": ("treadle.cli.worker", "Run the jobs of an app, in one or more processes."),
    "server": ("treadle.cli.server", "Serve jobs over HTTP, to programs in any language."),
    "up": ("treadle.cli.up", "Run the server and workers with one command."),
    "dashboard": ("treadle.cli.dashboard", "Show queues and jobs in a browser, on this machine."),
    "token": ("treadle.cli.tokens", "Make a token for the server, or list the tokens."),
    "enqueue": ("treadle.cli.enqueue", "Send one job and print its id, or wait for its result."),
    "shell": ("treadle.cli.shell", "Open a Python prompt with the app, in which await works."),
    "jobs": ("treadle.cli.jobs", "List, show, cancel, retry and explain jobs."),
    "workflows": ("treadle.cli.workflows", "List workflows, and show the jobs of one."),
    "queues": ("treadle.cli.queues", "List, pause and resume queues."),
    "plan": ("treadle.cli.estimates", "Estimate when a queue is empty, and what would change that."),
    "limits": ("treadle.cli.limits", "Set how many jobs may run at once, or start in a period."),
    "schedules": ("treadle.cli.schedules", "List, pause, resume and run schedules."),
    "workers": ("treadle.cli.overview", "List the workers that have sent a heartbeat recently."),
    "top": ("treadle.cli.top", "Show queues and workers, refreshed continuously."),
    "stats": ("treadle.cli.overview", "Count jobs by task and state."),
    "metrics": ("treadle.cli.metrics", "Show what is stored as metrics for Prometheus."),
    "audit": ("treadle.cli.audit", "List who did what: the acts of operators."),
    "relay": ("treadle.cli.relay", "Hand over the jobs of an app's outbox, and list those that are refused."),
    "blobs": ("treadle.cli.blobs", "Count the large texts in the blob store, and delete those of no job."),
    "keys": ("treadle.cli.keys", "Make a key for encryption, and count the stored texts of each key."),
    "migrate": ("treadle.cli.migrate", "Migrate the storage to the schema of this Treadle."),
    "move": ("treadle.cli.move", "Move every job to another storage, while workers and producers may run."),
    "check": ("treadle.cli.check", "Compare the code with the stored jobs, before a deployment."),
    "doctor": ("treadle.cli.doctor", "Check the storage and its contents, with advice."),
    "completion": ("treadle.cli.completion", "Print the code that completes commands in a shell."),
    "demo": (
        "treadle.cli.demo.command",
        "Index the standard library, optionally killing a worker, to show that no job is lost.",
    ),
    **contrib.COMMANDS,
}


class Lazy(click.Group):
    """A group that imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name.replace("-", "_")
        found = getattr(importlib.import_module(COMMANDS[cmd_name][0]), name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{_like(args[0])}", ctx)
        return super().resolve_command(ctx, args)


def _like(word: str) -> str:
    import difflib

    close = difflib.get_close_matches(word, list(COMMANDS), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from treadle import __version__

        click.echo(f"treadle {__version__}")
        ctx.exit()


@click.command(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
def treadle() -> None:
    """Background jobs that cannot be lost.

    The storage is that of --url, else of the app in --app, else of TREADLE_URL, else treadle.db in the current
    directory.

    Exit codes: 0 ok, 1 failed, 2 usage error, 3 storage unreachable. Data goes to stdout, everything else to stderr.
    TREADLE_DEBUG=1 shows the traceback of an error; NO_COLOR=1 turns colours off.
    """


def run(args: Sequence[str] | None = None) -> int:
    """Run one command -> its exit code."""
    if os.environ.get("_TREADLE_COMPLETE", "").endswith("_complete"):
        from treadle.cli.completion import complete

        return complete(treadle)
    typed = list(sys.argv[1:] if args is None else args)
    return guarded(lambda: treadle.main(typed, prog_name="treadle", standalone_mode=False, obj=typed))


def guarded(act: Callable[[], object]) -> int:
    """Call `act` -> the exit code. Prints an error as one line; with TREADLE_DEBUG=1 unexpected errors propagate."""
    try:
        code = act()
        return code if isinstance(code, int) else OK
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        where = f"; see `{error.ctx.command_path} --help`" if error.ctx is not None else ""
        complain(error.format_message().rstrip(".") + where)
        return USAGE
    except click.ClickException as error:
        complain(error.format_message())
        return FAILED
    except (KeyboardInterrupt, click.Abort):
        complain("interrupted")
        return INTERRUPTED
    except Stop as stop:
        if stop.text:
            complain(stop.text)
        return stop.code
    except Exception as error:
        if os.environ.get("TREADLE_DEBUG", "") not in ("", "0"):
            raise
        return _code_of(error)


def _code_of(error: Exception) -> int:
    """Print an error as one line -> its exit code: 2 for wrong input, 3 for an unreachable storage, 1 otherwise."""
    from treadle.core import errors

    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, errors.BadUrl | errors.BadOption | errors.BadArgument | errors.UnknownTask | errors.TooLarge):
        complain(text)
        return USAGE
    if isinstance(error, errors.SchemaTooOld):
        complain(text)
        return UNREACHABLE
    if isinstance(error, errors.StorageUnavailable | errors.NotADatabase | errors.SchemaTooNew):
        complain(f"{text}; run `treadle doctor` to find the cause")
        return UNREACHABLE
    if isinstance(error, errors.TreadleError):
        complain(text)
        return FAILED
    if isinstance(error, OSError):
        complain(text)
        return UNREACHABLE if isinstance(error, ConnectionError) else FAILED
    complain(
        f"{type(error).__name__}: {text}; this is a bug in Treadle or in the app; TREADLE_DEBUG=1 shows the traceback"
    )
    return FAILED
