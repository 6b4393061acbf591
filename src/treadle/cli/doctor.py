"""`treadle doctor`: looks at the storage and at what lives in it, and says of each thing whether it is well.

Without it a network mount or a forgotten pause would be found by reading the code.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from treadle.cli.say import FAILED, OK, Stop, as_json, data, document, paint
from treadle.cli.target import Target, targeted

if TYPE_CHECKING:
    from treadle.cli.checks import Check


@click.command()
@targeted
@click.option("--full", is_flag=True, help="Read every page of the database too; takes a while on a large one.")
@as_json
def doctor(target: Target, full: bool, json_: bool) -> int:
    """Check the storage and what lives in it; each line says ok, warn or fail, and what to do.

    Exit code 1 if something failed. Looks only; but opening a storage brings it to this Treadle's schema.
    """
    import asyncio

    found: list[Check] = []

    async def examine() -> None:
        async for check in _all(target, full):
            found.append(check)
            if not json_:
                _show(check)

    asyncio.run(examine())
    if json_:
        document(found)
    return FAILED if any(check.verdict == "fail" for check in found) else OK


async def _all(target: Target, full: bool) -> AsyncIterator[Check]:
    from treadle.cli import checks, file, redis
    from treadle.cli.database import checks as of_database
    from treadle.cli.database import is_postgres
    from treadle.errors import StorageError

    url, database = target.app.url or "", target.file
    schema = None
    if database is not None:
        schema = file.schema(database)
        broken = False
        for check in file.checks(url, database, full):
            broken = broken or (check.verdict == "fail" and check.name in ("file", "content"))
            yield check
        if broken:
            return
    try:
        target.check_there()
        async with target.app as app:
            now = file.schema(database) if database is not None else None
            was = f", was {schema} until now" if now != schema else ""
            yield checks.ok("storage", f"{target.url} answers" + (f"; schema {now}{was}" if now is not None else ""))
            if is_postgres(url):
                async for check in of_database(url):
                    yield check
            if url.partition("://")[0] in redis.SCHEMES:
                for check in await redis.checks(url):
                    yield check
            async for check in checks.checks(app, target.has_tasks):
                yield check
    except (StorageError, Stop) as error:
        yield checks.fail("storage", f"{target.url}: {error}", "is the URL right, is the server up?")


def _show(check: Check) -> None:
    data(f"{paint(f'{check.verdict:<4}', check.verdict)}  {check.name:<11}  {check.text}")
    if check.advice:
        data(f"{'':<19}-> {check.advice}")
