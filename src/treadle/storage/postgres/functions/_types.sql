-- Composite arguments and results. Like a function, each has the hash of all these texts as a suffix in the schema
-- (statements.py). The file is named so that it is read first: the functions need these types.

-- A row as rows.py reads it; details: see row_details.sql.
CREATE TYPE stored_row AS (
    spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, details text
);

-- The row that is returned for a new job: the id of that job, then as in stored_row.
CREATE TYPE returned_row AS (
    requested text, spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, details text
);

-- New jobs, a column each; NULL: the default for all jobs. limits, costs, labels: per job the text of an array, or ''.
-- The last three are for enqueue_keyed only. words: the values that functions may need later, as text, or ''.
CREATE TYPE new_jobs AS (
    ids text[], tasks text[], queues text[], specs text[], ranks smallint[], keeps float8[], keeps_failed float8[],
    limits text[], costs text[], labels text[], keys text[], words text[], leases float8[]
);

-- An outcome to settle. n: its index in the call. fast: the outcome is an ending, perhaps with an act, of a job that
-- this call names once. act: the nonce of a person's act on a job that this call names once; its checkpoints hold
-- nothing else. The fields from `delay` on are given if it is not fast.
CREATE TYPE job_outcome AS (
    n int, id text, version int, state smallint, attempt int, result text, value text, error text, reason text,
    note text, keep float8, fast boolean, act text, delay float8, function_done boolean, required int,
    failures_allowed int, checkpoints json, after text[], followups json, reach text[], spent json
);

-- A claim. worker: the claim id; name, slot: where the claim is remembered. shares: one for each of `queues`. tasks:
-- those that it may take; NULL: all. leases, rooms: one for each of `tasks`; a NULL among `leases` means `lease`, a
-- NULL among `rooms` means no bound. ids: take only these jobs. running: jobs that the worker holds. floors: {queue:
-- [rank, position]} or NULL: where the scan begins, see scan_floor.py. reach: the queues that `ids` may be in.
CREATE TYPE claim_request AS (
    worker text, name text, slot int, queues text[], shares int[], tasks text[], leases float8[], rooms int[],
    "limit" int, lease float8, ids text[], running text[], floors json, reach text[]
);

-- How far a claim has read a queue, and what it wants of it. own_limit: of the queue, if it has a rule. ruled: there
-- are rules. last: no other queue follows, so it may wait for gates. closed: the queue's rule admits no job, so only
-- those that need nothing of it can start. named: the claim names ids. share: how many it takes. rooms: how many jobs
-- of each of `tasks`; open_tasks: those that have room. at_rank, at_position, at_id: the last job checked, before which
-- no job is read again; at_id NULL: none was. read_past: the rows read past for other tasks; NULL: any number. size:
-- jobs of a page. barred: limits of which an earlier job could not be taken, which matters for limits in strict order.
-- The claim ends after max_blocked blocked jobs, or at `until`.
CREATE TYPE queue_scan AS (
    queue text, own_limit text, ruled boolean, last boolean, closed boolean, named boolean, share int, ids text[],
    running text[], tasks text[], open_tasks text[], rooms int[], at_rank smallint, at_position float8, at_id text,
    read_past int, size int, barred text[], max_blocked int, until timestamptz
);

-- Jobs of a queue in its order, an array for each column; NULL: none. spots: the ctids of their rows. wants: the limits
-- that they name, as text. t: when they were read. from_head: no job of the queue is before them. held: the gates that
-- this claim holds; complete: these are all gates that the page names. busy: it must not wait for more.
CREATE TYPE claim_page AS (
    ids text[], spots tid[], ranks smallint[], positions float8[], wants text[], t float8, from_head boolean,
    held text[], complete boolean, busy boolean
);

-- The state of limits, by index. keys: the limits. slots, taken: NULL without slots. caps, levels: the most that the
-- rate admits at once, and what it admits now; -infinity: nothing ever. bursts: the same as caps, of buckets only: a
-- window records the whole cost of a start, which the end of the run may replace (admission.charge). pers, gone: the
-- length of a window, and the cost that has left it since the last start. keeps: a job holds its slot until it ends.
-- contested: one job at a time (strict order), and others of the queue were blocked. ordered: any limit has that order.
-- last_start: of the windows.
CREATE TYPE limit_counts AS (
    keys text[], slots int[], taken bigint[], caps int[], bursts int[], levels float8[], pers float8[], gone bigint[],
    keeps boolean[], contested boolean[], ordered boolean, last_start float8
);

-- The first job that each limit blocks, by index; see first_blocked. ranks: negative, for comparison with the order.
CREATE TYPE blocked_heads AS (costs int[], ranks int[], positions float8[], ids text[], kept boolean[]);

-- The decisions about the jobs of a page. t: when they start. noted: limits of which a slot that counts as free belongs
-- to a job that is still to be unblocked (`recheck`); if there are any, nothing was decided. taken, spots: the admitted
-- jobs and the ctids of their rows. rooms: the free slots of each task that are left. last: the index of the last job
-- checked; next: of the first that was not read. stop: the page is checked no further. closed: the queue's rule admits
-- no more. freed: a limit that a job is no longer blocked by, because another one blocks it. late: it is past `until`.
-- passed: jobs were skipped because of gates, locks or strict order. moving: open transactions are freeing slots.
-- barred: see queue_scan. levels, used_up, heads: what is left of the rates, the slots in use, and the first blocked
-- jobs, by limit. blocked_spots, blocked_on: the blocked jobs, and by which limit.
CREATE TYPE page_result AS (
    t float8, noted text[], taken text[], spots tid[], rooms int[], last int, next int, stop boolean, closed boolean,
    freed text, late boolean, passed boolean, moving boolean, barred text[], levels float8[], used_up bigint[],
    heads blocked_heads, blocked_spots tid[], blocked_on text[]
);
