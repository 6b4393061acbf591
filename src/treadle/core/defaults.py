"""Every default once, with its unit and its reason. Changing one here changes it everywhere."""

from __future__ import annotations

from typing import Final

QUEUE: Final = "default"
DELAYED_TASK: Final = "delayed.job"  # what the delayed face stores, and `App.delayed_handler` runs
DELAYED_QUEUE: Final = "delayed"
PRIORITY: Final = 0  # higher first
PRIORITY_RANGE: Final = (-32768, 32767)  # 16 bits: what every storage can sort by
KEEP: Final = 86_400.0  # s; a day: long enough to look at yesterday's work
KEEP_FAILED: Final = 30 * 86_400.0  # s; failures wait for a person
KEEP_LEAST: Final = 60.0  # s; `keep=0` means this: a repeated settle and a late waiter still find the row
LEASE: Final = 30.0  # s; renewed every third
MAX_LOST: Final = 3  # leases that may run out before a job counts as poison
CONCURRENCY: Final = 20  # jobs at once in a worker: I/O-bound work on one core
CLAIM_MOST: Final = 512  # jobs in one claim: bounds the answer and the loop's hold
GRACE: Final = 30.0  # s a stopping worker waits for its jobs
POLL: Final = 1.0  # s; the net under lost hints, not the way work is found
RESULT_POLL: Final = 1.0  # s; the same for those who wait for results
LAST_LOOK: Final = 5.0  # s; how long the look at the deadline of such a wait may take
WATCH: Final = 30.0  # s one watch call lasts at most
THROTTLE_EVERY: Final = 0.1  # s between two questions to a throttle that lets claims pass
BACKLOG_AFTER: Final = 60.0  # s a worker is behind before it says so
PRUNE_EVERY: Final = 30.0  # s between two looks for rows past their retention
DECLARED_LEAST: Final = 1.0  # s between two such looks, whatever is lost meanwhile
DECLARED_EVERY: Final = 30.0  # s between two looks whether the storage still has what code declares
PRUNE_STEP: Final = 500  # rows per prune call: bounds the time one call holds the storage
TEND_STEP: Final = 1_000  # due rows one claim moves: bounds the time a claim takes after a night off
TRANSACTION: Final = 5.0  # s from the block to the end of the job; on SQLite every other writer waits meanwhile

OWN_QUEUE: Final = "treadle"  # where Treadle's own jobs stand, such as schedules; every worker serves it
OWN_EVERY: Final = 0.1  # s between two looks at it while there is other work
LEADER: Final = 5.0  # s of silence after which another worker leads
OWN_LEASE: Final = 5.0  # s; their runs take a moment, and what they do must not wait long for another worker
TICKS_STEP: Final = 500  # ticks one settle makes, of a schedule that catches up with all it missed

RETRY_ATTEMPTS: Final = 5  # the first one included
RETRY_BASE: Final = 1.0  # s
RETRY_FACTOR: Final = 2.0
RETRY_MAX: Final = 300.0  # s
RETRY_JITTER: Final = 0.5  # share of the delay that chance may take off

MAX_PAYLOAD: Final = 16 * 2**20  # bytes
MAX_RESULT: Final = 16 * 2**20  # bytes
MAX_ERROR: Final = 10_000  # characters
MAX_HEADERS: Final = 8 * 2**10  # bytes, names and values together
MAX_NAME: Final = 255  # characters: queues, tasks, keys, limits, lanes, labels
MAX_LABELS: Final = 16
MAX_LIMITS: Final = 64  # limits one job names: a claim looks at each of them
MAX_DELAY: Final = 100 * 365 * 86_400.0  # s; a hundred years: beyond is a mistake of units
MAX_COUNT: Final = 1_000_000_000  # slots, starts, bursts and costs: with their sums what every storage can count
MAX_STEP: Final = 256 * 2**10  # bytes one step remembers: a result is a fact to go on with, not a file
MAX_MEMO: Final = 2**20  # bytes all steps of a job remember together: a claim reads them all
MAX_STEPS: Final = 1_000  # steps of a job
ONCE: Final = 86_400.0  # s a mark of `once` stays; a day, like the rows of what it guarded
BATCH_SIZE: Final = 50  # items of one call of a batch task
BATCH_WAIT: Final = 0.1  # s the first of them waits for the others: not noticed by a person
SIGNAL_ROW: Final = 30 * 86_400.0  # s an open row of a signal stays at most; who waits longer goes on with the next
SIGNAL_GIVEN: Final = 60.0  # s from making the row of a signal to giving it; then its giver has died in between
