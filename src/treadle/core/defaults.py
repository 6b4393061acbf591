"""All defaults, with units and reasons."""

from __future__ import annotations

from typing import Final

QUEUE: Final = "default"
DELAYED_TASK: Final = "delayed.job"  # stored by the delayed protocol, run by `App.delayed_handler`
DELAYED_QUEUE: Final = "delayed"
PRIORITY_RANGE: Final = (-32768, 32767)  # 16 bits, by which every storage can sort
KEEP: Final = 86_400.0  # s; a day: yesterday's jobs can still be read
KEEP_FAILED: Final = 30 * 86_400.0  # s; gives an operator time to look at failures
KEEP_LEAST: Final = 60.0  # s, even with `keep=0`: a repeated settle and a late waiter still find the row
LEASE: Final = 30.0  # s; renewed every third of it
MAX_LOST: Final = 3  # leases that may expire before the job fails as lost
CONCURRENCY: Final = 20  # jobs that a worker runs at once: I/O-bound work on one core
CLAIM_MOST: Final = 512  # jobs in one claim: bounds the response and the time it blocks the event loop
GRACE: Final = 30.0  # s for which a stopping worker waits for its jobs
POLL: Final = 1.0  # s between polls, for the case that a notification was lost
RESULT_POLL: Final = 1.0  # s between polls while waiting for a result
LAST_LOOK: Final = 5.0  # s for the last read when such a wait times out
WATCH: Final = 30.0  # s that one watch call lasts at most
THROTTLE_EVERY: Final = 0.1  # s between two calls of a throttle that admits claims
BACKLOG_AFTER: Final = 60.0  # s for which a worker is behind before it logs a warning
PRUNE_EVERY: Final = 30.0  # s between two prunes of rows past their retention
DECLARED_LEAST: Final = 1.0  # s between two such checks at least, however many jobs are lost
DECLARED_EVERY: Final = 30.0  # s between two checks that the storage still has the declared limits and schedules
METRICS_KEPT: Final = 91 * 86_400  # s after which Redis forgets rows of metrics to which nothing was added
METRICS_EVERY: Final = 10.0  # s between two calls that store the metrics of a worker
FOLD_EVERY: Final = 600.0  # s between two passes that fold old metrics
SCAN: Final = 10_000  # rows that a bounded query looks at: 85 ms on Redis
SCAN_FAST: Final = 100_000  # where a row costs less than a microsecond: 70 ms on SQLite and PostgreSQL
COLLECT_EVERY: Final = 600.0  # s between two searches for texts in the blob store whose jobs are gone
COLLECT_SHARE: Final = 100  # ... or this many times as long as the last search took: it lists all objects
COLLECT_AGE: Final = 3_600.0  # s such a text is kept: longer than any transaction may take to commit its row
PRUNE_STEP: Final = 500  # rows per prune call: bounds the time for which one call blocks the storage
DUE_STEP: Final = 200  # due rows that one call advances: on a busy Redis 1,000 took 140 ms, on PostgreSQL 30
TRANSACTION: Final = 5.0  # s at most from the start of a `transaction()` to the end of its job

SYSTEM_QUEUE: Final = "treadle"  # queue of system jobs, such as schedules; every worker serves it
SYSTEM_EVERY: Final = 0.1  # s between two claims from it while other jobs flow
LEADER: Final = 5.0  # s without a heartbeat after which another worker becomes leader
OWN_LEASE: Final = 5.0  # s; system jobs are short, and another worker must be able to take over soon
TICKS_STEP: Final = 500  # ticks that one settle stores for a schedule that catches up

RETRY_ATTEMPTS: Final = 5  # the first one included
RETRY_BASE: Final = 1.0  # s
RETRY_FACTOR: Final = 2.0
RETRY_MAX: Final = 300.0  # s
RETRY_JITTER: Final = 0.5  # share of the delay, at most, that is subtracted at random

MAX_PAYLOAD: Final = 16 * 2**20  # bytes
MAX_RESULT: Final = 16 * 2**20  # bytes
MAX_ERROR: Final = 10_000  # characters
MAX_HEADERS: Final = 8 * 2**10  # bytes, names and values together
MAX_NAME: Final = 255  # characters: queues, tasks, keys, limits, lanes, labels
MAX_LABELS: Final = 16
MAX_LIMITS: Final = 64  # limits that one job names: a claim checks each of them
MAX_DELAY: Final = 100 * 365 * 86_400.0  # s; 100 years: a longer delay is a mistake of units
# Queued jobs that an enqueue looks at beyond those that it sheds: they may be unfit, for example retries of an outage.
SHED_LOOK: Final = 1_000
MAX_COUNT: Final = 1_000_000_000  # slots, starts, bursts and costs; every storage can hold their sums
MAX_STEP: Final = 2**20  # bytes of one stored step result
MAX_MEMO: Final = 16 * 2**20  # bytes of all step results of a job in its row: a claim reads all of them
MAX_OFFLOADED: Final = 256 * 2**20  # bytes of those in the blob store: a claim reads them, too
MAX_STEPS: Final = 10_000  # steps of a job
WARN_AT: Final = 0.8  # of these limits, from which on there is a warning
ONCE: Final = 86_400.0  # s for which a mark of `once` is kept; a day, like the rows of the jobs that it guards
BATCH_SIZE: Final = 50  # items of one call of a batch task
BATCH_WAIT: Final = 0.1  # s for which the first of them waits for others; a person does not notice it
SIGNAL_ROW: Final = 30 * 86_400.0  # s an open signal row is kept at most; a job that waits longer uses the next row
SIGNAL_GIVEN: Final = 5.0  # s after which the row of a message ends by itself, because its sender has died
MAX_MESSAGES: Final = 1_000  # messages that wait in one mailbox
MAX_PUBLISHED: Final = 64  # names under which a job publishes values: each read of the job reads all of them
MAX_PUBLISHED_SIZE: Final = 65_536  # bytes of one such value
MAX_STREAMS: Final = 64  # streams of a job
MAX_CHUNK: Final = 65_536  # bytes of one chunk of a stream
MAX_CHUNKS: Final = 100_000  # chunks and resets of a stream
MAX_STREAM: Final = 16 * 2**20  # bytes of all chunks of a stream
