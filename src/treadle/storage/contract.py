"""The seam: all that a storage must offer, in thirteen methods of which four carry every job.

Each call is one atomic step on plain data. The storage keeps, counts and orders; it never judges: retries,
timeouts and failure policy arrive decided, as values. `treadle.testing.conformance` is this page as tests.

The life of a job:

    enqueue --> WAITING --(endings it needs)--> READY --(due)--> in line --claim--> RUNNING --settle--> final
                   ^                              ^  ^                                 |  |
                   |                              |  +--- lease ran out, lost + 1 -----+  |
                   +------------------------------+------------- settle (later, waiting) -+

Exactly:

* **Joining the line** fixes the sort key (priority, place, id). place is the moment of joining (the due moment for
  delayed jobs), kept as `joined_at`. With `aging` the job sorts as priority 0 at place - aging x priority. With a
  `lane` it stands `stride` behind the last of its lane in line (same queue and priority), or, if there is none, at
  the place of the first of them. A job that was lost, handed back (READY with delay 0) or has waited in its run
  returns to its `joined_at`; one that comes back after a delay, or was reopened, joins anew.
* **Claims** repeated under a ticket answer what still runs under it, and tend nothing; each ticket is remembered, not
  only the last. With `ids` the queues asked for do not matter. A row with task "" is nobody's to run: when its `after`
  have ended it waits on, for its settlement. `next_in` looks at what is due in all queues, and, of those asked for, at
  when a rate of their own lets the next of their line start.
* **Tending**: claim, heartbeat (after its holds) and prune act on rows whose due_at has come (`due_at <= now`,
  leases `due_at < now`): scheduled jobs join the line; lost leases return (`lost + 1`, version unchanged, `worker`
  kept, reason "lost by <name of the worker>"); a job that is not running when its deadline passes fails as expired
  (unless it `ran`); a waiting job past `wait_timeout` fails as expired if it was never claimed, and joins the line if
  it `ran` or waits in its run.
* **Count-down**: an ending lowers `pending` of each job that waits for it, once, and only for the wait that named it.
  With slack None every ending counts. Otherwise a success counts, a failure lowers `slack` instead, and below zero
  the endings it needs can no longer come: a job never claimed is *doomed*, cancelled in the same step with reason
  "upstream", and its own dependents follow; one that was claimed, or `ran`, joins the line.
* **Ranges**: `enqueue`, `claim`, `heartbeat` and `set_limits` raise BadOption for a name, a number or a text out of
  range, and TooLarge for one that is too long; nothing is stored. An outcome with such a value is refused alone. See
  `core/ranges.py` and `storage/value_checks.py`. In payloads, results, errors, notes and memo values U+0000 is a
  character like others. Rows that earlier versions stored are read and claimed as they are; a cost below 1 counts as 1.
* **Chosen ids**: a job with a `nonce` whose id is known refuses the whole call with IdTaken if the stored row has
  another nonce and another task or payload. An earlier job of the same call counts as stored. Keys come after this.
* **Reach**: a job, outcome, hold or claim with a `reach` concerns rows of these queues only; any other row counts as
  not there. Where such a row is in the way, the refusal tells nothing of it: a known id in another queue refuses the
  call with IdTaken, a key held there with KeyHeld (its `id` empty), whatever `key_conflict` says. `after` must name
  jobs of these queues, stored or of the call, also with `wait_timeout`. So must `parent`, and `root` must be that
  parent's root; without a parent, `root` must be in reach itself. Else UnknownUpstream. An outcome may also name in
  `after` what its job waits for already. Endings act on all jobs that wait for them, in any queue.
* **Own ids**: a job whose id begins with "treadle:" and is known refuses the call with IdTaken if the stored row has
  another queue, root or parent: somebody else has stored it.
* **Keys**: a new job whose key is held is answered by the holder ("keep"), refuses the whole call with KeyHeld
  ("raise"), or takes its place ("replace": a holder never claimed, or ready again, is cancelled as superseded; one that
  is running, waits in its run, or ran, gives its key away, and the new job waits for its ending, whatever it is, beside
  its own `after`; who supersedes a job that waits so waits as that did). Stored with an outcome that does not end, a
  job takes the key of the very job being settled too, and never waits for it: that goes on without the key. A holder
  that ended within its `key_window` answers "keep" and "replace" alike. `Record.after` names the rows that answered, in
  the order asked for; a row it names twice ends once, and `slack` is at most what leaves endings enough for `need`.
  A job that waits in an outcome for a `then` job waits for the row that answered this one; not for a row that waits for
  the job itself, directly or through others. An outcome is refused if a job born of it, which its job waits for, names
  such a row in `after`.
* **Limits**: claims check, in order, the queue's own ("queue:<name>", else "queue"): shut, nobody of that line moves;
  then each job's: shut, the job steps aside (`parked`, place None) and returns to its turn when there is room.
  Queue by queue, those aside return in turn while there is room. One that returned and is not claimed yet takes its
  room from those behind it only: no job waits for a returned one that stands after it. The first for which no slot is
  free bars those behind it that need one; the first that the rate does not let through bars all.
  The rule that acts is the operator's, else the declared one; while there is a reason to pause the limit, it has 0
  slots. It is looked up by the full name, then by the part before ":". A cost beyond the rule counts as all of it.
  `ran` jobs pass everything and use nothing, but with hold="ended" a slot is kept from the first claim to the
  ending, by them too, from the call on that claims them.
* **Reopening** (READY on an ended job) begins a round: attempt and lost 0, its key taken again, the deadline counted
  from now; memo and note stay. With it what it doomed, and each ancestor that failed because of "children", wait
  again, for those of their upstreams that have to end again; who waits still gets back what that ending counted.
  If any of them finds its key held, all is refused.
* **Versions** rise by claim, settle and every ending, not by a lost lease, nor when only `keep` is assigned. The same
  outcome again (its version one transition old, state, attempt, result, value, error and reason equal) is "applied".
* **A clock set back**: a heartbeat that finds its worker's last one more than `CLOCK_BACK` seconds in the future takes
  what the clock wrote meanwhile back with it. Starts that rates remember count as now, and jobs that are due later
  (after a delay, or at the end of a lease) keep the time they had left when they were written.
* **Topics** of watch: "queue:<name>" when its line may have grown, "job:<id>" when that job ended, was settled with a
  result of its own before that, or its note changed, "worker:<name>" when a job it runs was settled with the reason
  "asked" or "superseded".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from treadle.core.model import (
    Claim,
    Claimed,
    Held,
    Hold,
    LimitChange,
    LimitUse,
    NewJob,
    Outcome,
    Page,
    Presence,
    Query,
    Record,
    Settled,
    Stats,
)
from treadle.storage.transfer import Chunk, MoveState


class Storage(Protocol):
    """Where jobs live. Methods raise StorageError (StorageUnavailable: not known whether applied; repeat it)."""

    async def open(self) -> None:
        """Connect and migrate. Twice is once. Raises BadUrl, SchemaTooNew, NotADatabase, StorageUnavailable."""

    async def close(self) -> None:
        """Let go of everything. Twice is once; a closed storage may be opened again."""

    # the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        """Store the jobs that are not there yet; answer, in order, the row each is or was answered by.

        A new row's `job` is the very NewJob given, unless `after` named a job of this call that another row answered.
        All or nothing: raises UnknownUpstream (an id in `after` nobody knows, without wait_timeout), KeyHeld,
        IdTaken.
        """
        ...

    async def claim(self, ask: Claim) -> Claimed:
        """Lease the first jobs in line that are asked for and that every limit lets through.

        Past very many who are blocked it goes in steps, each of them atomic, with others let in between. It answers
        none only when none can start, but may answer fewer than could.
        """
        ...

    async def heartbeat(self, worker: Presence, holds: Sequence[Hold], lease: float) -> Held:
        """Lengthen the leases still held, saving memo and note; answer the ids held no longer, and those not written.

        A memo is stored unless the answer names its job: the caller may then never run that step again. A storage
        waits a second at most for a row that another transaction has, and only for a hold with a memo.

        A lease that ran out is taken up again (out of line) unless the job was claimed, or its slot given away.
        """
        ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Apply each outcome whose version is current; say of each what became of it.

        An outcome that cannot be stored ("refused": unknown job in `after`, an id taken, a key held when reopening)
        fails alone.
        One that had to wait too long for a row somebody else holds is refused with `again`: settle it once more.
        """
        ...

    # looking

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        """The rows, in order; None where there is none. Reads what is stored; tends nothing."""
        ...

    async def find(self, query: Query) -> Page:
        """One page. Pages are cut by a unique order, so walking them shows each row once."""
        ...

    async def stats(self) -> Stats:
        """Counts by queue, task and state; the workers whose last heartbeat is no older than their `ttl`, each with its
        `age`; limits and their use."""
        ...

    # tending

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        """The limits as `stats` shows them, without a look at the jobs that neither run nor stand aside. Without `use`
        only the rules are read: `used`, `parked` and `starts` are 0, `next_start` is None, and partitions without a
        rule of their own are not named."""
        ...

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        """Apply these changes in their order, in one step; acts on the next claim. Each changes its own fact, so two
        callers never undo each other's. Changes that are true already cost a look and wake nobody."""
        ...

    async def prune(self, limit: int) -> int:
        """Tend; then delete up to `limit` ended rows past `expires_at` that no unfinished job needs:
        none it waits for, none of its workflow (same root). Answers how many went."""
        ...

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        """Wait until one of the topics speaks, or `timeout` seconds; answer which. A hint: it may just sleep.

        What is spoken after the call has first been stepped into is not missed.
        """
        ...


