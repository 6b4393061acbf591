"""`treadle storage blobs`: counts the large texts in a blob store, finds missing ones, and deletes unused ones."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.group import Group
from treadle.cli.listing import listed, picked
from treadle.cli.options import duration, number
from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, lasts, note, plural, size
from treadle.cli.progress import Bar
from treadle.cli.target import Target, targeted
from treadle.core import defaults
from treadle.storage import AGES, AgeGroup, Collected, Missing, PayloadStorage, by_age
from treadle.storage import missing as missing_texts

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.blobs import Objects

COLUMNS: Final = ("age", "texts", "size", "needed", "unfinished", "unused")
UNUSED: Final = ("job", "age", "size")
MISSING: Final = ("job", "task", "queue", "state", "field", "size", "problem")


@click.group(cls=Group, default="list")
def blobs() -> None:
    """Count the large texts in the blob store, find missing ones, and delete unused ones.

    The blob store is that of the app in --app, otherwise TREADLE_BLOBS names it: a folder, or s3://bucket/prefix.
    """


@contextlib.contextmanager
def _surveyed(app: App, label: str) -> Iterator[tuple[PayloadStorage, Objects, Bar]]:
    """The storage of an app, its blob store, and a bar that shows how many were looked at. Raises Stop without a blob
    store, and BadOption if the rows of the storage do not show every reference."""
    storage = app.storage
    if not isinstance(storage, PayloadStorage) or storage.texts.objects is None:
        raise Stop(
            USAGE, "there is no blob store: give --app with an App(blobs=...), or set TREADLE_BLOBS to the same place"
        )
    storage.check_sees_all()
    with Bar(label, 0) as bar:
        yield storage, storage.texts.objects, bar


# --- listing


@blobs.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """Count the texts in the blob store by age: all of them, and those that a job needs.

    NEEDED are those to which a stored job refers. UNFINISHED are others of jobs that have not ended. UNUSED are those
    of no job: `treadle storage blobs clean` deletes them.
    """
    groups, total = {name: AgeGroup(name) for name in AGES}, AgeGroup("all")

    async def count(app: App) -> str:
        with _surveyed(app, "counting") as (storage, objects, bar):
            async for age, text in by_age(storage.storage, objects, bar.counted):
                groups[age].add(text)
                total.add(text)
            return str(objects)

    place = target.run(count, look=True)
    ages = [group for group in groups.values() if group.texts]
    rows = [
        (group.age, group.texts, size(group.bytes), group.needed, group.unfinished, group.unused)
        for group in ((*ages, total) if ages else ())
    ]
    plain = {"place": place, "total": total, "ages": ages}
    listed(json_, plain, COLUMNS, rows, f"{place} has no texts of jobs", right=COLUMNS[1:])
    if total.unused and not json_:
        unused_texts = f"{plural(total.unused, 'text')} of no job, {size(total.unused_bytes)}"
        note(f"{unused_texts}: `treadle storage blobs clean` deletes them")


@blobs.command()
@number("--limit", default=100, show_default=True, help="Number of texts to show.")
@targeted
@as_json
def unused(target: Target, limit: int, json_: bool) -> None:
    """List the texts of no job: their job is gone, or has ended and does not refer to them."""
    plain = list[dict[str, Any]]()

    async def search(app: App) -> None:
        with _surveyed(app, "searching") as (storage, objects, bar):
            async for _, text in by_age(storage.storage, objects, bar.counted):
                if text.use == "unused":
                    entry = text.entry
                    plain.append({"job": text.job, "age": entry.age, "bytes": entry.size, "name": entry.name})
                    if len(plain) == limit:
                        break

    target.run(search, look=True)
    rows = [(text["job"], lasts(text["age"]), size(text["bytes"])) for text in plain]
    listed(json_, plain, UNUSED, rows, "every text is needed by a job", right=("age", "size"))


@blobs.command()
@click.option("--read", is_flag=True, help="Also read every text, and list those that are damaged.")
@targeted
@as_json
def missing(target: Target, read: bool, json_: bool) -> int:
    """List the texts to which stored jobs refer and that the blob store does not have. Exits with 1 if there are any.

    A job without its arguments fails when it is claimed. If a backup of the blob store has the texts, copy them back.
    """

    async def compare(app: App) -> list[Missing]:
        with _surveyed(app, "comparing") as (storage, objects, bar):
            return [text async for text in missing_texts(storage.storage, objects, read, bar.counted)]

    texts = target.run(compare, look=True)
    rows = [
        (
            *(text.id, text.task, text.queue, text.state, text.field, size(text.bytes)),
            "damaged" if text.damaged else "missing",
        )
        for text in texts
    ]
    listed(json_, texts, MISSING, rows, "no text is missing", right=("size",))
    if texts and not json_:
        states = Counter(text.state for text in texts)
        note(", ".join(f"{count:,} of {state} jobs" for state, count in sorted(states.items())))
    return FAILED if texts else OK


# --- deleting


@blobs.command()
@duration(
    "--older-than",
    "age",
    default=f"{defaults.COLLECT_AGE / 3600:g}h",
    show_default=True,
    help="Age of the youngest text to delete, at least 1h.",
)
@click.option("--dry-run", is_flag=True, help="Delete nothing; count what would be deleted.")
@targeted
@as_json
def clean(target: Target, age: float, dry_run: bool, json_: bool) -> None:
    """Delete the texts of no job, as the leader of the workers does every 10 minutes.

    A text stays while a job needs it: one that is stored, one whose transaction is open, and one that is being
    enqueued, which is why no text of less than an hour is deleted. Jobs in an outbox have their texts with them.
    """
    if age < defaults.COLLECT_AGE:
        raise Stop(
            USAGE, "--older-than: expected 1h or more: a text is written before its job, so a young one may be needed"
        )

    async def clean_up(app: App) -> tuple[Collected, str]:
        with _surveyed(app, "cleaning") as (storage, objects, bar):
            done = await storage.collect(age, dry_run, lambda found: bar.counted(found.kept + found.deleted))
            return done, str(objects)

    done, place = target.run(clean_up)
    if json_:
        document({"place": place, "dry_run": dry_run, **picked(done, *done.__struct_fields__)})
    else:
        verb = "would be deleted" if dry_run else "deleted"
        note(
            f"{place}: {plural(done.deleted, 'text')} {verb} ({size(done.deleted_bytes)}), "
            f"{done.kept:,} kept ({size(done.kept_bytes)})"
        )
    if done.held:
        note(f"treadle: {done.held:,} of them may belong to a transaction that is open; clean again when it is over")
    if done.moving:
        note("treadle: nothing more is deleted, because the jobs are being moved to another storage, or were moved")
