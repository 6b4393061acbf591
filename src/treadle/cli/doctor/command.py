"""`treadle doctor`: looks at the storage and at what lives in it, and says of each thing whether it is well.

Without it a network mount or a forgotten pause would be found by reading the code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from treadle.cli.output import FAILED, OK, Stop, as_json, document, verdict
from treadle.cli.target import Target, move_of, targeted

if TYPE_CHECKING:
    from treadle.cli.doctor.common import Check


@click.command()
@targeted
@click.option("--full", is_flag=True, help="Read every page of the database too; takes a while on a large one.")
@click.option(
    "--repair",
    is_flag=True,
    help="Remove rows that faults left behind, cancel rows that are none of Treadle's own, and close loose files.",
)
@as_json
def doctor(target: Target, full: bool, repair: bool, json_: bool) -> int:
    """Check the storage and what lives in it; each line says ok, warn or fail, and what to do.

    Exit code 1 if something failed. Looks only, unless --repair is given; but opening a storage brings it to this
    Treadle's schema.
    """
    import asyncio
    import warnings

    from treadle.errors import OldRows

    found: list[Check] = []

    async def examine() -> None:
        async for check in _all(target, full, repair):
            found.append(check)
            if not json_:
                verdict(check.verdict, check.name, check.text, check.advice)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OldRows)  # the check `moved` says it
        asyncio.run(examine())
    if json_:
        document(found)
    return FAILED if any(check.verdict == "fail" for check in found) else OK


async def _all(target: Target, full: bool, repair: bool) -> AsyncIterator[Check]:
    from treadle.cli.doctor import common, leftovers, sqlite
    from treadle.errors import StorageError
    from treadle.storage.contract import confined

    url, database = target.app.url or "", target.file
    schema = sqlite.schema(database) if database is not None else None
    if database is not None:
        if repair:
            for check in leftovers.repair_file(database):
                yield check
        broken = False
        for check in (*sqlite.checks(url, database, full), *leftovers.in_file(database)):
            broken = broken or (check.verdict == "fail" and check.name in ("file", "content"))
            yield check
        if broken:
            return
    try:
        target.check_there()
        async with target.app as app:
            now = sqlite.schema(database) if database is not None else None
            was = f", was {schema} until now" if now != schema else ""
            yield common.ok("storage", f"{target.url} answers" + (f"; schema {now}{was}" if now is not None else ""))
            if (moved := await move_of(app)) is not None:
                yield common.fail("moved", moved, "restart the processes that still use it with that URL")
            async for check in _of_server(url):
                yield check
            if not confined(app.storage):
                async for check in leftovers.in_storage(app, repair):
                    yield check
            async for check in common.checks(app, target.has_tasks):
                yield check
    except (StorageError, Stop) as error:
        yield common.fail("storage", f"{target.url}: {error}", "is the URL right, is the server up?")


async def _of_server(url: str) -> AsyncIterator[Check]:
    """What a server that has the jobs says of itself."""
    from treadle.cli.doctor import redis
    from treadle.cli.doctor.postgres import checks as of_database
    from treadle.cli.doctor.postgres import is_postgres

    if is_postgres(url):
        async for check in of_database(url):
            yield check
    if url.partition("://")[0] in redis.SCHEMES:
        for check in await redis.checks(url):
            yield check
