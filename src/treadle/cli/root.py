"""The root command: imports a subcommand when it is called, and turns errors into one-line messages and exit codes.

`treadle --help` imports none of the library.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

import click

from treadle import contrib
from treadle.cli.group import HELP, Group, Lazy
from treadle.cli.output import FAILED, INTERRUPTED, OK, UNREACHABLE, USAGE, Stop, complain, write_everything
from treadle.core.command_lines import program

COMMANDS: Lazy = {
    "worker": ("treadle.cli.worker", "Run the jobs of an app, in one or more processes."),
    "server": ("treadle.cli.server", "Serve jobs over HTTP, to programs in any language."),
    "up": ("treadle.cli.up", "Run the server and workers with one command."),
    "dashboard": ("treadle.cli.dashboard", "Show queues and jobs in a browser, on this machine."),
    "doctor": ("treadle.cli.doctor", "Check the storage and its contents, with advice."),
    "enqueue": ("treadle.cli.enqueue", "Send one job and print its id, or wait for its result."),
    "jobs": ("treadle.cli.jobs", "List, show, explain, retry and cancel jobs and workflows."),
    "queues": ("treadle.cli.queues", "List, pause and resume queues, and list their workers."),
    "limits": ("treadle.cli.limits", "Set how many jobs may run at once, or start in a period."),
    "schedules": ("treadle.cli.schedules", "List, pause, resume and run schedules."),
    "shell": ("treadle.cli.shell", "Open a Python prompt with the app, in which await works."),
    "init": ("treadle.cli.init", "Make a project that runs: an app, tasks, tests, a README."),
    "token": ("treadle.cli.tokens", "Make a token for the server, or list the tokens."),
    "storage": ("treadle.cli.storage", "Migrate, move, check and audit a storage, and relay to it."),
    **contrib.COMMANDS,
}
SECTIONS = {
    "Run": ("worker", "server", "up"),
    "Look": ("dashboard", "top", "doctor"),
    "Act": ("enqueue", "jobs", "queues", "limits", "schedules", "shell"),
    "Set up": ("init", "token", "storage", "demo"),
    "Guests": ("delayed", "wasi", "mcp", "from"),
}


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from treadle import __version__

        click.echo(f"treadle {__version__}")
        ctx.exit()


def _completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell is not None:
        from treadle.cli.completion import print_code

        print_code(shell)
        ctx.exit()


@click.command(cls=Group, lazy=COMMANDS, sections=SECTIONS, context_settings={"help_option_names": [*HELP]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version and exit."
)
@click.option(
    "--show-completion",
    metavar="[SHELL]",
    is_flag=False,
    flag_value="",
    is_eager=True,
    expose_value=False,
    callback=_completion,
    help="Show the code that completes commands in bash, zsh or fish, and exit. [default: the shell of SHELL]",
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
    return guarded(lambda: treadle.main(typed, prog_name=program(), standalone_mode=False, obj=typed))


def guarded(act: Callable[[], object]) -> int:
    """Call `act` -> the exit code. Prints an error as one line; with TREADLE_DEBUG=1 unexpected errors propagate."""
    write_everything()
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

    text, code = " ".join(str(error).split()) or type(error).__name__, FAILED
    if isinstance(error, errors.BadUrl | errors.BadOption | errors.BadArgument | errors.UnknownTask | errors.TooLarge):
        code = USAGE
    elif isinstance(error, errors.SchemaTooOld):
        code = UNREACHABLE
    elif isinstance(error, errors.StorageUnavailable | errors.NotADatabase | errors.SchemaTooNew):
        text, code = f"{text}; run `treadle doctor` to find the cause", UNREACHABLE
    elif isinstance(error, ConnectionError) and not isinstance(error, errors.TreadleError):
        code = UNREACHABLE
    elif not isinstance(error, errors.TreadleError | OSError):
        kind = type(error).__name__
        text = f"{kind}: {text}; this is a bug in Treadle or in the app; TREADLE_DEBUG=1 shows the traceback"
    complain(text)
    return code
