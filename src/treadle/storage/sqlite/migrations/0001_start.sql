-- The narrow row: only what is counted, ordered and compared. State: 0 waiting 1 ready 2 running 3 succeeded 4 failed 5
-- cancelled. `flags` (rows.py) names the per-row steps that a row needs, so that a plain row needs no look-up.
CREATE TABLE job (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    rank INTEGER NOT NULL,
    flags INTEGER NOT NULL,
    state INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    queue_position REAL,
    return_position REAL,
    due_at REAL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    started_at REAL,
    ended_at REAL,
    expires_at REAL,
    attempt INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    reopenings INTEGER NOT NULL DEFAULT 0,
    function_done INTEGER NOT NULL DEFAULT 0,
    pending INTEGER NOT NULL DEFAULT 0,
    failures_allowed INTEGER DEFAULT 0,
    deadline_at REAL,
    keep REAL,                          -- NULL: the default
    keep_failed REAL,
    key TEXT,                           -- while the job holds it
    lane TEXT,
    root TEXT,
    parent TEXT,
    blocked_on TEXT,
    worker TEXT,
    reason TEXT,
    note TEXT,
    result TEXT,
    value TEXT,
    error TEXT,
    after TEXT,                         -- NULL: the same as in the body
    room BLOB                           -- see below
);
-- `room` holds bytes that are cut off as a plain row grows, so that the row is overwritten in place. Otherwise the
-- bytes that a claim adds would split a full page (11.6 pages a commit of 16 jobs, now 8).

-- The NewJob as msgpack; it never changes. Stored in the row, a body of 1 KB would halve the speed of every claim and
-- settle.
CREATE TABLE body (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);

CREATE INDEX job_line ON job (queue, rank DESC, queue_position, id) WHERE queue_position IS NOT NULL;
CREATE INDEX job_line_ran ON job (queue, rank DESC, queue_position, id) WHERE queue_position IS NOT NULL AND function_done = 1;
CREATE INDEX job_lane ON job (queue, rank, lane, queue_position) WHERE lane IS NOT NULL AND queue_position IS NOT NULL;
CREATE INDEX job_aside ON job (blocked_on, queue, queue_position, rank DESC, return_position, id) WHERE blocked_on IS NOT NULL;
CREATE INDEX job_due ON job (due_at) WHERE due_at IS NOT NULL;
CREATE INDEX job_old ON job (expires_at) WHERE expires_at IS NOT NULL;
CREATE UNIQUE INDEX job_key ON job (key) WHERE key IS NOT NULL;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_created ON job (created_at);
CREATE INDEX job_bad ON job (state, ended_at, queue) WHERE state > 3;
CREATE INDEX job_own ON job (task, created_at) WHERE task >= 'treadle.' AND task < 'treadle/';
CREATE INDEX job_system ON job (created_at) WHERE queue = 'treadle';
CREATE INDEX job_running ON job (started_at) WHERE state = 2;
-- Waiting, scheduled and blocked jobs. A plain job is in none of these states.
CREATE INDEX job_held ON job (state, blocked_on, due_at, queue) WHERE state < 2 AND queue_position IS NULL;

-- How many jobs there are by queue, task and kind: w(aiting) q(ueued) s(cheduled) b(locked) r(unning) d(one) f(ailed)
-- c(ancelled); `b` is followed by the limit. The count of a group is the number in `job_count` and the sum of its
-- changes. Each transaction that changes rows stores one row of changes, [[queue, task, {kind: jobs}], ...] (counts.py).
CREATE TABLE job_count (
    queue TEXT NOT NULL,
    task TEXT NOT NULL,
    kind TEXT NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (queue, task, kind)
) WITHOUT ROWID;
CREATE TABLE count_change (num INTEGER PRIMARY KEY, changes TEXT NOT NULL);

-- `up` may be a job that is not stored yet. `open`: its ending has not been counted. `soft`: any ending counts as
-- success. `named`: the down row names it in `after`, so it may not be pruned before the down row has ended. `version`:
-- the version of the down row when the wait began, because a later wait of that row is another one.
CREATE TABLE edge (
    num INTEGER PRIMARY KEY,            -- dependents are counted down in the order in which they began to wait
    up TEXT NOT NULL,
    down TEXT NOT NULL,
    version INTEGER NOT NULL,
    open INTEGER NOT NULL DEFAULT 1,
    soft INTEGER NOT NULL DEFAULT 0,
    named INTEGER NOT NULL DEFAULT 1,
    UNIQUE (up, down)
);
CREATE INDEX edge_down ON edge (down);

-- A job that took over a key -> the former holder for whose ending it waits, inherited if the job superseded another
-- one.
CREATE TABLE behind (job TEXT PRIMARY KEY, first TEXT NOT NULL) WITHOUT ROWID;

CREATE TABLE checkpoints (
    num INTEGER PRIMARY KEY,
    job INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (job, name)
);
CREATE TABLE label (label TEXT NOT NULL, job INTEGER NOT NULL, PRIMARY KEY (label, job)) WITHOUT ROWID;

-- Limits: the rules; the jobs that were claimed and have not ended (`live`: running now); starts within a window;
-- buckets; and when a rate admits the first job that it blocks.
CREATE TABLE rule (name TEXT PRIMARY KEY, rule BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE slot (
    key TEXT NOT NULL,
    job INTEGER NOT NULL,
    live INTEGER NOT NULL,
    cost INTEGER NOT NULL,
    PRIMARY KEY (key, job)
) WITHOUT ROWID;
CREATE INDEX slot_live ON slot (key, cost) WHERE live = 1;
CREATE TABLE start (key TEXT NOT NULL, at REAL NOT NULL, cost INTEGER NOT NULL, PRIMARY KEY (key, at)) WITHOUT ROWID;
CREATE TABLE bucket (key TEXT PRIMARY KEY, tokens REAL NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE opening (key TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;

-- The jobs claimed under the latest claim ids of a worker. Claim id n uses slot n modulo 64, so one write a claim
-- stores the new id and drops an old one.
CREATE TABLE recent_claim (
    worker TEXT NOT NULL,
    slot INTEGER NOT NULL,
    claim_id TEXT NOT NULL,
    jobs TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (worker, slot)
) WITHOUT ROWID;
CREATE TABLE worker (num INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, presence BLOB NOT NULL, seen REAL NOT NULL);

-- The facts of each limit, one a row, so that no change depends on an earlier read by its caller: the operator's rule,
-- the declared rule, and each reason for a pause. `rule` stores the acting rule, which is derived from them.
CREATE TABLE limit_fact (
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    rule BLOB,
    until REAL,
    PRIMARY KEY (name, kind)
) WITHOUT ROWID;

CREATE TABLE metrics (
    at REAL NOT NULL,
    span REAL NOT NULL,
    source TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (at, span, source)
) WITHOUT ROWID;
