-- Handles the waits, keys and queue positions of new jobs that are stored (prepare_jobs.sql).

-- Makes stored jobs wait, take their keys and join their queues, in one pass for each of these. Only jobs that replace
-- the holder of their key, or whose position in a lane depends on their age, go one by one. ups, states: endings that
-- are still to be counted, which happens before the first of these jobs is released. origin: the unfinished job that
-- creates them.
CREATE FUNCTION place_new_jobs(jobs json, t float8, requested text[], answers text[], fresh text[], origin text,
    ups text[], states int[])
RETURNS void LANGUAGE plpgsql SET jit = off SET enable_hashjoin = on AS $$
DECLARE
    new_job record;
    doomed record;
    job_row job;
    all_fresh boolean := cardinality(fresh) = cardinality(requested);   -- the usual case, which needs no lookups
    in_lanes boolean := mentions(jobs, 'lane');
    by_turns boolean := in_lanes AND lanes_by_turns(jobs);
    waits boolean := mentions(jobs, 'after');
BEGIN
    IF mentions(jobs, 'key') THEN
        UPDATE holder SET id = y.id FROM json_to_recordset(jobs) AS y (id text, key text, conflict text)
        CROSS JOIN LATERAL (SELECT h.ctid AS spot FROM holder h WHERE h.key = y.key OFFSET 0) AS found
        WHERE holder.ctid = found.spot AND y.conflict <> 'replace' AND (all_fresh OR y.id IN (SELECT unnest(fresh)));
    END IF;
    IF waits THEN
        IF NOT all_fresh THEN
            PERFORM redirect_waits(jobs, requested, answers, fresh);
        END IF;
        SELECT * INTO doomed FROM start_waits(jobs, t, requested, answers, fresh);
        ups := ups || doomed.ended_ups;
        states := states || doomed.ended_states;
    END IF;
    PERFORM count_endings(ups, states, t);
    IF in_lanes AND NOT by_turns THEN
        PERFORM join_lanes(jobs, t, fresh, all_fresh);
    END IF;
    IF NOT (by_turns OR waits OR mentions(jobs, 'conflict')) THEN
        RETURN;
    END IF;
    FOR new_job IN
        SELECT y.id, y.required, y.conflict = 'replace' AS replaces
        FROM json_to_recordset(jobs) AS y (id text, required int, conflict text, lane text, after text[])
        WHERE (y.conflict = 'replace' OR (y.after IS NOT NULL AND y.required <= 0) OR (by_turns AND y.lane IS NOT NULL))
            AND (all_fresh OR y.id IN (SELECT unnest(fresh)))
    LOOP
        SELECT * INTO job_row FROM job WHERE id = new_job.id;
        IF new_job.replaces THEN
            PERFORM replace_holder(job_row, new_job.required, t, origin);
        ELSIF job_row.state = 0 AND job_row.pending <= 0 THEN
            PERFORM end_wait(job_row, t);
        END IF;
    END LOOP;
END $$;

-- Whether jobs of the call change the order of a lane by more than its stride. Then each job finds another
-- head of the queue, and they must go one by one.
CREATE FUNCTION lanes_by_turns(jobs json) RETURNS boolean LANGUAGE sql AS $$
    SELECT (mentions(jobs, 'aging') OR strpos(jobs::text, '"replace"') > 0) AND EXISTS (
        SELECT FROM json_to_recordset(jobs) AS x (conflict text, lane text, words jsonb)
        WHERE x.lane IS NOT NULL AND (x.conflict = 'replace' OR x.words ? 'aging'))
$$;

-- Redirects the waits of jobs whose `after` names a job of the same call for which another row was returned: they wait
-- for that row.
CREATE FUNCTION redirect_waits(jobs json, requested text[], answers text[], fresh text[]) RETURNS void LANGUAGE sql
SET jit = off SET enable_hashjoin = on AS $$
    UPDATE job SET after = m.ups, pending = least(m.required, m.awaited),
        failures_allowed = allowed_failures(job.failures_allowed, m.required, m.awaited)
    FROM (
        SELECT y.id, y.required, array_agg(coalesce(a.answer, u.up) ORDER BY u.n) AS ups,
            count(DISTINCT coalesce(a.answer, u.up)) AS awaited
        FROM json_to_recordset(jobs) AS y (id text, required int, after text[])
        CROSS JOIN LATERAL unnest(y.after) WITH ORDINALITY AS u (up, n)
        LEFT JOIN unnest(requested, answers) AS a (requested, answer) ON a.requested = u.up
        WHERE y.after IS NOT NULL AND y.id IN (SELECT unnest(fresh))
        GROUP BY y.id, y.required
        HAVING bool_or(a.answer <> u.up)
    ) AS m
    WHERE job.id = m.id
$$;

-- Makes the jobs with `after` wait, all at once, except those that replace a holder. Upstreams that have ended count at
-- once. Returns the jobs that are doomed by this, and the states in which they ended; the jobs that wait for these are
-- not counted yet.
CREATE FUNCTION start_waits(jobs json, t float8, requested text[], answers text[], fresh text[], OUT ended_ups text[],
    OUT ended_states int[]) LANGUAGE plpgsql
