"""The options `--reload` and `--watch`, and how a command is run under them."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.output import USAGE, Stop, note

if TYPE_CHECKING:
    from treadle.cli.reload.supervisor import Make

GRACE: Final = 2.0  # s that running jobs get to finish before a reload; those that do not are released uncounted


def watching(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --reload and --watch to a command."""
    watch = click.option(
        "--watch",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        metavar="DIR",
        help="With --reload: folder or file to watch, whatever the kind of its files; may be repeated. [default: only "
        "the Python files of this directory and those that are loaded]",
    )
    reload = click.option(
        "--reload", is_flag=True, help="For development: restart when a source file has changed, and keep waiting "
        "while the app cannot be imported."
    )  # fmt: skip
    return reload(watch(command))


def again(command: Callable[..., int]) -> Callable[..., int]:
    """Run the command in a process of its own if it is called with --reload, and start that again after each change."""

    @functools.wraps(command)
    def called(reload: bool, watch: tuple[Path, ...], **rest: Any) -> int:
        check(reload, watch)
        if not reload:
            return command(**rest)
        from treadle.cli.reload.reports import Reporter, inherited

        if "grace" in rest and rest["grace"] is None:
            rest["grace"] = GRACE
        descriptor = inherited()
        if descriptor is None:
            return rerun(watch, rest.get("grace", GRACE))
        with Reporter(descriptor):
            return command(**rest)

    return called


def reloading(command: Callable[..., int]) -> Callable[..., Any]:
    """Both: the options, and the command under them."""
    return watching(again(command))


def check(reload: bool, watch: Sequence[Path]) -> None:
    """Raise Stop for options that do not go together."""
    if watch and not reload:
        raise Stop(USAGE, "--watch says which files --reload watches: add --reload")
    if reload and sys.platform == "win32":
        raise Stop(USAGE, "--reload needs signals that Windows does not have")


def rerun(watch: Sequence[Path], grace: float = GRACE) -> int:
    """Run the typed command in a process of its own, and restart it after each change -> its exit code."""
    from treadle.cli.reload.supervisor import Command

    root = click.get_current_context().find_root()
    typed: Sequence[str] = root.obj or sys.argv[1:]
    return supervise(lambda environment, descriptor: Command(typed, environment, descriptor), watch, grace)


def supervise(make: Make, watch: Sequence[Path], grace: float) -> int:
    """Run what `make` makes, again after each change -> the exit code. `grace`: s that a stop may take."""
    from treadle.cli.reload.supervisor import Reloader
    from treadle.cli.reload.watcher import Root, Watched

    roots = [Root(Path.cwd()), *(Root(path.resolve(), every=True) for path in watch)]
    also = "".join(f", {path}" for path in watch)
    note(f"treadle: reloading after changes of {Path.cwd()}{also} and of loaded modules; for development")
    return asyncio.run(Reloader(make, Watched(roots), grace).run())
