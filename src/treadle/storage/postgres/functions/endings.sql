-- How a job ends, and what that does to the jobs that wait for it; holders of keys; waits.
--
-- No ending is missed: a transaction that begins to wait for a job holds its row (FOR KEY SHARE) until it commits, and
-- one that ends the job deletes the row. So one of them waits for the other. The second one then reads the edge or the
-- ending in a later statement, which has a new snapshot. An unknown id is held in the unique index instead
-- (lock_upstreams).

-- Whether an ended job still holds its key, because its key window is open.
CREATE FUNCTION keeps_key(job_row job, t float8) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(job_row.created_at + (job_row.words ->> 'window')::float8 > t, false)
$$;

-- Returns when the row of an ended job may be deleted.
CREATE FUNCTION expires(job_row job, state smallint, ended_at float8, keep float8) RETURNS float8
LANGUAGE sql IMMUTABLE AS $$
    SELECT greatest(
        ended_at + greatest(
            coalesce(keep, CASE WHEN state = 4 THEN job_row.keep_failed ELSE job_row.keep END), ${KEEP_LEAST}),
        job_row.created_at + (job_row.words ->> 'window')::float8)
$$;

-- Ends a job. Before the call is over, count_endings must count the ending for the jobs that wait for it.
CREATE FUNCTION end_job(job_row job, state int, reason text, error text, keep float8, t float8) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    was text;
BEGIN
    job_row.version := job_row.version + 1;
    job_row.state := state;
    job_row.reason := reason;
    job_row.error := error;
    job_row.queue_position := NULL;
    job_row.blocked_on := NULL;
    job_row.pending := 0;
    job_row.due_at := NULL;
    job_row.updated_at := t;
    job_row.ended_at := t;
    job_row.expires_at := expires(job_row, job_row.state, t, keep);
    DELETE FROM job j WHERE j.id = job_row.id RETURNING kind_of(j.state, j.queue_position, j.blocked_on) INTO was;
    INSERT INTO ended SELECT (job_row).*;
    PERFORM note_count(job_row.queue, job_row.task, was, kind_of(job_row.state, NULL, NULL));
    PERFORM publish('job:' || job_row.id);
    IF job_row.limits IS NOT NULL THEN
        DELETE FROM slot WHERE key = ANY (job_row.limits) AND id = job_row.id;
        PERFORM note_freed(job_row.limits);
    END IF;
END $$;

-- Counts one ending for one waiting job. Returns true if that job is doomed, and has therefore ended too.
CREATE FUNCTION count_down(above text, below text, ended_as int, t float8) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
    wait edge;
BEGIN
    SELECT * INTO job_row FROM job WHERE id = below FOR NO KEY UPDATE;
    UPDATE edge SET open = false WHERE up = above AND down = below AND open RETURNING * INTO wait;
    IF NOT FOUND OR job_row.state IS DISTINCT FROM 0 OR job_row.version <> wait.version THEN
        RETURN false;
    END IF;
    IF wait.soft OR job_row.failures_allowed IS NULL OR ended_as = 3 THEN
        job_row.pending := job_row.pending - 1;
    ELSE
        job_row.failures_allowed := job_row.failures_allowed - 1;
    END IF;
    IF job_row.pending <= 0 THEN
        PERFORM end_wait(job_row, t);
    ELSIF job_row.failures_allowed IS NULL OR job_row.failures_allowed >= 0 THEN
        PERFORM update_job(job_row);
    ELSIF job_row.started_at IS NULL AND NOT job_row.function_done THEN
        PERFORM end_job(job_row, 5, 'upstream', above || ', which it waited for, ended as '
            || CASE ended_as WHEN 4 THEN 'failed' ELSE 'cancelled' END, NULL, t);
        RETURN true;
    ELSE
        PERFORM queue_job(job_row, t);
    END IF;
    RETURN false;
END $$;