@runtime_checkable
class Fused(Protocol):
    """A storage that can settle and claim in one trip; worth 60 % on a hot loop. The answers are those of the two."""

    async def settle_claim(self, outcomes: Sequence[Outcome], ask: Claim) -> tuple[list[Settled], Claimed]: ...


@runtime_checkable
class OneByOne(Protocol):
    """A storage that answers this process one call at a time: two trips under way would be two halves, one waiting for
    the other. A worker makes one trip at a time then, of twice the size; a tenth of the CPU of a job less on SQLite."""

    one_by_one: ClassVar[Literal[True]]


@runtime_checkable
class DearTrips(Protocol):
    """A storage whose trips cost much however little they carry. While there is work, a worker with a concurrency up to
    this makes one trip at a time, of twice the size: two that carry eight jobs each take half as much again of its
    server for a job."""

    one_trip_up_to: ClassVar[int]


@runtime_checkable
class Confined(Protocol):
    """A storage that gives this process jobs of some queues only, because its token is bound to them. A worker on it
    neither tends nor claims Treadle's own queue, and stores no schedules: whatever is beyond the token does that.

    queues  these queues, known once it is open; (): every queue
    """

    queues: tuple[str, ...]


def confined(storage: object) -> tuple[str, ...]:
    """The queues of which alone this process is given jobs; (): every queue."""
    return storage.queues if isinstance(storage, Confined) else ()


