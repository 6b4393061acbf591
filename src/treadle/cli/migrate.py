"""`treadle migrate`: brings the storage to the schema of this Treadle, at a moment somebody chose.

Without it the first worker of a new version would do it, in the middle of a deployment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from treadle.cli.output import data
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.app import App


@click.command()
@targeted
def migrate(target: Target) -> None:
    """Bring the storage to the schema of this Treadle; make it if it is not there. Says from which to which."""
    before = _schema(target)

    async def opened(_: App) -> None:
        """Opening migrates."""

    target.run(opened, make=True)
    after = _schema(target)
    if after is None:
        data(f"{target.url} is up to date")
    elif before == after:
        data(f"{target.url} has schema {after} already")
    elif before is None:
        data(f"{target.url} made, with schema {after}")
    else:
        data(f"{target.url} migrated from schema {before} to {after}")


def _schema(target: Target) -> int | None:
    """Its number, where the storage has one to tell."""
    from treadle.cli.doctor import postgres, sqlite

    url = target.app.url or ""
    if postgres.is_postgres(url):
        import asyncio

        return asyncio.run(postgres.schema(url))
    return sqlite.schema(target.file) if target.file is not None else None