-- Counts these endings for the jobs that wait for them. It keeps a list instead of recursing, because a chain of any
-- length may be doomed.
CREATE FUNCTION count_endings(ups text[], states int[], t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    n int := coalesce(cardinality(ups), 0);
    above text;
    ended_as int;
    wait record;
BEGIN
    WHILE n > 0 LOOP
        above := ups[n];
        ended_as := states[n];
        n := n - 1;
        -- locks them together, sorted by id, so that two calls that count down the same jobs do not deadlock
        PERFORM 1 FROM (
            SELECT 1 FROM job WHERE id = ANY (ARRAY(SELECT down FROM edge WHERE up = above AND open))
            ORDER BY id FOR NO KEY UPDATE
        ) AS locked;
        FOR wait IN SELECT down FROM edge WHERE up = above AND open ORDER BY num LOOP
            IF count_down(above, wait.down, ended_as, t) THEN
                n := n + 1;
                ups[n] := wait.down;
                states[n] := 5;
            END IF;
        END LOOP;
    END LOOP;
END $$;

-- --- waiting

-- Locks the jobs that are about to be waited for, in either table. Returns the unknown ids. They are held in the unique
-- index: a row is inserted and deleted again, so any transaction that stores that id waits for this one.
CREATE FUNCTION lock_upstreams(ups text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    missing text[];
    locked text[];
    unknown text[] := '{}';
BEGIN
    SELECT array_agg(DISTINCT u) INTO missing FROM unnest(ups) AS u;
    WHILE cardinality(missing) > 0 LOOP
        SELECT array_agg(l.id) INTO locked
        FROM (SELECT id FROM job WHERE id = ANY (missing) ORDER BY id FOR KEY SHARE) AS l;
        missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(locked));
        EXIT WHEN cardinality(missing) = 0;
        SELECT array_agg(l.id) INTO locked
        FROM (SELECT id FROM ended WHERE id = ANY (missing) ORDER BY id FOR KEY SHARE) AS l;
        missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(locked));
        EXIT WHEN cardinality(missing) = 0;
        WITH held AS (
            INSERT INTO job (id, state, rank, created_at, updated_at, keep, keep_failed, queue, task, spec)
            SELECT u, 0, 0, 0, 0, 0, 0, '', '', '' FROM unnest(missing) AS u ORDER BY u
            ON CONFLICT DO NOTHING RETURNING id
        ) SELECT array_agg(held.id) INTO locked FROM held;
        DELETE FROM job WHERE id = ANY (locked);
        unknown := unknown || coalesce(locked, '{}');
        missing := ARRAY(SELECT unnest(missing) EXCEPT SELECT unnest(locked));
    END LOOP;
    RETURN unknown;
END $$;

-- Counts the upstreams that have ended already, in this order. Each job in `waiting` waits for the upstream at the same
-- index of `awaited`. gone: upstreams without a row, which count as successes. Returns the jobs that this dooms, and
-- the states in which they ended; the jobs that wait for them are not counted down yet.
CREATE FUNCTION count_past_endings(awaited text[], waiting text[], gone text[], t float8,
    OUT ended_ups text[], OUT ended_states int[])
LANGUAGE plpgsql AS $$
DECLARE
    ending record;
BEGIN
    ended_ups := '{}';
    ended_states := '{}';
    FOR ending IN
        SELECT w.up, w.down, coalesce(d.state, 3) AS state
        FROM unnest(awaited, waiting) WITH ORDINALITY AS w (up, down, n)
        LEFT JOIN LATERAL (SELECT state FROM ended WHERE id = w.up OFFSET 0) AS d ON true
        WHERE d.state IS NOT NULL OR w.up = ANY (gone)
        ORDER BY w.n
    LOOP
        IF count_down(ending.up, ending.down, ending.state, t) THEN
            ended_ups := ended_ups || ending.down;
            ended_states := ended_states || 5;
        END IF;
    END LOOP;
END $$;

