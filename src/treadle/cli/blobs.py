"""`treadle blobs`: counts the large texts in a blob store, finds those that are missing, and deletes unused ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from treadle.cli.output import FAILED, OK, USAGE, Stop, as_json, document, lasts, note, plural, seconds, size, table
from treadle.cli.target import Target, targeted
from treadle.cli.watch import Listing
from treadle.core import defaults

if TYPE_CHECKING:
    from treadle.app import App
    from treadle.storage import AgeGroup, Collected, Missing, PayloadStorage

COLUMNS: Final = ("age", "texts", "size", "needed", "unfinished", "unused")
UNUSED: Final = ("job", "age", "size")
MISSING: Final = ("job", "task", "queue", "state", "field", "size", "problem")


@click.group(cls=Listing)
def blobs() -> None:
    """Count the large texts in the blob store, find missing ones, and delete those of no job.

    The blob store is that of the app in --app, otherwise TREADLE_BLOBS names it: a folder, or s3://bucket/prefix.
    """


def _storage(app: App) -> PayloadStorage:
    """The storage of an app with a blob store. Raises Stop, and BadOption if its rows do not show every reference."""
    from treadle.storage import PayloadStorage

    storage = app.storage
    if not isinstance(storage, PayloadStorage) or storage.texts.objects is None:
        raise Stop(
            USAGE, "there is no blob store: give --app with an App(blobs=...), or set TREADLE_BLOBS to the same place"
        )
    storage.check_sees_all()
    return storage


# --- what is there


@blobs.command("list")
@targeted
@as_json
def list_(target: Target, json_: bool) -> None:
    """Count the texts in the blob store by age, and those that a job needs.

    NEEDED are those to which a stored job refers. UNFINISHED are others of jobs that have not ended. UNUSED are those
    of no job: `treadle blobs clean` deletes them.
    """
    groups, place = target.run(_counted, look=True)
    total = _total(groups)
    if json_:
        document({"place": place, "total": total, "ages": groups})
        return
    rows = [_counts(each) for each in (*groups, total)] if groups else []
    table(COLUMNS, rows, f"{place} has no texts of jobs", right=COLUMNS[1:])
    if total.unused:
        note(
            f"{plural(total.unused, 'text')} of no job, {size(total.unused_bytes)}: `treadle blobs clean` deletes them"
        )


async def _counted(app: App) -> tuple[list[AgeGroup], str]:
    from treadle.cli.progress import Bar
    from treadle.storage import AGES, AgeGroup, by_age

    storage = _storage(app)
    objects = storage.texts.objects
    assert objects is not None
    groups = {name: AgeGroup(name) for name in AGES}
    with Bar("counting", 0) as bar:
        async for age, each in by_age(storage.storage, objects, bar.counted):
            groups[age].add(each)
    return [group for group in groups.values() if group.texts], str(objects)


def _total(groups: list[AgeGroup]) -> AgeGroup:
    from treadle.storage import AgeGroup

    fields = AgeGroup.__struct_fields__[1:]
    return AgeGroup("all", **{field: sum(getattr(each, field) for each in groups) for field in fields})


def _counts(each: AgeGroup) -> tuple[object, ...]:
    return each.age, each.texts, size(each.bytes), each.needed, each.unfinished, each.unused


@blobs.command()
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Number of texts to show.")
@targeted
@as_json
def unused(target: Target, limit: int, json_: bool) -> None:
    """List the texts of no job: their job is gone, or has ended and does not refer to them."""
    found = target.run(lambda app: _unused(app, limit), look=True)
    if json_:
        document(found)
        return
    rows = [(each["job"], lasts(each["age"]), size(each["bytes"])) for each in found]
    table(UNUSED, rows, "every text is needed by a job", right=("age", "size"))


async def _unused(app: App, limit: int) -> list[dict[str, Any]]:
    from treadle.cli.progress import Bar
    from treadle.storage import by_age

    storage = _storage(app)
    objects, found = storage.texts.objects, list[dict[str, Any]]()
    assert objects is not None
    with Bar("searching", 0) as bar:
        async for _, each in by_age(storage.storage, objects, bar.counted):
            if each.use == "unused":
                entry = each.entry
                found.append({"job": each.job, "age": entry.age, "bytes": entry.size, "name": entry.name})
                if len(found) == limit:
                    break
    return found


@blobs.command()
@click.option("--read", is_flag=True, help="Also read every text, and list those that are damaged.")
@targeted
@as_json
def missing(target: Target, read: bool, json_: bool) -> int:
    """List the texts to which stored jobs refer and that the blob store does not have. Exits with 1 if there are any.

    A job without its arguments fails when it is claimed. If a backup of the blob store has the texts, copy them back.
    """
    found = target.run(lambda app: _missing(app, read), look=True)
    if json_:
        document(found)
    else:
        rows = [
            (
                each.id,
                each.task,
                each.queue,
                each.state,
                each.field,
                size(each.bytes),
                "damaged" if each.damaged else "missing",
            )
            for each in found
        ]
        table(MISSING, rows, "no text is missing", right=("size",))
        states = Counter(each.state for each in found)
        if found:
            note(", ".join(f"{count:,} of {state} jobs" for state, count in sorted(states.items())))
    return FAILED if found else OK


async def _missing(app: App, read: bool) -> list[Missing]:
    from treadle.cli.progress import Bar
    from treadle.storage import missing as missing_texts

    storage = _storage(app)
    objects = storage.texts.objects
    assert objects is not None
    with Bar("comparing", 0) as bar:
        return [each async for each in missing_texts(storage.storage, objects, read, bar.counted)]


# --- deleting


@blobs.command()
@click.option(
    "--older-than",
    "age",
    type=seconds,
    metavar="SECONDS",
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
    done, place = target.run(lambda app: _cleaned(app, age, dry_run))
    if json_:
        document({"place": place, "dry_run": dry_run, **_fields(done)})
    else:
        words = "would be deleted" if dry_run else "deleted"
        note(
            f"{place}: {plural(done.deleted, 'text')} {words} ({size(done.deleted_bytes)}), "
            f"{done.kept:,} kept ({size(done.kept_bytes)})"
        )
    if done.held:
        note(f"treadle: {done.held:,} of them may belong to a transaction that is open; clean again when it is over")
    if done.moving:
        note("treadle: nothing more is deleted, because the jobs are being moved to another storage, or were moved")


async def _cleaned(app: App, age: float, dry: bool) -> tuple[Collected, str]:
    from treadle.cli.progress import Bar

    storage = _storage(app)
    with Bar("cleaning", 0) as bar:
        done = await storage.collect(age, dry, lambda found: bar.counted(found.kept + found.deleted))
    return done, str(storage.texts.objects)


def _fields(done: Collected) -> dict[str, object]:
    return {field: getattr(done, field) for field in done.__struct_fields__}
