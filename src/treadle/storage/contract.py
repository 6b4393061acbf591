"""The storage contract: seventeen methods, four of which carry every job.

Each call is one atomic step on plain data. The storage keeps, counts and orders jobs. It decides nothing: retries,
timeouts and failure policy arrive as values. `treadle_testkit.conformance` is this page as tests.

The states of a job:

    enqueue --> WAITING --(endings it needs)--> READY --(due)--> queued --claim--> RUNNING --settle--> final
                   ^                              ^  ^                                |  |
                   |                              |  +--- lease expired, lost + 1 ----+  |
                   +------------------------------+------------- settle (later, waiting) +

The rules:

* **Queue order** is (priority, position, id). The position is the moment at which a job is queued, for a delayed job
  the moment at which it is due. It is kept as `return_position`. With `aging` a job sorts as priority 0 at position -
  aging x priority. With a `lane` its position is `stride` behind the last queued job of its lane (same queue and
  priority), or the position of the first queued job if its lane has none. A job returns to its `return_position` when
  its lease expired, when it is released (READY with delay 0), and when it waited in its run. It gets a new position
  when it is queued again after a delay, and when it is reopened.
* **Claims**: a claim repeated under its claim id returns the jobs that still run under it, and does no maintenance.
  Every claim id is remembered, not only the last. With `ids` the queues of the claim are ignored. No claim returns a
  job whose task is "": when the jobs in its `after` have ended, it still waits until it is settled. `next_in` considers
  due jobs of all queues, and for the queues of the claim the moment at which a rate of their own admits the next job.
* **Maintenance** is done by claim, heartbeat (after its renewals) and prune, on rows whose `due_at` has come
  (`due_at <= now`, leases `due_at < now`). Scheduled jobs are queued. Jobs whose lease expired are queued again
  (`lost + 1`, version unchanged, `worker` kept, reason "lost by <name of the worker>"). A job that is not running when
  its deadline passes fails as expired, unless its function is done. A waiting job past its `wait_timeout` fails as
  expired if it was never claimed; it is queued if its function is done or it waits in its run.
* **Counting endings**: an ending lowers `pending` of each job that waits for it, once, and only for the wait that named
  it. If `failures_allowed` is None every ending counts. Otherwise a success counts and a failure lowers
  `failures_allowed`. Below zero the required endings can no longer come: a job that was never claimed is *doomed*, that
  is cancelled in the same step with reason "upstream", and so are its own dependents. A job that was claimed, or whose
  function is done, is queued.
* **Ranges**: `enqueue`, `claim`, `heartbeat` and `set_limits` raise BadOption for a name, number or text out of range
  and TooLarge for one that is too long; then nothing is stored. An outcome with such a value is refused alone. See
  `core/ranges.py` and `storage/value_checks.py`. Payloads, results, errors, notes and checkpoints may contain U+0000.
* **Chosen ids**: a job with a `nonce` and a known id makes the call raise IdTaken if the stored row has another nonce
  and another task or payload. An earlier job of the same call counts as stored. Ids are checked before keys.
* **Reach**: a job, outcome, renewal or claim with a `reach` concerns only rows of these queues; other rows count as
  missing. A refusal reveals nothing about such a row: a known id in another queue raises IdTaken, and a key held in
  another queue raises KeyHeld with an empty `id`, whatever `key_conflict` says. `after` must name jobs of these queues,
  stored or of the call, even with `wait_timeout`. So must `parent`, and `root` must be the root of that parent. Without
  a parent, `root` itself must be in reach. Otherwise UnknownUpstream is raised. An outcome may also name in `after` the
  jobs that its job waits for already. Endings count for all waiting jobs, in any queue.
* **Own ids**: an id that begins with "treadle:" and is known makes the call raise IdTaken if the stored row has another
  queue, root or parent.
* **Keys**: if the key of a new job is held, "keep" returns the holder's row, and "raise" makes the call raise KeyHeld.
  "replace" takes the key over: a holder that was never claimed, or is ready again, is cancelled as superseded. A holder
  that is running, waits in its run, or has its function done gives up its key, and the new job also waits for that
  holder's ending, whatever it is. A job that supersedes a job with such a wait inherits the wait. A follow-up of an
  outcome that does not end its job takes over the key of that job too, and does not wait for it: that job continues
  without the key. A holder that ended within its `key_window` is returned by "keep" and by "replace". `Record.after`
  names the rows that were returned, in the order asked for; a row that is named twice ends once, and `failures_allowed`
  is lowered so that enough endings remain for `required`. A job whose outcome names one of its `followups` in `after`
  waits for the row that was returned for it, but not for a row that waits for the job itself, directly or through
  others. An outcome is refused if a follow-up that its job waits for names such a row in `after`.
* **Limits**: a claim checks the limit of the queue first ("queue:<name>", else "queue"): if it is shut, no job of that
  queue starts. Then it checks the limits of each job: if one is shut, the job is blocked (`blocked_on`, position None)
  and returns to its position when there is room. Blocked jobs return queue by queue, in queue order, while there is
  room. A job that returned and is not claimed yet takes its room only from jobs behind it: no job waits for a returned
  job that is behind it. The first job for which no slot is free holds back those behind it that need a slot; the first
  that the rate does not admit holds back all behind it. That is also so for a job that was never blocked: it is blocked
  if the first job of its queue that this limit blocks precedes it and there is no room for that one, unless it holds
  its slot already. The operator's rule acts, otherwise the declared one. While
  there is a reason to pause the limit, it has 0 slots. The rule is found by the full name, otherwise by the part before
  ":". A cost above the rule counts as the whole rule. `Outcome.spent` has real costs: when it is applied to a job that
  was claimed and whose function is not done, the rate of each such limit counts the real cost of that start in place
  of `NewJob.limits`, however the rule has changed since; a lower one makes room in the same step. That has no effect
  on a start that the rate does not count any more, or has not recorded, and none on slots. A job whose function is
  done passes all limits and uses nothing. With hold="ended" a slot is held from the first claim to the ending, also
  by such a job, from the call that claims it.
* **Bounds**: the limit of a queue may have `max_waiting`. Only `enqueue` obeys it. The bound comes from the limit
  "queue:<name>" or, if that has no rule, from the limit "queue", which then applies to each queue separately. In
  either, the operator's rule comes before the declared one. A pause does not lift the bound. Its *waiting* jobs are the
  ready ones: queued, scheduled and blocked, including those that ran before. A new job needs room unless it names jobs
  in `after`, is a promise or one of Treadle's own, its function is done, or it supersedes a ready job of its queue.
  Nothing else does: a job for which another row is returned, a follow-up of an outcome, and a job that is released,
  reopened, retried, lost or moved. Such jobs may exceed the bound, so an accepted job is never refused later. If N jobs
  of a call need room and W jobs wait, the excess is the smaller number of N and W + N - `max_waiting`. If it is above
  0, "refuse" raises QueueFull. The other two shed this many jobs before the call's jobs are stored: each ends as
  cancelled with reason "shed", and its ending counts like any other. "drop_oldest" sheds the first jobs by (position,
  id), of any priority. "drop_lowest" sheds the last in queue order, only jobs of a lower rank (`row_rules.rank`) than
  each new job of the call that needs room in that queue. Only queued jobs are shed, no job that was claimed since it
  was stored or reopened, whose function is done, or that is Treadle's own, and no row that the call returns, supersedes
  or names in `after`. A call considers only the first queued jobs in that order: as many as the excess, and
  `bounds.LOOK` more, not counting the rows of the call. If it finds fewer than it needs, it raises QueueFull. Every
  other refusal of a call takes precedence; if several queues are full, the queue of the first new job is reported.
* **Reopening** (READY on an ended job) sets attempt and lost to 0, takes the key again and counts the deadline from
  now; note and checkpoints are kept, except that a `ROUND` deletes the steps. The jobs that its ending doomed, and each
  ancestor that failed because of "children", wait again for the upstreams that have to end again. For a waiting job,
  the effect of that ending is undone. If any of them finds its key held, the whole outcome is refused. An ending may
  name in `after` jobs for which its job has waited and that did not succeed: it is stale if one of them is open again
  or has succeeded since, so a job does not fail because of a child that was reopened after its worker had read it. If
  it names a job for which its job has not waited, it is refused.
* **Counts**: the numbers of `stats` are kept. The step that stores, changes or deletes a row also changes the counts of
  its queue, task and kind, so they equal the rows after every call, even after one that failed, and a transaction that
  is rolled back leaves no trace in them. A move carries rows, and the storage that loads them counts them. `stats` thus
  costs the same with a million jobs as with none. No call waits for another one because both change the same count.
  Only a defect or a foreign write makes a count differ; `recount` finds and repairs that.
* **Versions** rise with each claim, settle and ending. They do not rise when a lease expires, or when only `keep` is
  assigned. The same outcome again (its version one transition old; state, attempt, result, value, error and reason
  equal) is "applied".
* **A clock set back**: if a worker's last heartbeat is more than `CLOCK_BACK` seconds in the future, its next heartbeat
  corrects the moments that the clock wrote meanwhile. Starts that rates remember count as now. Jobs that are due later
  (after a delay, or at the end of a lease) keep the time they had left when they were written; a `run_at` is not such a
  time.
* **Topics** of watch: "queue:<name>" when a job may have been queued there; "job:<id>" when that job ended, was settled
  with a result of its own before that, or its note changed; "worker:<name>" when a job that it runs was settled with
  the reason "asked", "superseded" or "paused".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from treadle.core import defaults
from treadle.core.limit_model import LimitChange, LimitUse
from treadle.core.model import Claim, Claimed, HeartbeatResult, LeaseRenewal, NewJob, Outcome, Presence, Record, Settled
from treadle.core.query_model import CountDrift, Glance, MetricsRow, Page, Query, Stats


class Capabilities(Struct, frozen=True, kw_only=True):
    """The optional parts of a storage. Without arguments: none of them.

    settle_claim    has `settle_claim`: one round trip for both verbs, see `Fused`
    hand_off        has `post`: a stored job can be claimed for an idle worker in the same step, see `HandOffs`
    transactions    has `within` and `begin`, see `Transactional`
    movable         has the methods of `Movable`: `treadle storage move` can move jobs from and to it
    marks           has `read_mark`, as every movable storage does: it knows the move that it takes part in
    single_caller   serves one call of this process at a time, so of two concurrent calls one would only wait. A worker
                    then makes one call at a time, of twice the size: a tenth less CPU per job on SQLite.
    one_trip_up_to  its round trips are expensive even for few jobs: while there is work, a worker whose concurrency is
                    at most this number makes one trip at a time, of twice the size. On PostgreSQL two trips of eight
                    jobs each cost the server half as much again per job. 0: two trips at a time.
    scan            rows that a query with a bound looks at by default: about 0.1 s of the storage's time
    remote          it is another server of Treadle, which checks a token and records acts itself
    queues          the queues to which this process is restricted, because its token is bound to them; (): all queues.
                    Known once the storage is open. A worker with such a storage does no maintenance, claims no system
                    jobs and stores no schedules: the server does that.
    payloads        has `whole`: large texts of its rows are in a blob store, see `Payloads`
    offload         bytes above which a text goes there; 0: there is no blob store
    keys            ids of the keys with which it decrypts texts
    risks           has `risks`: it looks at the settings of its server or file system, see `Surroundings`
    reads_texts     it is a server that offloads or encrypts by itself: its rows come with their texts. Known once the
                    storage is open.
    read_only       why this process can only read it, which waiting does not change. Known once the storage is open.
    """

    settle_claim: bool = False
    hand_off: bool = False
    transactions: bool = False
    movable: bool = False
    marks: bool = False
    single_caller: bool = False
    one_trip_up_to: int = 0
    scan: int = defaults.SCAN
    remote: bool = False
    queues: tuple[str, ...] = ()
    payloads: bool = False
    offload: int = 0
    keys: tuple[str, ...] = ()
    risks: bool = False
    reads_texts: bool = False
    read_only: str = ""


class Storage(Protocol):
    """Stores jobs. Methods raise StorageError. After StorageUnavailable it is unknown whether the call was applied:
    repeat it."""

    @property
    def capabilities(self) -> Capabilities:
        """The optional parts. A storage that wraps another one passes them on, changed where it changes them."""
        ...

    async def open(self, look: bool = False) -> None:
        """Connect and migrate. A second call does nothing. Raises BadUrl, SchemaTooNew, NotADatabase,
        StorageUnavailable.

        look  open it only to read: nothing is created, migrated or written, rights to read are enough, and only the
              verbs of `look_only.READS` may be called. Raises SchemaTooOld if there is nothing to read yet, or it must
              be migrated first
        """
        ...

    async def close(self) -> None:
        """Release all connections. A second call does nothing; a closed storage can be opened again."""

    # the life of a job

    async def enqueue(self, jobs: Sequence[NewJob]) -> list[Record]:
        """Store the jobs that are not stored yet; return, in order, the row of each: its own, or the holder of its key.

        A new row's `job` is the NewJob given, unless `after` named a job of this call for which another row was
        returned. All or nothing: raises UnknownUpstream (an unknown id in `after`, without wait_timeout), KeyHeld,
        IdTaken and QueueFull.
        """
        ...

    async def claim(self, ask: Claim) -> Claimed:
        """Lease the first queued jobs that match the claim and that every limit admits.

        If very many jobs are blocked it works in steps, each of them atomic, between which other calls get through. If
        it returns no job, none can start; but it may return fewer jobs than could start.
        """
        ...

    async def heartbeat(self, worker: Presence, renewals: Sequence[LeaseRenewal], lease: float) -> HeartbeatResult:
        """Renew the leases that are still held, and store checkpoints and note; return which are lost or were not
        written.

        A checkpoint is stored unless the answer names its job, so the caller need never run that step again. A storage
        waits at most a second for a row that another transaction has locked, and only if the renewal has a checkpoint.

        Each lease then lasts `lease` seconds, or those of its job if they are fewer. After 0 the job is queued by the
        next maintenance: so a supervisor ends the leases of a process that is gone.

        An expired lease is renewed, and the job leaves the queue, unless the job was claimed or its slot is taken.
        """
        ...

    async def settle(self, outcomes: Sequence[Outcome]) -> list[Settled]:
        """Apply each outcome whose version is current; return the result of each.

        An outcome that cannot be stored ("refused": unknown job in `after`, an id taken, a key held when reopening)
        fails alone. An outcome that waited too long for a row locked by another transaction is refused with `again`:
        settle it once more.
        """
        ...

    # reading

    async def get(self, ids: Sequence[str]) -> list[Record | None]:
        """The rows, in order; None for an unknown id. Does no maintenance."""
        ...

    async def find(self, query: Query) -> Page:
        """One page. The order is unique, so walking all pages shows each row once."""
        ...

    async def stats(self) -> Stats:
        """Counts by queue, task and state, without groups of no job; the workers whose last heartbeat is no older than
        their `ttl`, each with its `age`; limits and their use. Reads the kept counts and the heads of the queues, never
        all rows: under 20 ms with 1,000,000 unfinished jobs. Does no maintenance."""
        ...

    async def glance(self, most: int = 10_000) -> Glance:
        """The queues, workers and limits of `stats`, for repeated calls: it counts at most `most` queued jobs
        per queue, and `most` jobs of all queues for each of the other counts. Succeeded and cancelled jobs are not
        counted. Below the bound each number equals that of `stats`. Does no maintenance."""
        ...

    async def recount(self, repair: bool = False) -> tuple[CountDrift, ...]:
        """Count the rows, and return each group whose kept count differs, by queue, task, kind and limit; () if none
        does. With `repair` these counts are corrected.

        Reads every row, and holds up no other call. It loses no change that another call makes
        meanwhile, and reports none as a difference. Does no maintenance."""
        ...

    # operating

    async def limits(self, use: bool = True) -> tuple[LimitUse, ...]:
        """The limits as `stats` shows them; of the jobs only the running and the blocked ones are read. Without `use`
        only the rules are read: `used`, `blocked` and `starts` are 0, `next_start` is None, and partitions without a
        rule of their own are left out."""
        ...

    async def set_limits(self, changes: Sequence[LimitChange]) -> None:
        """Apply these changes in order, in one step, from the next claim on. Each changes its own fact, so two callers
        never undo each other's changes. A change that changes nothing costs one read and wakes no worker."""
        ...

    async def prune(self, limit: int) -> int:
        """Do maintenance, then delete up to `limit` ended rows past `expires_at`, except those that an unfinished job
        waits for or that belong to its workflow (same root). A row without a task that was settled with `keep=0`
        belongs to none. Returns how many were deleted.

        A row also stays if a job names it that may be reopened, because an upstream or a child of it has failed, and
        that is kept longer: then its `expires_at` becomes that of this job, or the latest of several."""
        ...

    async def store_metrics(self, rows: Sequence[MetricsRow], remove: Sequence[MetricsRow] = ()) -> None:
        """Store these rows, each in place of the one with its identity, and remove others by their identity (their
        `data` is ignored), in one step. A row in both is stored. Not fenced: metrics are telemetry, no law of jobs
        depends on them. Raises BadOption and TooLarge as `enqueue` does, and its errors under the marks of a move
        but "closing"."""
        ...

    async def read_metrics(self, since: float, until: float) -> list[MetricsRow]:
        """The rows whose span overlaps [since, until), by (at, span, source)."""
        ...

    async def watch(self, topics: Sequence[str], timeout: float) -> set[str]:
        """Wait until a topic is published, or for `timeout` seconds; return the topics. A storage may just sleep.

        Topics published after the coroutine first ran are not missed. A topic may be returned that no process has
        published: after a lost connection a storage returns those that it may have missed.
        """
        ...