-- Makes a job wait for its upstreams, which are locked. Upstreams that have ended count at once, then the endings that
-- are still to be counted (`ups`, `states`). gone: upstreams without a row, which count as successes.
CREATE FUNCTION wait_for_upstreams(job_row job, t float8, ups text[], states int[], gone text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    awaited text[];
    past record;
BEGIN
    SELECT array_agg(a.up ORDER BY a.n) INTO awaited
    FROM (SELECT u.up, min(u.n) AS n FROM unnest(job_row.after) WITH ORDINALITY AS u (up, n) GROUP BY u.up) AS a;
    IF awaited IS NOT NULL THEN
        INSERT INTO edge (up, down, version)
        SELECT a.up, job_row.id, job_row.version FROM unnest(awaited) WITH ORDINALITY AS a (up, n) ORDER BY a.n
        ON CONFLICT (up, down) DO UPDATE SET version = excluded.version, open = true, soft = false;
        SELECT * INTO past
        FROM count_past_endings(awaited, array_fill(job_row.id, ARRAY[cardinality(awaited)]), gone, t);
        ups := ups || past.ended_ups;
        states := states || past.ended_states;
    END IF;
    PERFORM count_endings(ups, states, t);
    SELECT * INTO job_row FROM job WHERE id = job_row.id;
    IF job_row.state = 0 AND job_row.pending <= 0 THEN
        PERFORM end_wait(job_row, t);
    END IF;
END $$;

-- --- the order of locks: keys, then rows, each sorted and for the whole call; gates last

-- Locks the jobs `own` and the rows that change with them, sorted by id: the jobs that wait for them, and, if one
-- fails, also the jobs that wait for those. patient: wait for locked rows; otherwise a locked row raises an error. The
-- rows of `own` are deleted later. This waits for transactions whose jobs begin to wait for these rows (FOR KEY SHARE);
-- those transactions do not wait for rows locked here.
CREATE FUNCTION lock_with_dependents(own text[], failing text[], patient boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    below text[];
BEGIN
    IF NOT EXISTS (SELECT 1 FROM edge WHERE open) THEN
        IF patient THEN
            PERFORM 1 FROM (SELECT 1 FROM job WHERE id = ANY (own) ORDER BY id FOR NO KEY UPDATE) AS locked;
        END IF;
        RETURN;
    END IF;
    WITH RECURSIVE doomed (id) AS (
        SELECT down FROM edge WHERE up = ANY (failing) AND open
        UNION SELECT e.down FROM doomed d
            CROSS JOIN LATERAL (SELECT down FROM edge WHERE up = d.id AND open OFFSET 0) AS e
    )
    SELECT array_agg(w.id) INTO below FROM (
        SELECT unnest(own) AS id UNION SELECT down FROM edge WHERE up = ANY (own) AND open
        UNION SELECT d.id FROM doomed d) AS w;
    IF patient THEN
        PERFORM 1 FROM (SELECT 1 FROM job WHERE id = ANY (below) ORDER BY id FOR NO KEY UPDATE) AS locked;
    ELSE
        PERFORM 1 FROM (SELECT 1 FROM job WHERE id = ANY (below) ORDER BY id FOR NO KEY UPDATE NOWAIT) AS locked;
    END IF;
END $$;

-- The key of the lock that `waiting_for` needs.
CREATE FUNCTION circle_lock() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(current_schema() || ' circles', 0)
$$;

-- Takes the first locks of a call: the keys of its new jobs and of the jobs that it reopens, then the rows that it
-- changes. jobs: the new jobs; own: the jobs whose outcomes it settles; failing: the ones that do not succeed.
CREATE FUNCTION lock_keys_and_rows(jobs json, own text[], failing text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
    replaced text[];
    circles boolean := false;   -- an outcome will check for circles, see waiting_for
BEGIN
    IF cardinality(own) = 0 AND NOT mentions(jobs, 'key') THEN
        RETURN;
    END IF;
    IF cardinality(own) > 0 AND mentions(jobs, 'after') THEN
        circles := cardinality(stored_upstreams(jobs)) > 0;
    END IF;
    SELECT array_agg(k) INTO keys FROM (
        SELECT x.key AS k FROM json_to_recordset(jobs) AS x (key text)
        UNION ALL SELECT coalesce(e.key, e.words ->> 'started') FROM ended e WHERE e.id = ANY (own)) AS all_keys
    WHERE k IS NOT NULL;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
        circles := circles OR (cardinality(own) > 0 AND EXISTS (
            SELECT 1 FROM json_to_recordset(jobs) AS x (key text, conflict text)
            CROSS JOIN LATERAL (SELECT j.id FROM holder h
                CROSS JOIN LATERAL (SELECT j.id FROM job j WHERE j.id = h.id OFFSET 0) AS j
                WHERE h.key = x.key OFFSET 0) AS held
            WHERE x.conflict IN ('keep', 'replace') AND NOT held.id = ANY (own)));
    END IF;
    IF circles THEN
        PERFORM pg_advisory_xact_lock(circle_lock());
    END IF;
    IF keys IS NOT NULL THEN
        SELECT array_agg(h.id) INTO replaced FROM json_to_recordset(jobs) AS x (key text, conflict text)
        CROSS JOIN LATERAL (SELECT h.id FROM holder h WHERE h.key = x.key OFFSET 0) AS h
        WHERE x.conflict = 'replace' AND h.id IS NOT NULL;
        replaced := replaced || ARRAY(SELECT b.first FROM behind b WHERE b.id = ANY (replaced));
    END IF;
    IF cardinality(own) > 0 OR replaced IS NOT NULL THEN
        PERFORM lock_with_dependents(own || replaced, failing || replaced, true);
    END IF;
END $$;

-- --- keys

-- Locks these keys until the end of the transaction.
CREATE FUNCTION lock_keys(keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- missing and known keys in one order; WHERE false updates none, but locks them all
    INSERT INTO holder (key) SELECT DISTINCT k FROM unnest(keys) AS k ORDER BY k
    ON CONFLICT (key) DO UPDATE SET id = holder.id WHERE false;
END $$;

-- Returns the holder of a locked key; `leaving` is a job that gives it up meanwhile. since: a job that has ended after
-- t counts as well, because otherwise a new job, created at t, would be a second one at that time. An ending that lies
-- in the future (of `moment`, or of the clock) was written while the clock was ahead, and does not count.
CREATE FUNCTION holder_of(wanted text, t float8, leaving text DEFAULT NULL, since boolean DEFAULT false,
    moment float8 DEFAULT NULL) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    named text := (SELECT id FROM holder WHERE key = wanted);
    job_row job;
BEGIN
    IF named IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT * INTO job_row
    FROM (SELECT * FROM job WHERE id = named UNION ALL SELECT * FROM ended WHERE id = named) AS either;
    IF job_row.id IS NULL OR job_row.key IS NULL
        OR ((job_row.state > 2 OR job_row.id = leaving) AND NOT keeps_key(job_row, t)
        AND NOT coalesce(since AND job_row.ended_at > t AND job_row.ended_at <= instant(moment), false))
    THEN
        RETURN NULL;
    END IF;
    RETURN named;
END $$;

-- Returns the ids of `among` that are the job `self` or wait for it, directly or through others; none without `self`.
-- Two outcomes that check at the same time would not see each other's edges, so only one at a time has the circle lock
-- (see lock_keys_and_rows). It is requested without waiting, because rows are locked.
CREATE FUNCTION waiting_for(self text, among text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    ids text[];
BEGIN
    IF self IS NULL THEN
        RETURN '{}';
    END IF;
    IF NOT pg_try_advisory_xact_lock(circle_lock()) THEN
        RAISE lock_not_available;
    END IF;
    WITH RECURSIVE waits (id) AS (
        SELECT self COLLATE "C"
        UNION SELECT j.id FROM waits w
            CROSS JOIN LATERAL (SELECT down, version FROM edge WHERE up = w.id AND open OFFSET 0) AS e
            CROSS JOIN LATERAL (
                SELECT id FROM job WHERE id = e.down AND version = e.version AND state = 0 OFFSET 0) AS j
    ) SELECT coalesce(array_agg(id), '{}') INTO ids FROM waits WHERE id = ANY (among);
    RETURN ids;
END $$;

-- Takes the key for `new`. Returns the job to wait for: the holder, if it has begun, or the job that the superseded
-- holder waited for. It never returns `origin`, the job whose outcome created the new job and which may wait for it, or
-- a job that waits for `origin`.
CREATE FUNCTION take_key(new job, t float8, origin text, ups text[], states int[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    named text := holder_of(new.key, t);
    held_by job;
    before job;
BEGIN
    UPDATE holder SET id = new.id WHERE key = new.key;
    IF named IS NULL OR named = origin THEN
        RETURN NULL;
    END IF;
    held_by := lock_row(named, true);
    IF held_by.state > 2 THEN     -- it ended while this call waited for its row
        RETURN NULL;
    END IF;
    IF held_by.function_done OR held_by.state = 2 OR (held_by.state = 0 AND held_by.started_at IS NOT NULL) THEN
        IF cardinality(waiting_for(origin, ARRAY[named])) > 0 THEN
            RETURN NULL;
        END IF;
        INSERT INTO behind (id, first) VALUES (new.id, named);
        RETURN named;
    END IF;
    PERFORM end_job(held_by, 5, 'superseded', 'superseded by ' || new.id, NULL, t);
    PERFORM count_endings(ups || named, states || 5, t);
    SELECT j.* INTO before FROM behind b, lock_row(b.first) AS j WHERE b.id = named;
    IF before.id IS NULL OR before.state > 2 OR cardinality(waiting_for(origin, ARRAY[before.id])) > 0 THEN
        RETURN NULL;
    END IF;
    INSERT INTO behind (id, first) VALUES (new.id, before.id);
    RETURN before.id;
END $$;
