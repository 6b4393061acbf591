-- Unfinished jobs, and nothing else: what is ended would be dead weight on every claim and on every vacuum.
-- State: 0 waiting 1 ready 2 running 3 succeeded 4 failed 5 cancelled. Moments are seconds since 1970.
CREATE TABLE job (
    id text COLLATE "C" NOT NULL PRIMARY KEY,
    version int NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    rank smallint NOT NULL,                     -- the priority it is sorted by
    ran boolean NOT NULL DEFAULT false,
    memo boolean NOT NULL DEFAULT false,        -- it has rows in `memo`
    attempt int NOT NULL DEFAULT 0,
    lost int NOT NULL DEFAULT 0,
    round int NOT NULL DEFAULT 0,
    pending int NOT NULL DEFAULT 0,
    slack int DEFAULT 0,                        -- NULL: any number
    place float8,                               -- NULL: not in line
    joined_at float8,
    due_at float8,
    deadline_at float8,
    created_at float8 NOT NULL,
    started_at float8,
    updated_at float8 NOT NULL,
    ended_at float8,
    expires_at float8,
    keep float8 NOT NULL,
    keep_failed float8 NOT NULL,
    lease float8,                               -- its own, in seconds
    queue text COLLATE "C" NOT NULL,
    task text COLLATE "C" NOT NULL,
    worker text COLLATE "C",
    key text COLLATE "C",                       -- until it is given away
    lane text COLLATE "C",
    root text COLLATE "C",
    parent text COLLATE "C",
    parked text COLLATE "C",
    limits text[] COLLATE "C",
    costs int[],
    after text[] COLLATE "C",                   -- NULL: none
    words jsonb,                                -- what else was asked for and the functions must know; NULL: nothing
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

CREATE INDEX job_line ON job (queue, rank DESC, place, id) WHERE place IS NOT NULL;
CREATE INDEX job_due ON job (due_at) WHERE due_at IS NOT NULL AND state <> 2;
CREATE INDEX job_lease ON job (due_at) WHERE state = 2;
CREATE INDEX job_limited ON job (queue) WHERE place IS NOT NULL AND limits IS NOT NULL;
CREATE INDEX job_lane ON job (queue, rank, lane, place) WHERE lane IS NOT NULL AND place IS NOT NULL;
CREATE INDEX job_exempt ON job (queue, rank DESC, place, id)
    WHERE place IS NOT NULL AND (ran OR started_at IS NOT NULL);
CREATE INDEX job_aside ON job (parked, queue, rank DESC, joined_at, id) WHERE parked IS NOT NULL AND place IS NULL;
CREATE INDEX job_keepers ON job (parked, queue, rank DESC, joined_at, id)
    WHERE parked IS NOT NULL AND place IS NULL AND started_at IS NOT NULL;
CREATE INDEX job_back ON job (parked, queue) WHERE parked IS NOT NULL AND place IS NOT NULL;
CREATE INDEX job_begun ON job (queue) WHERE started_at IS NOT NULL AND state < 2;
CREATE INDEX job_root ON job (root) WHERE root IS NOT NULL;
CREATE INDEX job_parent ON job (parent) WHERE parent IS NOT NULL;
CREATE INDEX job_own ON job (task, created_at) WHERE task >= 'treadle.' AND task < 'treadle/';

-- The ended, with the same columns in the same order: a row moves whole, and `told` (functions/) reads both.
CREATE TABLE ended (LIKE job INCLUDING DEFAULTS) WITH (autovacuum_vacuum_insert_scale_factor = 0.1);
ALTER TABLE ended ADD PRIMARY KEY (id);
CREATE INDEX ended_old ON ended (expires_at);
CREATE INDEX ended_ended ON ended (ended_at DESC, id);
CREATE INDEX ended_created ON ended (created_at, id);
CREATE INDEX ended_root ON ended (root) WHERE root IS NOT NULL;
CREATE INDEX ended_parent ON ended (parent) WHERE parent IS NOT NULL;
CREATE INDEX ended_own ON ended (task, created_at) WHERE task >= 'treadle.' AND task < 'treadle/';

-- `up` may be a job nobody knows yet. `open`: its ending has still to count. `soft`: any ending is a success.
-- `version`: that of the down row as it began to wait; a later wait is another one.
CREATE TABLE edge (
    num bigint GENERATED ALWAYS AS IDENTITY,    -- they are counted down in the order in which they began to wait
    up text COLLATE "C" NOT NULL,
    down text COLLATE "C" NOT NULL,
    version int NOT NULL,
    open boolean NOT NULL DEFAULT true,
    soft boolean NOT NULL DEFAULT false,
    PRIMARY KEY (up, down)
);
CREATE INDEX edge_down ON edge (down);
CREATE INDEX edge_open ON edge (up) WHERE open;

-- Who holds a key: the job named here, while its own row says so too (functions/, holder). Locked by whoever asks.
CREATE TABLE holder (key text COLLATE "C" NOT NULL PRIMARY KEY, id text COLLATE "C");
CREATE INDEX holder_id ON holder (id);
-- Who took a key: whose ending it waits for, in its own place or in that of the one it superseded.
CREATE TABLE behind (id text COLLATE "C" NOT NULL PRIMARY KEY, first text COLLATE "C" NOT NULL);

CREATE TABLE memo (
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

-- Limits: the rules; what those claimed and not ended cost (`live`: runs now); the starts within a window; and of each
-- limit that was ever looked at its bucket, the sum of its starts, and when a shut rate opens. A gate is locked by
-- whoever counts.
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

-- What was claimed under the last tickets of a worker: ticket n stands in slot n modulo 64, so that one write a claim
-- keeps them and forgets the old ones.
CREATE TABLE ticket (
    worker text COLLATE "C" NOT NULL,
    slot int NOT NULL,
    ticket text COLLATE "C" NOT NULL,
    jobs text[] COLLATE "C" NOT NULL,
    at float8 NOT NULL,
    PRIMARY KEY (worker, slot)
);
ALTER TABLE ticket ALTER COLUMN jobs SET STORAGE EXTERNAL;
CREATE TABLE worker (
    name text COLLATE "C" NOT NULL PRIMARY KEY,
    num bigint GENERATED ALWAYS AS IDENTITY,    -- the order in which they were first heard of
    presence text NOT NULL,
    seen float8 NOT NULL
);
CREATE TABLE meta (name text COLLATE "C" NOT NULL PRIMARY KEY, value text NOT NULL);
