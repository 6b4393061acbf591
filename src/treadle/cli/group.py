"""A group of commands: imports each when it is called, shows whole summaries, and suggests the nearest name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from typing import Any

import click

HELP = ("-h", "--help")
Lazy = Mapping[str, tuple[str, str]]  # by name: the module, or `module:attribute`, and the summary


class Group(click.Group):
    """A group of commands. Some of them are imported when they are called.

    lazy      the commands that are imported when they are called, by name
    sections  the names under each heading of the help page; by default all are under "Commands"
    default   the command without a name: `treadle queues --json` is `treadle queues list --json`
    """

    def __init__(
        self,
        *args: Any,
        lazy: Lazy | None = None,
        sections: Mapping[str, tuple[str, ...]] | None = None,
        default: str | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*args, **attributes)
        self.lazy, self.sections, self.default = lazy or {}, sections, default

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self.lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self.lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def with_default(self, args: list[str]) -> list[str]:
        """These arguments, after the name of the default command if they name no command and do not ask for help."""
        is_option = bool(args) and args[0].startswith("-") and args[0] not in HELP
        return [self.default, *args] if self.default is not None and (not args or is_option) else args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, self.with_default(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.list_commands(ctx) and not args[0].startswith("-"):
            raise click.UsageError(f"there is no command {args[0]!r}{self._suggestion(ctx, args[0])}", ctx)
        return super().resolve_command(ctx, args)

    def _suggestion(self, ctx: click.Context, typed: str) -> str:
        """The nearest command of this group, else of a group in it."""
        paths = {name: name for name in self.list_commands(ctx)}
        nested = dict(paths)
        for name in paths:
            command = self.get_command(ctx, name)
            if isinstance(command, click.Group):
                nested = {inner: f"{name} {inner}" for inner in command.list_commands(ctx)} | nested
        near = difflib.get_close_matches(typed, paths, 1) if typed not in nested else [typed]
        near = near or difflib.get_close_matches(typed, nested, 1)
        return f"; did you mean {nested[near[0]]!r}?" if near else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every summary whole, with one column of names for all sections."""
        summaries = {name: self._summary(ctx, name) for name in self.list_commands(ctx)}
        width = max(map(len, summaries), default=0)
        for title, names in (self.sections or {"Commands": tuple(summaries)}).items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summaries[name]) for name in names])

    def _summary(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        command = self.get_command(ctx, name)
        return command.get_short_help_str(1_000) if command is not None else ""