class Post(Protocol):
    """Where a worker of this process is handed jobs."""

    address: str

    def close(self) -> None:
        """Nothing is handed to it any more. Twice is once."""
        ...


@runtime_checkable
class Handing(Protocol):
    """A storage that can hand a job to a worker that waits, in the step that stores it: a trip less on its way.

    A claim with `hand` that finds nothing stays as an ask for one job, under its ticket. Who stores a job may then make
    that claim for the worker, in the same step, and say so at the address; the line is not said to have grown. It is a
    claim like any other: in its turn, past every limit, with a lease. The ask is over then, and also at its end, or by
    the next claim with its address. What is said may be lost, for a claim can be repeated: made again under its ticket
    it answers the job that was handed over. No job is handed to an address that is known to hear nothing.
    """

    def post(self, take: Callable[[str, Record], None]) -> Post | None:
        """A new address; `take` is called with ticket and job in the loop of this process. None: not on this server."""
        ...


class Bound(Protocol):
    """The verbs that make sense inside a transaction: what they do commits or vanishes with it.

    They answer as those of the storage do, and see what the transaction has done already. A refusal (KeyHeld,
    UnknownUpstream, IdTaken, "refused", "stale") leaves nothing behind and the transaction as usable as before. Hints
    are spoken after the commit, as soon as the storage can know of it.
    """

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]: ...
    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]: ...
    async def get(self, ids: Sequence[str]) -> list[Record | None]: ...


