"""The command `treadle doctor`: checks the storage and its contents, and prints a verdict for each check."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import nullcontext

import click

from treadle.cli.output import FAILED, OK, Stop, as_json, document, verdict
from treadle.cli.target import Target, targeted
from treadle.core.errors import OldRows, SchemaTooNew, SchemaTooOld, StorageError
from treadle.server.doctor import common, leftovers, sqlite
from treadle.server.doctor.common import Check
from treadle.server.doctor.examine import is_broken, of_contents, of_file, of_outbox, of_server


@click.command()
@targeted
@click.option("--full", is_flag=True, help="Also read every page of the database, which takes long if it is large.")
@click.option(
    "--repair",
    is_flag=True,
    help="Remove rows that faults left behind, cancel invalid rows in Treadle's own queue, correct kept counts of jobs "
    "and the counters of limits on Redis, and fix file permissions.",
)
@as_json
def doctor(target: Target, full: bool, repair: bool, json_: bool) -> int:
    """Check the storage and its contents. Each line shows ok, warn or fail, and how to fix it.

    The exit code is 1 if a check fails. Without --repair the command only reads: it changes nothing, migrates nothing,
    and works with a user or role that may only read. A storage that must be migrated first is a failed check.
    """
    checks: list[Check] = []

    async def examine() -> None:
        async for check in _all(target, full, repair):
            checks.append(check)
            if not json_:
                verdict(check.verdict, check.name, check.text, check.advice)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OldRows)  # the check `moved` reports it
        asyncio.run(examine())
    if json_:
        document(checks)
    return FAILED if any(check.verdict == "fail" for check in checks) else OK


async def _all(target: Target, full: bool, repair: bool) -> AsyncIterator[Check]:
    url, database = target.app.url or "", target.file
    if database is not None:
        if repair:
            for check in leftovers.repair_file(database):
                yield check
        checks = of_file(url, database, full)
        for check in checks:
            yield check
        if is_broken(checks):
            return
    core = target.app._core
    try:
        target.check_there()
        with nullcontext() if repair else core.looking():
            async with target.app:
                now = "" if database is None else f"; schema {sqlite.schema(database)}"
                yield common.ok("storage", f"{target.url} answers{now}")
                async for check in of_contents(core, target.has_tasks, repair):
                    yield check
    except (SchemaTooOld, SchemaTooNew) as error:
        yield common.fail(
            "storage", str(error), "`treadle storage migrate` migrates it, with the newest Treadle that uses it"
        )
        if isinstance(error, SchemaTooOld):
            async for check in of_server(url):
                yield check
            async for check in of_outbox(core):
                yield check
    except (StorageError, Stop) as error:
        yield common.fail("storage", f"{target.url}: {error}", "check the URL, and whether the server is running")