SET jit = off SET enable_hashjoin = on AS $$
DECLARE
    all_fresh boolean := cardinality(fresh) = cardinality(requested);
    others text[] := CASE WHEN NOT all_fresh THEN requested END;
    their_answers text[] := CASE WHEN NOT all_fresh THEN answers END;
    awaited text[];
    waiting text[];             -- for each upstream, the job that waits for it
BEGIN
    WITH put AS (
        INSERT INTO edge (up, down, version)
        SELECT coalesce(a.answer, u.up), y.id, 0
        FROM ROWS FROM (json_to_recordset(jobs) AS (id text, conflict text, after text[]))
            WITH ORDINALITY AS y (id, conflict, after, n)
        CROSS JOIN LATERAL unnest(y.after) WITH ORDINALITY AS u (up, n)
        LEFT JOIN unnest(others, their_answers) AS a (requested, answer) ON a.requested = u.up
        WHERE y.after IS NOT NULL AND y.conflict IS DISTINCT FROM 'replace'
            AND (all_fresh OR y.id IN (SELECT unnest(fresh)))
        GROUP BY coalesce(a.answer, u.up), y.id ORDER BY min(y.n), min(u.n)
        ON CONFLICT (up, down) DO UPDATE SET version = 0, open = true, soft = false
        RETURNING num, up, down
    ) SELECT array_agg(up ORDER BY num), array_agg(down ORDER BY num) INTO awaited, waiting FROM put;
    SELECT * INTO ended_ups, ended_states FROM count_past_endings(awaited, waiting, '{}', t);
END $$;

-- Queues the jobs of the call that are in lanes and wait for nothing, in the order of the call. Their positions are
-- those that queue_position_of would compute one by one.
CREATE FUNCTION join_lanes(jobs json, t float8, fresh text[], all_fresh boolean) RETURNS void LANGUAGE sql
SET jit = off SET enable_hashjoin = on AS $$
    WITH y AS MATERIALIZED (
        SELECT z.*, sum(stride) OVER lanes AS behind, first_value(stride) OVER lanes AS first
        FROM (
            SELECT x.id, x.queue, x.rank, x.lane, (x.words ->> 'stride')::float8 AS stride, x.n
            FROM ROWS FROM (json_to_recordset(jobs) AS (id text, task text, queue text, rank smallint, delay float8,
                run_at float8, function_done boolean, conflict text, lane text, after text[], words jsonb))
                WITH ORDINALITY AS x (id, task, queue, rank, delay, run_at, function_done, conflict, lane, after, words,
                n)
            CROSS JOIN LATERAL (SELECT span_of(x.delay, x.run_at, t) AS waits) AS i
            WHERE x.lane IS NOT NULL AND x.after IS NULL AND x.conflict IS DISTINCT FROM 'replace' AND x.task <> ''
                AND (coalesce(x.function_done, false) OR NOT coalesce(i.waits > 0 AND t + i.waits > t, false))
                AND (all_fresh OR x.id IN (SELECT unnest(fresh)))
        ) AS z
        WINDOW lanes AS (PARTITION BY queue, rank, lane ORDER BY n)
    ), begins AS MATERIALIZED (
        SELECT l.*,
            (SELECT queue_position FROM job WHERE queue = l.queue AND rank = l.rank AND lane = l.lane
                AND queue_position IS NOT NULL
                ORDER BY queue_position DESC LIMIT 1) AS last,
            (SELECT queue_position FROM job WHERE queue = l.queue AND rank = l.rank AND queue_position IS NOT NULL
                ORDER BY queue_position LIMIT 1) AS head
        FROM (SELECT DISTINCT queue, rank, lane FROM y) AS l
    ), positions AS MATERIALIZED (
        SELECT y.id, CASE WHEN b.last IS NOT NULL THEN b.last + y.behind
            ELSE least(t, b.head) + (y.behind - y.first) END AS queue_position
        FROM y JOIN begins b USING (queue, rank, lane)
    ), queued AS (
        UPDATE job SET state = 1, queue_position = p.queue_position, return_position = p.queue_position,
            due_at = CASE WHEN NOT function_done THEN deadline_at END
        FROM positions AS p WHERE job.id = p.id RETURNING job.queue, job.task
    )
    INSERT INTO count_change SELECT queue, task, 'w', 'q', count(*) FROM queued GROUP BY queue, task
$$;

-- Gives a job the key of its holder. The job waits for the holder if that has begun.
CREATE FUNCTION replace_holder(job_row job, required int, t float8, origin text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    awaited bigint := (SELECT count(DISTINCT up) FROM unnest(job_row.after) AS a (up));
    soft text := take_key(job_row, t, origin, '{}', '{}');
BEGIN
    IF soft = ANY (job_row.after) THEN
        soft := NULL;   -- its `after` already names the holder, so its own condition applies
    END IF;
    job_row.pending := least(required, awaited) + CASE WHEN soft IS NULL THEN 0 ELSE 1 END;
    UPDATE job SET pending = job_row.pending WHERE id = job_row.id;
    IF soft IS NOT NULL THEN
        INSERT INTO edge (up, down, version, soft) VALUES (soft, job_row.id, 0, true)
        ON CONFLICT (up, down) DO UPDATE SET version = 0, open = true, soft = true;
    END IF;
    PERFORM wait_for_upstreams(job_row, t, '{}', '{}', '{}');
END $$;