class Transaction(Protocol):
    """A transaction on the storage's own database, begun for one run: the function's writes, then its settling.

    raw    what the function writes with: a connection of the storage's driver, made for nothing else
    bound  the verbs inside it; made before the function is let at `raw`, so that nothing the user does to the
           connection changes how they work
    alone  while it is open no other write to the storage gets through (SQLite): nothing may wait for one meanwhile
    """

    raw: Any
    bound: Bound
    alone: bool

    async def commit(self) -> None:
        """Make it durable. StorageUnavailable: it is not known whether it is; anything else: it is not, nor will be."""
        ...

    async def roll_back(self) -> None:
        """Undo it; from now on `raw` refuses every statement. After `commit`, or twice, it does nothing."""
        ...

    async def close(self) -> None:
        """Let go of the connection, once nobody uses `raw` any more; undoes what is open. Never raises."""
        ...


@runtime_checkable
class Transactional(Protocol):
    """A storage that can act inside a transaction on its database: the user's own, or one made for a run."""

    def within(self, session: Any) -> Bound:
        """The verbs inside a transaction of the user's (`storage.sessions` says what that may be). The storage need not
        be open; where it never was, the verbs raise StorageError unless its schema is there. Nothing is asked of the
        session yet; each verb raises BadSession for one that is closed, commits by itself, or belongs to
        another database than this storage. A session that is not of asyncio is never waited on: `at_once` may drive
        the verbs in a plain thread, also in one that is not the storage's."""
        ...

    async def begin(self, sync: bool) -> Transaction:
        """Begin a transaction for one run. `sync`: its connection is used in a thread, so it must not be of asyncio."""
        ...


@runtime_checkable
class Movable(Protocol):
    """A storage whose jobs can be carried to another one, or that can take those of another one in.

    `unload` says everything that is stored, `load` stores exactly that: `load(unload())` into an empty storage makes
    one that answers every call as the first would have. Marks (`storage.carrying`) say who may do what meanwhile.
    """

    async def read_mark(self) -> MoveState | None:
        """The move this storage is part of, if any."""
        ...

    async def set_mark(self, mark: MoveState) -> None:
        """Put a mark in place of the stored one, if `carrying.replaces` allows it; else raise MoveFailed and change
        nothing; raise `carrying.InTheWay` and change nothing while a transaction that may have stored jobs is open: to
        be called again. The next call of any process obeys it. Where it opens the storage, workers are woken and jobs
        blocked by a limit that has room return to the line."""
        ...

    async def unload(self, cursor: str | None, limit: int) -> Chunk:
        """The next `limit` jobs behind the cursor, in an order that does not change while nothing is written. The first
        load has the rules and what rates remember. Reads only, under any mark."""
        ...

    async def load(self, load: Chunk, mark: MoveState) -> None:
        """Store these rows as they are, and the mark, in one step; raise MoveFailed and store nothing if the mark is
        refused (see `set_mark`). An id that is known is left as it is, so a load may be repeated. Nothing is tended,
        counted down or woken."""
        ...
