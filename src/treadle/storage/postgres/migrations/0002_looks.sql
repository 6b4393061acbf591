-- Indexes for pages and glances, whose cost must not grow with the tables; and the rows of metrics.

-- Pages by creation. Running jobs are left out: a claim would write a second entry for its job. They are few, and found
-- by `job_lease`.
CREATE INDEX job_created ON job (created_at, id) WHERE state <> 2;
-- Waiting (0) and scheduled (1) jobs. A plain job is never in it.
CREATE INDEX job_later ON job (state, due_at, id) WHERE state < 2 AND queue_position IS NULL AND blocked_on IS NULL;
-- With the id, so that a page in the order of due times need not sort the jobs of one moment.
DROP INDEX job_due;
CREATE INDEX job_due ON job (due_at, id) WHERE due_at IS NOT NULL AND state <> 2;
-- System jobs, such as schedules. User jobs are never in it.
CREATE INDEX job_system ON job (created_at, id) WHERE queue = 'treadle';
CREATE INDEX ended_system ON ended (created_at, id) WHERE queue = 'treadle';
-- Failed (4) and cancelled (5) jobs. A success is never in it.
CREATE INDEX ended_bad ON ended (state, ended_at DESC, id) WHERE state > 3;

-- What workers measured. By span first: the rows of an interval are found span by span, and there are few spans.
CREATE TABLE metrics (
    span float8 NOT NULL,
    at float8 NOT NULL,
    source text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (span, at, source)
);
