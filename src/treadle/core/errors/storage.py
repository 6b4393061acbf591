"""Errors of the storage: it refuses a call, or is unavailable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from treadle.core.errors.base import CODE, TreadleError


class StorageError(TreadleError):
    """The storage refused a call, and stored nothing of it. After StorageUnavailable that is unknown."""


class BadUrl(StorageError, ValueError):
    """A storage URL that cannot be parsed, or that has an invalid option."""

    fails_as: str | None = CODE


class StorageUnavailable(StorageError, ConnectionError):
    """The storage cannot be reached now. It is unknown whether the last call was applied; repeating it is safe."""


class AnswerTooLarge(StorageUnavailable):
    """A response was above the client's limit: from a hostile server, or because one call requested too much.

    `unit` is what was counted: bytes, values, arrays and objects, jobs, or pages.
    """

    def __init__(self, place: str, limit: int, unit: str = "bytes", advice: str = "") -> None:
        self.place, self.limit, self.unit, self.advice = place, limit, unit, advice
        super().__init__(
            f"{place}: expected a response of at most {limit:,} {unit}, found more{advice and f'; {advice}'}"
        )


class Locked(StorageError):
    """Another open transaction holds a lock that the call needs. Nothing of the call was stored; it may be repeated.

    where        the storage
    what         what is locked, in words
    jobs         the ids of the jobs of an enqueue that wait for it; empty: unknown
    pid          the process of that transaction: with PostgreSQL the server's, with SQLite the program's; None: unknown
    application  the name that its program gave to the connection, or the program's own; empty: unknown
    age          seconds since that transaction began; None: unknown
    state        what its session does, in the server's words, such as `idle in transaction`; empty: unknown
    """

    def __init__(
        self,
        where: str,
        what: str,
        jobs: Sequence[str] = (),
        pid: int | None = None,
        application: str = "",
        age: float | None = None,
        state: str = "",
    ) -> None:
        self.where, self.what, self.jobs = where, what, tuple(jobs)
        self.pid, self.application, self.age, self.state = pid, application, age, state
        known = [
            application and f"application {application!r}",
            "" if age is None else f"open for {age:.1f} s",
            state,
        ]
        more = ", ".join(word for word in known if word)
        holder = "another open transaction" if pid is None else f"the open transaction of process {pid}"
        super().__init__(
            f"{where}: {holder}{f' ({more})' if more else ''} holds {what}; nothing of the call was stored: end that "
            "transaction, or repeat the call"
        )


class StorageFull(StorageError):
    """The storage has no space left, or has become read-only. Nothing of the call was stored."""


# Errors that may pass by themselves: a program that has time repeats the call.
PASSING: Final = (StorageUnavailable, StorageFull, Locked)


class StorageDenied(StorageError):
    """This user may not do that: wrong credentials, a missing right, or a file that it cannot write. Waiting does not
    help."""


class SchemaTooNew(StorageError):
    """The storage was written by a newer Treadle than this one."""

    def __init__(self, found: int, known: int) -> None:
        self.found, self.known = found, known
        super().__init__(f"the storage has schema {found}, this Treadle knows up to {known}: upgrade Treadle")


class SchemaTooOld(StorageError):
    """A storage that was opened only to be read has nothing of Treadle (`found` is 0), or what an older one wrote.

    lacks  the part that the older one did not write, if the schema has the same number
    """

    def __init__(self, found: int, known: int, where: str, lacks: str = "") -> None:
        self.found, self.known, self.where, self.lacks = found, known, where, lacks
        if not found:
            what = f"{where} does not exist yet, or has nothing of Treadle"
            what += ": check the URL, or run `treadle storage migrate`"
        elif lacks:
            what = f"{where} was written by an older Treadle and lacks {lacks}: run `treadle storage migrate` first"
        else:
            what = f"{where} has schema {found}, this Treadle reads {known}: run `treadle storage migrate` first"
        super().__init__(what)


class NotADatabase(StorageError):
    """The file is not a Treadle database, or cannot be created because its folder does not exist."""


class Unsupported(StorageError):
    """This kind of storage cannot do something. `storage` names it, `what` the operation, `instead` an alternative."""

    fails_as: str | None = CODE

    def __init__(self, storage: str, what: str, instead: str) -> None:
        self.storage, self.what, self.instead = storage, what, instead
        super().__init__(f"{storage} does not support {what}; {instead}")


class BadSession(StorageError, ValueError):
    """The value of `within=` is not a transaction that the jobs can join. Nothing was stored.

    `session` describes the value, `problem` says why it cannot be used.
    """

    fails_as: str | None = CODE

    def __init__(self, session: str, problem: str) -> None:
        self.session, self.problem = session, problem
        super().__init__(f"within={session}: {problem}")


class StorageMoved(StorageError):
    """The jobs of this storage were moved to another one; it stores nothing any more. `target` is that URL, masked."""

    def __init__(self, storage: str, target: str) -> None:
        self.storage, self.target = storage, target
        super().__init__(f"the jobs of {storage} were moved to {target}: use that URL")


class NestedTransaction(StorageError):
    """A call inside an open transaction, but not through it, would wait for the end of that transaction."""

    fails_as: str | None = CODE


class EventLoopError(NestedTransaction, RuntimeError):
    """The event loop on which the app is open cannot carry out the call: it does not run, or it is the caller's own and
    would wait for itself. A subclass of NestedTransaction for compatibility with older programs."""

    fails_as: str | None = None  # a loop that has ended with its program may run in the next attempt


class MoveFailed(TreadleError):
    """A move cannot begin, continue or be cancelled; the message says what to do. Nothing was lost."""
