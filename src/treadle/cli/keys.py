"""`treadle storage keys`: makes a key for encryption, and counts the stored texts of each key."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

import click

from treadle.cli.group import Group
from treadle.cli.listing import listed, picked
from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, data, note, plural
from treadle.cli.progress import Bar
from treadle.cli.target import Target, targeted
from treadle.core.clock import moment, wall
from treadle.core.model import NewJob
from treadle.serialization import Keys
from treadle.storage import UNREAD, KeyUse, PayloadStorage, key_use

if TYPE_CHECKING:
    from treadle.app import App

KINDS: Final = ("arguments", "results", "steps", "errors", "notes")
COLUMNS: Final = ("key", "app", "jobs", "unfinished", *KINDS, "outbox")
PAGE: Final = 100_000  # rows of an outbox that are counted; more of them are an outage that comes first


@click.group(cls=Group)
def keys() -> None:
    """Make a key for encryption, and count the stored texts of each key.

    Nothing here prints a key that exists already: only ids of keys.
    """


@keys.command()
@click.argument("name", metavar="[ID]", required=False)
def new(name: str | None) -> None:
    """Print a new random key, as App(keys=Keys(...)) and TREADLE_KEYS take it. [default: the id is this month]

    It is printed once and stored nowhere. To replace a key, put the new one in front of the old one.
    """
    key = Keys.make(name if name is not None else f"{moment(wall()).astimezone(UTC):%Y-%m}")
    note("treadle: a new key, shown only now; keep it where you keep other secrets:")
    data(key)


@keys.command()
@click.argument("id", metavar="[ID]", required=False)
@targeted
@as_json
def used(target: Target, id: str | None, json_: bool) -> int:
    """Count the stored jobs, and their texts, by the id of the key that has encrypted them.

    With ID, exit with 1 while a stored text needs that key, and with 0 once it may be removed. First deploy a newer key
    in front of it to every program: a program with the old key in front still uses it.
    """
    uses, known, unread = target.run(_used, look=True)
    plain = [
        {
            "key": use.key,
            "known": use.key in known,
            **picked(use, "jobs", "unfinished"),
            **{kind: use.kinds.get(kind, 0) for kind in KINDS},
            "outbox": use.outbox,
        }
        for use in uses
    ]
    rows = [
        (
            use.key,
            "" if use.key.startswith("(") else "yes" if use.key in known else "no",
            *(line[name] for name in COLUMNS[2:]),
        )
        for use, line in zip(uses, plain, strict=True)
    ]
    listed(json_, plain, COLUMNS, rows, "no jobs are stored", right=COLUMNS[2:])
    if id is None:
        return OK
    if (use_of_id := next((use for use in uses if use.key == id), None)) is not None:
        note(f"treadle: the key {id!r} is needed by {_needing(use_of_id)}")
        return FAILED
    if unread:
        note(
            f"treadle: {plural(unread, 'job')} have texts in a blob store that could not be read; they may need {id!r}"
        )
        return FAILED
    note(f"treadle: no stored text needs the key {id!r}")
    return OK


def _needing(use: KeyUse) -> str:
    jobs = f"{plural(use.jobs, 'job')} ({use.unfinished:,} unfinished)"
    return f"{jobs} and {plural(use.outbox, 'row')} of the outbox" if use.outbox else jobs


async def _used(app: App) -> tuple[list[KeyUse], tuple[str, ...], int]:
    """The use of each key, the keys of the app, and the number of jobs whose texts could not be read."""
    storage, objects, known = app.storage, None, app.storage.capabilities.keys
    if isinstance(storage, PayloadStorage):
        objects, storage = storage.texts.objects, storage.storage
    if storage.capabilities.reads_texts or storage.capabilities.queues:
        raise Stop(
            USAGE, "this server decrypts texts, or shows some queues only: give --url or --app of the storage itself"
        )
    with Bar("counting", 0) as bar:
        uses = await key_use(storage, objects, await _waiting(app), bar.counted)
    return uses, known, next((use.jobs for use in uses if use.key == UNREAD), 0)


async def _waiting(app: App) -> list[NewJob]:
    """The jobs in the outbox of the app."""
    if app.outbox is None:
        return []
    return [row.job for row in await app.outbox.list(PAGE) if row.job is not None]
