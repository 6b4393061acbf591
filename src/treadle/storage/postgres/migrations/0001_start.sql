-- Unfinished jobs only: ended rows would slow down every claim and every vacuum. State: 0 waiting 1 ready 2 running 3
-- succeeded 4 failed 5 cancelled. Times are seconds since 1970.
--
-- A claim writes a new version of its row, and so a second index entry for its id. An index filled with ascending ids
-- has no room for that: the server would search each page for dead entries, compact it, then split it. With room a job
-- takes 12,000 instructions less, of 245,000.
CREATE TABLE job (
    id text COLLATE "C" NOT NULL PRIMARY KEY WITH (fillfactor = 50),
    version int NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    rank smallint NOT NULL,                     -- the priority in the queue order
    function_done boolean NOT NULL DEFAULT false,
    checkpoints boolean NOT NULL DEFAULT false,        -- it has rows in `checkpoints`
    attempt int NOT NULL DEFAULT 0,
    lost int NOT NULL DEFAULT 0,
    reopenings int NOT NULL DEFAULT 0,
    pending int NOT NULL DEFAULT 0,
    failures_allowed int DEFAULT 0,                        -- NULL: any number
    queue_position float8,                               -- NULL: not queued
    return_position float8,
    due_at float8,
    deadline_at float8,
    created_at float8 NOT NULL,
    started_at float8,
    updated_at float8 NOT NULL,
    ended_at float8,
    expires_at float8,
    keep float8 NOT NULL,
    keep_failed float8 NOT NULL,
    lease float8,                               -- of this job alone, in seconds
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    key text COLLATE "C",                       -- NULL once the job has given it up
    lane text COLLATE "C",
    root text COLLATE "C",
    parent text COLLATE "C",
    blocked_on text COLLATE "C",
    limits text[] COLLATE "C",
    costs int[],
    after text[] COLLATE "C",                   -- NULL: none
    words jsonb,                                -- other options that the functions need later; NULL: none
    spec text NOT NULL,                         -- the NewJob, as JSON; never changes
    reason text,
    note text,
    result text,
    value text,
    error text
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX job_line ON job (queue, rank DESC, queue_position, id) WHERE queue_position IS NOT NULL;
CREATE INDEX job_due ON job (due_at, id) WHERE due_at IS NOT NULL AND state <> 2;  -- the id: for pages by due time
CREATE INDEX job_lease ON job (due_at) WHERE state = 2;
CREATE INDEX job_limited ON job (queue) WHERE queue_position IS NOT NULL AND limits IS NOT NULL;
CREATE INDEX job_lane ON job (queue, rank, lane, queue_position) WHERE lane IS NOT NULL AND queue_position IS NOT NULL;
CREATE INDEX job_exempt ON job (queue, rank DESC, queue_position, id)
    WHERE queue_position IS NOT NULL AND (function_done OR started_at IS NOT NULL);
CREATE INDEX job_aside ON job (blocked_on, queue, rank DESC, return_position, id)
    WHERE blocked_on IS NOT NULL AND queue_position IS NULL;
CREATE INDEX job_keepers ON job (blocked_on, queue, rank DESC, return_position, id)
    WHERE blocked_on IS NOT NULL AND queue_position IS NULL AND started_at IS NOT NULL;
CREATE INDEX job_back ON job (blocked_on, queue) WHERE blocked_on IS NOT NULL AND queue_position IS NOT NULL;
CREATE INDEX job_begun ON job (queue) WHERE started_at IS NOT NULL AND state < 2;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_own ON job (task, created_at) WHERE task >= 'treadle.' AND task < 'treadle/';
-- For lists and searches, whose cost must not grow with the table. `job_created` costs a job 8,100 instructions of the
-- server, of 255,000: see docs/internals/postgres.md. Running jobs are left out, or each claim would write a second
-- entry; they are few, and found by `job_lease`. A plain job has no row in the other two tables. With `ended_system`
-- and `ended_bad` these cost a job 2,000 instructions together.
CREATE INDEX job_created ON job (created_at, id) WHERE state <> 2;
CREATE INDEX job_later ON job (state, due_at, id)           -- waiting (0) and scheduled (1) jobs
    WHERE state < 2 AND queue_position IS NULL AND blocked_on IS NULL;
CREATE INDEX job_system ON job (created_at, id) WHERE queue = 'treadle';

-- Ended jobs, with the same columns in the same order: a row moves whole, and `details_of` (functions/) reads both
-- tables.
CREATE TABLE ended (LIKE job INCLUDING DEFAULTS) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
ALTER TABLE ended ADD PRIMARY KEY (id);
CREATE INDEX ended_old ON ended (expires_at);
CREATE INDEX ended_ended ON ended (ended_at DESC, id);
CREATE INDEX ended_created ON ended (created_at, id);
CREATE INDEX ended_root ON ended (root) WHERE root IS NOT NULL;
CREATE INDEX ended_parent ON ended (parent) WHERE parent IS NOT NULL;
CREATE INDEX ended_own ON ended (task, created_at) WHERE task >= 'treadle.' AND task < 'treadle/';
CREATE INDEX ended_system ON ended (created_at, id) WHERE queue = 'treadle';
-- Failed (4) and cancelled (5) jobs. It never contains succeeded jobs.
CREATE INDEX ended_bad ON ended (state, ended_at DESC, id) WHERE state > 3;

-- How many jobs there are by queue, task and kind (`kind_of` in functions/counts.sql): the number in `job_count` and
-- the sum of `count_change`, to which each call appends what it changes. The fold of the changes updates a row of
-- `job_count` in place, and leaves only dead rows in `count_change`, which is scanned whole.
CREATE TABLE job_count (
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    jobs bigint NOT NULL,
    PRIMARY KEY (queue, task, kind)
) WITH (fillfactor = 50);
CREATE TABLE count_change (
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    was text COLLATE "C",                       -- NULL: new jobs
    became text COLLATE "C",                    -- NULL: deleted jobs
    jobs bigint NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 1000000
);

-- `up` may be an unknown id. `open`: its ending has not counted yet. `soft`: any ending counts as a success. `version`:
-- the version of the down row when it began to wait; a later wait has another one.
CREATE TABLE edge (
    num bigint GENERATED ALWAYS AS IDENTITY,    -- endings are counted in the order of the waits
    up text COLLATE "C" NOT NULL,
    down text COLLATE "C" NOT NULL,
    version int NOT NULL,
    open boolean NOT NULL DEFAULT true,
    soft boolean NOT NULL DEFAULT false,
    PRIMARY KEY (up, down)
);
CREATE INDEX edge_down ON edge (down);
CREATE INDEX edge_open ON edge (up) WHERE open;

-- The holder of a key: the job named here, if its own row has the key too (`holder_of`). Calls lock the row of a key.
CREATE TABLE holder (key text COLLATE "C" NOT NULL PRIMARY KEY, id text COLLATE "C");
CREATE INDEX holder_id ON holder (id);
-- A job that took over a key, and the job whose ending it waits for: the former holder, or the one that holder waited
-- for.
CREATE TABLE behind (id text COLLATE "C" NOT NULL PRIMARY KEY, first text COLLATE "C" NOT NULL);

CREATE TABLE checkpoints (
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    num bigint GENERATED ALWAYS AS IDENTITY,
    value text NOT NULL,
    PRIMARY KEY (id, name)
);
CREATE TABLE label (
    label text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    PRIMARY KEY (label, id)
);
CREATE INDEX label_id ON label (id);

-- Limits. `rule`: the rules. `slot`: the cost of jobs that were claimed and have not ended (`live`: running now).
-- `start`: the starts within a window. `gate`: a row of each limit ever checked, with its bucket, the sum of its
-- starts, and when its rate opens. A call that counts a limit locks its gate.
CREATE TABLE rule (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    slots int,
    rate int,
    per float8 NOT NULL,
    how text NOT NULL,
    burst int,
    hold text NOT NULL
);
CREATE TABLE slot (
    key text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    cost int NOT NULL,
    live boolean NOT NULL,
    PRIMARY KEY (key, id)
);
CREATE TABLE start (
    key text COLLATE "C" NOT NULL,
    at float8 NOT NULL,
    cost int NOT NULL,
    PRIMARY KEY (key, at)
);
CREATE TABLE gate (
    key text COLLATE "C" NOT NULL PRIMARY KEY,
    spent int NOT NULL DEFAULT 0,
    tokens float8,                              -- NULL: the bucket is full
    at float8,
    opens float8
) WITH (fillfactor = 50);
CREATE INDEX gate_opens ON gate (opens) WHERE opens IS NOT NULL;

-- The jobs claimed under the last claim ids of a worker. Claim id n uses slot n modulo 64, so that one write for a
-- claim stores it and drops an old one.
CREATE TABLE recent_claim (
    worker text COLLATE "C" NOT NULL,
    slot int NOT NULL,
    claim_id text COLLATE "C" NOT NULL,
    jobs text[] COLLATE "C" NOT NULL,
    at float8 NOT NULL,
    PRIMARY KEY (worker, slot)
);
ALTER TABLE recent_claim ALTER COLUMN jobs SET STORAGE EXTERNAL;
CREATE TABLE worker (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    num bigint GENERATED ALWAYS AS IDENTITY,    -- the order of the first heartbeats
    presence text NOT NULL,
    seen float8 NOT NULL
);
CREATE TABLE meta (name text COLLATE "C" NOT NULL PRIMARY KEY, value text NOT NULL);

-- The facts about each limit, one per row, so that no change depends on what its caller has read: the operator's rule,
-- the declared rule, and each reason for a pause. `rule` holds the rule that acts, derived from them.
CREATE TABLE limit_fact (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    slots int,
    rate int,
    per float8,
    how text,
    burst int,
    hold text,
    max_waiting int,                            -- only of a queue; NULL: any number
    when_full text,
    until float8,
    PRIMARY KEY (name, kind)
);
-- Limits that got room while another transaction held their gate: the next call that advances due rows checks them
-- again. Not unique, because two calls that note the same limit would wait for each other.
CREATE TABLE recheck (key text COLLATE "C" NOT NULL);
CREATE INDEX recheck_key ON recheck (key);
-- For publications of all tables, which refuse deletes from a table without a key. migrate.py gives it to older
-- schemas.
ALTER TABLE count_change REPLICA IDENTITY FULL;
ALTER TABLE recheck REPLICA IDENTITY FULL;
-- The measurements of workers. By span first: there are few spans, and the rows of an interval are found span by span.
CREATE TABLE metrics (
    span float8 NOT NULL,
    at float8 NOT NULL,
    source text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (span, at, source)
);
