"""Goes back in the history of a job: the entries that stay when it runs again from one of its steps. Pure.

Entries that were stored later than the step may depend on it, including those of a branch that ran at the same time. So
the order of storing decides, and the order of the steps only adds to the dropped entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from treadle.core.errors import UNREADABLE, BadOption
from treadle.core.model import BEGUN_WITH, OURS, Outcome, Pairs, Record, State
from treadle.core.similar_names import near
from treadle.durable.checkpoints import Checkpoint, read_entry
from treadle.durable.children import is_ended, is_loop
from treadle.durable.run_mailboxes import RELEASED
from treadle.policy import guilt
from treadle.policy.cleanups import UNDONE
from treadle.policy.rounds import EMPTY, Mailbox, Round, mailbox_note, mailboxes_of, round_note, round_of
from treadle.workflow.streams import streams_again

FORK: Final = "treadle:fork"  # the checkpoint of a fork
KINDS: Final = ("", "sleep:", "wait:", "receive:", "call:", "lock:", "approve:")
SHOWN: Final = 10  # names of steps in an error
Entries = dict[str, Checkpoint]


class ForkedFrom(Struct, frozen=True):
    """The content of `FORK`. `step`: None: the start."""

    job: str
    step: str | None


def rewound(record: Record, step: str | None) -> Outcome:
    """Run again in a new round from this step on; None: from the start. Attempts count from 0.

    Raises BadOption for a step that is not stored, BadStep for a history that cannot be read.
    """
    entries = entries_of(record)
    return _anew(record, entries, entries_before(record, entries, step), step)


def after_undos(record: Record) -> Outcome | None:
    """The outcome that begins a new round of a job which was reopened after its cleanup, because the steps that were
    undone must run again; a fork keeps the steps that it has taken over. None: the job continues."""
    if dict(record.checkpoints).get(UNDONE) != str(record.reopenings):
        return None
    entries = entries_of(record)
    outcome = _anew(record, entries, {key for key, entry in entries.items() if entry.taken_over})
    return replace(outcome, result=record.result, checkpoints=(*outcome.checkpoints, (UNDONE, "")))


def _anew(record: Record, entries: Entries, kept: set[str], step: str | None = None) -> Outcome:
    """Begin a new round with these entries, from this step on."""
    then, stored = Round(round_of(record.checkpoints).number + 1), dict(record.checkpoints)
    first = None if step is None else _key(record, entries, step)
    changed = {
        key: stored[key] if entry is entries[key] else msgspec.json.encode(entry).decode()
        for key, entry in _begun_anew(entries, kept, first).items()
    }
    return Outcome(
        id=record.id,
        version=record.version,
        state=State.READY,
        checkpoints=(
            round_note(then),
            *guilt.cleared_note(record),
            *_mailboxes_again(record, entries, kept),
            *streams_again(record.checkpoints),
            *changed.items(),
        ),
    )


def _begun_anew(entries: Entries, kept: set[str], first: str | None) -> Entries:
    """The entries that stay, in their order; `first`: the step that is the first to run again. A time limit or a wait
    with a timeout among them begins anew, unless it has taken effect at a place that stays, and the function has
    continued behind it."""
    stay = {key: entry for key, entry in entries.items() if key in kept}
    places = {"", *stay, *(_before(entry) for key, entry in entries.items() if key in kept or key == first)}
    for key, entry in stay.items():
        if entry.life is not UNSET or entry.cut not in places:
            stay[key] = replace(entry, until=UNSET, cut="", gave_up=False, life=UNSET)
    return stay


def forked(record: Record, step: str | None, same_arguments: bool) -> Pairs:
    """The checkpoints of a new job that continues from this step of another one. Raises as `rewound`."""
    entries = entries_of(record)
    kept = entries_before(record, entries, step)
    read = {name: turn for name, turn, is_kept in _received(entries, kept) if is_kept}
    pairs = [mailbox_note(name, Mailbox(turn)) for name, turn in read.items()]
    first = None if step is None else _key(record, entries, step)
    for name, entry in _begun_anew(entries, kept, first).items():
        changed = replace(entry, taken_over=True) if same_arguments else replace(entry, args=UNSET, taken_over=True)
        pairs.append((name, msgspec.json.encode(changed).decode()))
    fork = FORK, msgspec.json.encode(ForkedFrom(record.id, step)).decode()
    version = [pair for pair in record.checkpoints if pair[0] == BEGUN_WITH]
    return (round_note(Round()), fork, *version, *pairs)


def turns_given_up(record: Record, step: str | None) -> list[str]:
    """The turns of locks that the job has or waits for, and whose entries do not stay when it runs again from this
    step. Raises as `rewound`."""
    entries = entries_of(record)
    kept = entries_before(record, entries, step)
    return [entry.lock for name, entry in entries.items() if entry.lock and not entry.exit and name not in kept]


def forked_from(record: Record) -> ForkedFrom | None:
    """The job and the step from which this job was forked; None: it was not."""
    text = dict(record.checkpoints).get(FORK)
    try:
        return None if text is None else msgspec.json.decode(text, type=ForkedFrom)
    except UNREADABLE:  # another program has stored it
        return None


def entries_of(record: Record) -> Entries:
    """The entries of a job by their keys, in the order in which they were stored. Raises BadOption."""
    entries: Entries = {}
    for name, text in record.checkpoints:
        if not name.startswith(OURS):
            try:
                entries[name] = read_entry(text)
            except UNREADABLE as error:
                problem = f"the checkpoint {name!r} of job {record.id} cannot be read: {error}"
                raise BadOption("from_step", problem) from None
    return entries


def entries_before(record: Record, entries: Entries, step: str | None) -> set[str]:
    """The keys of the entries that stay."""
    if step is None:
        return set()
    key, names = _key(record, entries, step), list(entries)
    dropped = set(names[names.index(key) :]) | set(_around(entries, key))
    while later := {name for name in entries if name not in dropped and _before(entries[name]) in dropped}:
        dropped |= later
    return {name for name in entries.keys() - dropped if not _is_open(name, entries[name])}


def _key(record: Record, entries: Entries, step: str) -> str:
    keys = [kind + step for kind in KINDS if kind + step in entries]
    if len(keys) == 1 or step in entries:
        return keys[0]
    names = [*entries][-SHOWN:]
    has = f"its last steps are {', '.join(map(repr, names))}" if names else "it has none"
    raise BadOption("from_step", f"job {record.id} has no stored step {step!r}{near(step, entries)}; {has}")


def _before(entry: Checkpoint) -> str:
    """The key of the step that an entry follows. For the first entry inside a step, the key of that step."""
    return entry.after.rstrip("&>")


def _is_open(key: str, entry: Checkpoint) -> bool:
    """Whether this is a call whose jobs have not ended: a new round has other jobs. A loop over jobs says only how many
    they are; other entries say which of them have ended."""
    return entry.child != "" and not is_ended(entry) and not is_loop(key)


def _around(entries: Entries, key: str) -> Iterable[str]:
    """The steps inside of which this one was taken: they are stored, too, while they wait for their next try."""
    seen = set[str]()
    while key not in seen and key in entries:
        seen.add(key)
        after = entries[key].after
        key = after.rstrip("&>")
        if ">" in after[len(key) :]:
            yield key


def _received(entries: Entries, kept: set[str]) -> list[tuple[str, int, bool]]:
    """The messages and signals that were received: the mailbox, the number of its row, and whether the entry stays; in
    the order of the numbers."""
    received = [
        (key.partition(":")[2].partition("#")[0], entry.turn, key in kept)
        for key, entry in entries.items()
        if isinstance(entry.turn, int)
    ]
    return sorted(received, key=lambda one: one[1])


def _mailboxes_again(record: Record, entries: Entries, kept: set[str]) -> Pairs:
    """Let the new round receive again what deleted entries had received, if the rows are still stored."""
    again = mailboxes_of(record.checkpoints)
    for name, turn, is_kept in _received(entries, kept):
        mailbox = again.get(name, EMPTY)
        if not is_kept and turn > (mailbox.turn - 1) // RELEASED * RELEASED:
            again[name] = Mailbox(mailbox.turn, None, tuple(sorted({*mailbox.back, turn})))
    return tuple([mailbox_note(name, mailbox) for name, mailbox in again.items()])
