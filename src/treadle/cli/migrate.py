"""`treadle migrate`: migrates the storage before a deployment, which the first new worker would do otherwise."""

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
    """Migrate the storage to the schema of this Treadle, or create it. Prints the old and the new schema number."""
    before = _schema(target)

    async def opened(_: App) -> None:
        """Do nothing: opening the storage migrates it."""

    target.run(opened, make=True)
    after = _schema(target)
    if after is None:
        data(f"{target.url} is up to date")
    elif before == after:
        data(f"{target.url} already has schema {after}")
    elif before is None:
        data(f"{target.url} created, with schema {after}")
    else:
        data(f"{target.url} migrated from schema {before} to {after}")


def _schema(target: Target) -> int | None:
    """The schema number, for storages that have one."""
    from treadle.server.doctor import postgres, sqlite

    url = target.app.url or ""
    if postgres.is_postgres(url):
        import asyncio

        return asyncio.run(postgres.schema(url))
    return sqlite.schema(target.file) if target.file is not None else None
