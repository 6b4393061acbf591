-- Stores new jobs that are not plain: those of an enqueue (enqueue.sql) or of an outcome (settle.sql). `prepare_jobs`
-- first finds the row to return for each, and refuses before anything is decided. Then `place_new_jobs`
-- (place_new_jobs.sql) handles their waits, keys and queue positions. A refusal is raised as TR001; the caller undoes
-- it.

-- Whether a job of the call may have this field. It may be wrong if the word is in a payload; reading each job would
-- cost 4 us.
CREATE FUNCTION mentions(jobs json, word text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT strpos(jobs::text, '"' || word || '":') > 0
$$;

-- Inserts the jobs whose ids are new, and returns these ids. Jobs that affect no others get their final state at once.
-- A key does not matter here, because a job that does not get its key is deleted again. The other jobs get their state
-- in place_new_jobs. No other transaction sees the rows yet, and none can store these ids from here on.
CREATE FUNCTION insert_jobs(jobs json, t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    fresh text[];
    known text[];
BEGIN
    WITH x AS (
        SELECT DISTINCT ON (x.id) x.*, d.later,
            (x.key IS NULL OR x.conflict <> 'replace') AND (x.lane IS NULL OR d.later) AND x.after IS NULL AS simple,
            t + i.waits AS starts_at, t + i.ends_in AS ends_at,
            CASE WHEN x.function_done THEN NULL ELSE t + i.ends_in END AS over_at,
            t - coalesce((x.words ->> 'aging')::float8 * (x.words ->> 'priority')::int, 0) AS turn,
            (SELECT count(DISTINCT up) FROM unnest(x.after) AS u (up)) AS awaited
        FROM ROWS FROM (json_to_recordset(jobs) AS (
            id text, task text, queue text, rank smallint, keep float8, keep_failed float8, lease float8, delay float8,
            run_at float8, deadline float8, deadline_at float8, timeout float8, function_done boolean, required int,
            failures_allowed int, key text, lane text, root text, parent text, conflict text, limits text[],
            costs int[], after text[], words jsonb, spec text
        )) WITH ORDINALITY AS x
        CROSS JOIN LATERAL (
            SELECT span_of(x.delay, x.run_at, t) AS waits, span_of(x.deadline, x.deadline_at, t) AS ends_in) AS i
        CROSS JOIN LATERAL (
            SELECT coalesce(
                i.waits > 0 AND t + i.waits > t AND NOT coalesce(x.function_done, false), false) AS later) AS d
        ORDER BY x.id, x.ordinality
    ), put AS (
        INSERT INTO job (id, task, queue, rank, keep, keep_failed, lease, function_done, pending, failures_allowed, key,
            lane, root, parent, limits, costs, after, words, spec, created_at, updated_at, deadline_at, state,
            queue_position, return_position, due_at)
        SELECT x.id, x.task, x.queue, x.rank, coalesce(x.keep, ${KEEP}), coalesce(x.keep_failed, ${KEEP_FAILED}),
            x.lease, coalesce(x.function_done, false), least(x.required, x.awaited),
            allowed_failures(x.failures_allowed, x.required, x.awaited), x.key, x.lane, x.root, x.parent, x.limits,
            x.costs, x.after, x.words, x.spec, t, t, x.ends_at, s.state,
            CASE WHEN s.state = 1 AND NOT x.later THEN x.turn END,
            CASE WHEN s.state = 1 AND NOT x.later THEN x.turn END,
            CASE WHEN s.state = 0 THEN least(x.over_at, t + x.timeout)
                WHEN x.later THEN least(x.over_at, x.starts_at)
                ELSE x.over_at END
        FROM x, LATERAL (SELECT CASE WHEN x.simple AND x.task <> '' THEN 1 ELSE 0 END AS state) AS s
        ORDER BY x.id
        ON CONFLICT DO NOTHING RETURNING job.id, job.queue, job.task,
            kind_of(job.state, job.queue_position, NULL) AS kind
    ), counted AS (
        INSERT INTO count_change SELECT put.queue, put.task, NULL, put.kind, count(*) FROM put
            GROUP BY put.queue, put.task, put.kind
    ) SELECT array_agg(put.id) INTO fresh FROM put;
    -- a new statement: it sees jobs that ended since the last one
    SELECT array_agg(id) INTO known FROM ended WHERE id = ANY (fresh);
    IF known IS NOT NULL THEN
        PERFORM delete_jobs(known);
        fresh := ARRAY(SELECT unnest(fresh) EXCEPT SELECT unnest(known));
    END IF;
    RETURN coalesce(fresh, '{}');
END $$;

-- Returns how many failures are tolerated: one more would leave fewer endings than are required.
CREATE FUNCTION allowed_failures(failures_allowed int, required int, awaited bigint) RETURNS int
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN failures_allowed > 0 AND required IS NOT NULL
        THEN least(failures_allowed, awaited - least(required, awaited))::int ELSE failures_allowed END
$$;

-- Returns the payload of a job as its JSON has it, in quotes. It does not use ->>, which fails for a text with \u0000.
-- The pattern cannot match inside an earlier text, because quotes are escaped there.
CREATE FUNCTION payload_of(spec text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(substring(spec from '"payload":("(?:[^"\\]|\\.)*")'), '"[]"')
$$;

-- Refuses the first job with a chosen id (it has a nonce) whose row has another task or payload and was not stored by
-- the same call; and the first job with an id of Treadle's own whose row has another queue, root or parent. The rows
-- that this call stored are there already.
CREATE FUNCTION refuse_taken(jobs json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    refused record;
BEGIN
    SELECT y.id, r.task AS stored_task, y.task AS requested, payload_of(r.spec) <> payload_of(y.spec) AS other,
        y.id LIKE 'treadle:%' AND (r.queue, r.root, r.parent) IS DISTINCT FROM (y.queue, y.root, y.parent) AS misplaced
    INTO refused
    FROM ROWS FROM (json_to_recordset(jobs) AS (id text, task text, queue text, root text, parent text, nonce text,
        spec text))
        WITH ORDINALITY AS y (id, task, queue, root, parent, nonce, spec, n)
    CROSS JOIN LATERAL (
        SELECT j.task, j.queue, j.root, j.parent, j.spec FROM job j WHERE j.id = y.id
        UNION ALL SELECT e.task, e.queue, e.root, e.parent, e.spec FROM ended e WHERE e.id = y.id
        OFFSET 0) AS r
    WHERE (y.nonce IS NOT NULL AND right(r.spec, length(y.nonce) + 11) <> '"nonce":"' || y.nonce || '"}'
            AND (r.task <> y.task OR payload_of(r.spec) <> payload_of(y.spec)))
        OR (y.id LIKE 'treadle:%' AND (r.queue, r.root, r.parent) IS DISTINCT FROM (y.queue, y.root, y.parent))
    ORDER BY y.n LIMIT 1;
    IF FOUND AND refused.misplaced THEN
        RAISE EXCEPTION 'beyond' USING ERRCODE = 'TR001',
            DETAIL = json_build_array('beyond', refused.id, refused.requested);
    ELSIF FOUND THEN
        RAISE EXCEPTION 'taken' USING ERRCODE = 'TR001',
            DETAIL = json_build_array('taken', refused.id, refused.stored_task, refused.requested,
                CASE WHEN refused.other THEN 'other' ELSE '' END);
    END IF;
END $$;

-- Stores the new jobs. Returns the requested ids, the row that is returned for each, and the ids that are new. leaving:
-- a job that gives up its key meanwhile. ups: other jobs that are about to be waited for, which must be known. t: when
-- the new jobs are created; moment: the time of the test's clock, or NULL.
CREATE FUNCTION prepare_jobs(jobs json, moment float8, t float8, leaving text, self text, ups text[],
    OUT requested text[], OUT answers text[], OUT fresh text[]) LANGUAGE plpgsql
SET jit = off SET enable_hashjoin = on AS $$
DECLARE
    new_job record;
    keys text[];
    unknown text[];
    all_ups text[];
    all_fresh boolean;
    bound boolean := mentions(jobs, 'reach');
    others text[];              -- jobs for which another row may be returned
    their_answers text[];
BEGIN
    requested := '{}';
    answers := '{}';
    IF mentions(jobs, 'key') THEN
        SELECT array_agg(k.key) INTO keys FROM json_to_recordset(jobs) AS k (key text) WHERE k.key IS NOT NULL;
    END IF;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
    END IF;
    fresh := insert_jobs(jobs, t);
    IF bound THEN
        PERFORM refuse_foreign(jobs, moment, fresh, t, leaving);
    END IF;
    IF cardinality(fresh) < json_array_length(jobs) THEN
        PERFORM refuse_taken(jobs);
    END IF;
    SELECT coalesce(array_agg(DISTINCT y.id), '{}') INTO requested FROM json_to_recordset(jobs) AS y (id text);
    answers := requested;
    IF keys IS NOT NULL THEN
        SELECT a.answers, a.kept INTO answers, fresh
        FROM answer_keys(jobs, moment, t, leaving, requested, fresh) AS a;
    END IF;
    all_fresh := cardinality(fresh) = cardinality(requested);
    IF NOT all_fresh THEN
        others := requested;
        their_answers := answers;
    END IF;
    -- the jobs that they wait for must be known, and are locked
    IF mentions(jobs, 'after') THEN
        SELECT array_agg(DISTINCT coalesce(m.answer, u.up)) INTO all_ups
        FROM json_to_recordset(jobs) AS y (id text, after text[]) CROSS JOIN LATERAL unnest(y.after) AS u (up)
        LEFT JOIN unnest(others, their_answers) AS m (requested, answer) ON m.requested = u.up
        WHERE y.after IS NOT NULL AND (all_fresh OR y.id IN (SELECT unnest(fresh)));
    END IF;
    ups := ARRAY(SELECT unnest(ups) EXCEPT SELECT unnest(requested));  -- jobs of this call need no check
    IF self IS NOT NULL AND leaving IS NULL AND NOT all_fresh THEN     -- but rows returned for such jobs do
        all_ups := all_ups || answers;
    END IF;
    all_ups := ARRAY(SELECT unnest(all_ups) UNION SELECT unnest(ups) EXCEPT SELECT unnest(fresh)
        EXCEPT SELECT self);
    IF cardinality(all_ups) > 0 THEN
        unknown := lock_upstreams(all_ups);
        IF cardinality(unknown) > 0 THEN
            PERFORM refuse_up(first.up, first.id) FROM (
                SELECT w.id, w.up FROM (
                    SELECT y.id, u.up, y.n, u.n AS nth
                    FROM ROWS FROM (json_to_recordset(jobs) AS (id text, after text[], timeout float8))
                        WITH ORDINALITY AS y (id, after, timeout, n)
                    CROSS JOIN LATERAL unnest(y.after) WITH ORDINALITY AS u (up, n)
                    WHERE y.timeout IS NULL AND y.id IN (SELECT unnest(fresh)) AND u.up IN (SELECT unnest(unknown))
                    UNION ALL SELECT self, u.up, NULL, NULL FROM unnest(ups) AS u (up) WHERE u.up = ANY (unknown)
                ) AS w ORDER BY w.n, w.nth LIMIT 1) AS first;
        END IF;
    END IF;
    IF bound THEN
        FOR new_job IN
            SELECT y.id, y.after || coalesce(y.parent, y.root) AS named, y.parent, y.root, y.reach
            FROM json_to_recordset(jobs) AS y (id text, after text[], parent text, root text, reach text[])
            WHERE y.reach IS NOT NULL AND y.id = ANY (fresh)
        LOOP
            PERFORM refuse_ups(new_job.id, array_remove(new_job.named, NULL), ARRAY(
                SELECT y.id FROM json_to_recordset(jobs) AS y (id text, queue text)
                WHERE y.queue = ANY (new_job.reach)), new_job.reach);
            IF new_job.parent IS NOT NULL AND new_job.root IS DISTINCT FROM (
                SELECT coalesce(r.root, r.id) FROM (SELECT id, root FROM job WHERE id = new_job.parent
                    UNION ALL SELECT id, root FROM ended WHERE id = new_job.parent) AS r)
            THEN
                PERFORM refuse_up(coalesce(new_job.root, new_job.parent), new_job.id);
            END IF;
        END LOOP;
    END IF;
    IF mentions(jobs, 'labels') THEN
        INSERT INTO label (label, id)
        SELECT l.label, y.id FROM json_to_recordset(jobs) AS y (id text, labels text[]), unnest(y.labels) AS l (label)
        WHERE y.labels IS NOT NULL AND (all_fresh OR y.id IN (SELECT unnest(fresh))) ON CONFLICT DO NOTHING;
    END IF;
    PERFORM publish('queue:' || q.queue) FROM (
        SELECT DISTINCT y.queue FROM json_to_recordset(jobs) AS y (id text, queue text)
        WHERE all_fresh OR y.id IN (SELECT unnest(fresh))
    ) AS q;
END $$;

-- Returns the stored rows that new jobs name in `after`; with `fresh`, only the rows that these jobs name.
CREATE FUNCTION stored_upstreams(jobs json, fresh text[] DEFAULT NULL) RETURNS text[] LANGUAGE sql AS $$
    SELECT ARRAY(
        SELECT u.up FROM json_to_recordset(jobs) AS y (id text, after text[]), unnest(y.after) AS u (up)
        WHERE fresh IS NULL OR y.id = ANY (fresh)
        EXCEPT SELECT y.id FROM json_to_recordset(jobs) AS y (id text))
$$;

-- Rows are returned for some jobs of an outcome, and others name rows in `after`. Returns the rows among these that are
-- the outcome's own job (`self`) or wait for it, directly or through others. Refuses a new job that would wait for such
-- a row while `self` waits for that job, directly or through others.
CREATE FUNCTION waiting_circle(self text, jobs json, ups text[], requested text[], answers text[], fresh text[])
RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    stored text[] := ARRAY(
        (SELECT unnest(answers) UNION SELECT unnest(stored_upstreams(jobs, fresh))) EXCEPT SELECT unnest(fresh));
    circle text[] := '{}';
    wait record;
BEGIN
    IF cardinality(stored) > 0 THEN
        circle := waiting_for(self, stored);
    END IF;
    IF cardinality(circle) > 0 THEN
        FOR wait IN
            WITH RECURSIVE waits (id, answer) AS (
                SELECT y.id, coalesce(answers[array_position(requested, u.up)], u.up)
                FROM json_to_recordset(jobs) AS y (id text, after text[]), unnest(y.after) AS u (up)
                WHERE y.id = ANY (fresh)
            ), reached (id) AS (
                SELECT unnest(ups)
                UNION SELECT w.answer FROM reached r JOIN waits w ON w.id = r.id
            )
            SELECT y.id, a.answer FROM ROWS FROM (json_to_recordset(jobs) AS (id text, after text[]))
                WITH ORDINALITY AS y (id, after, n), unnest(y.after) WITH ORDINALITY AS u (up, m),
                LATERAL (SELECT coalesce(answers[array_position(requested, u.up)], u.up) AS answer) AS a
            WHERE y.id IN (SELECT r.id FROM reached r) AND y.id = ANY (fresh) AND a.answer = ANY (circle)
            ORDER BY y.n, u.m LIMIT 1
        LOOP
            RAISE EXCEPTION 'circle' USING ERRCODE = 'TR001',
                DETAIL = json_build_array('circle', wait.id, wait.answer, self);
        END LOOP;
    END IF;
    RETURN circle;
END $$;

-- Returns the rows that a job waits for if it names `ups`, each once. For a new job it is the row that is returned for
-- it. Rows of `circle` are left out.
CREATE FUNCTION awaited_rows(ups text[], requested text[], answers text[], circle text[]) RETURNS text[] LANGUAGE sql
SET jit = off SET enable_hashjoin = on SET enable_sort = on AS $$
    SELECT array_agg(x.up ORDER BY x.n) FROM (
        SELECT coalesce(a.answer, u.up) AS up, u.n
        FROM (SELECT up, min(n) AS n FROM unnest(ups) WITH ORDINALITY AS every (up, n) GROUP BY up) AS u
        LEFT JOIN unnest(requested, answers) AS a (id, answer) ON a.id = u.up
    ) AS x WHERE NOT x.up = ANY (circle)
$$;

-- Refuses the first job with a reach whose id or key belongs to a job of another queue. The rows that this call stored
-- are there already, and the keys are locked.
CREATE FUNCTION refuse_foreign(jobs json, moment float8, fresh text[], t float8, leaving text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    new_job record;
    named text;
BEGIN
    FOR new_job IN
        SELECT * FROM ROWS FROM (json_to_recordset(jobs) AS (id text, task text, key text, reach text[]))
            WITH ORDINALITY AS y (id, task, key, reach, n)
        WHERE y.reach IS NOT NULL ORDER BY y.n
    LOOP
        IF NOT queue_of(new_job.id) = ANY (new_job.reach) THEN
            RAISE EXCEPTION 'beyond' USING ERRCODE = 'TR001',
                DETAIL = json_build_array('beyond', new_job.id, new_job.task);
        END IF;
        CONTINUE WHEN new_job.key IS NULL OR NOT new_job.id = ANY (fresh);
        named := holder_of(new_job.key, t, leaving, true, moment);   -- the holder that answer_keys finds
        IF (named IS NOT NULL AND NOT queue_of(named) = ANY (new_job.reach)) OR EXISTS (
            SELECT 1 FROM ROWS FROM (json_to_recordset(jobs) AS (queue text, key text))
                WITH ORDINALITY AS y (queue, key, n)
            WHERE y.n < new_job.n AND y.key = new_job.key AND NOT y.queue = ANY (new_job.reach))
        THEN
            RAISE EXCEPTION 'held' USING ERRCODE = 'TR001', DETAIL = json_build_array('held', new_job.key, '');
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION queue_of(wanted text) RETURNS text LANGUAGE sql AS $$
    SELECT queue FROM job WHERE id = wanted UNION ALL SELECT queue FROM ended WHERE id = wanted
$$;

-- Refuses a job that names others outside its reach. but: ids that it may name.
CREATE FUNCTION refuse_ups(waiting text, ups text[], but text[], reach text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    up text;
BEGIN
    FOREACH up IN ARRAY ups LOOP
        IF NOT up = ANY (but) AND NOT coalesce(queue_of(up) = ANY (reach), false) THEN
            PERFORM refuse_up(up, waiting);
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION refuse_up(up text, waiting text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'unknown' USING ERRCODE = 'TR001', DETAIL = json_build_array('unknown', up, waiting);
END $$;
