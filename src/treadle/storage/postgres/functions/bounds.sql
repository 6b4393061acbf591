-- Bounded queues: storage/bounds.py in SQL. The bounds are also in one row of `meta`, which each enqueue reads: {limit:
-- [max_waiting or null, when_full]}. There is no such row while no queue has a bound.
--
-- Enqueues of a bounded queue take turns (`lock_bounds`), or two of them would each count the room that the other
-- takes. No other verb takes this lock: a claim lowers the number, and verbs that raise it need no room. It is the last
-- lock that an enqueue waits for. A user's transaction does not take it, because it would hold it until its commit.

-- Derives the row of `meta` from the facts.
CREATE FUNCTION derive_bounds() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM meta WHERE name = 'bounds';
    INSERT INTO meta (name, value)
    SELECT 'bounds', json_object_agg(f.name, json_build_array(f.max_waiting, f.when_full))::text FROM (
        SELECT DISTINCT ON (l.name) l.* FROM limit_fact l
        WHERE l.kind IN ('set', 'declared') AND split_part(l.name, ':', 1) = 'queue' ORDER BY l.name, l.kind DESC
    ) AS f HAVING count(f.max_waiting) > 0;
END $$;

-- Returns the bound of a queue as [max_waiting, when_full], or NULL.
CREATE FUNCTION bound_of(bounds json, line text) RETURNS json LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN b.bound ->> 0 IS NOT NULL THEN b.bound END
    FROM (SELECT coalesce(bounds -> ('queue:' || line), bounds -> 'queue') AS bound) AS b
$$;

-- Locks the queues among `lines` that have a bound until the transaction ends, unless it is a user's. Returns these
-- queues. The wait has no limit of its own: each holder only counts, sheds and commits.
CREATE FUNCTION lock_bounds(bounds json, lines text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    bounded text[] := ARRAY(
        SELECT DISTINCT u.line COLLATE "C" FROM unnest(lines) AS u (line) WHERE bound_of(bounds, u.line) IS NOT NULL
        ORDER BY 1);
    before constant text := current_setting('lock_timeout');
    line text;
BEGIN
    IF cardinality(bounded) = 0 OR current_setting('treadle.gates', true) = 'never' THEN
        RETURN bounded;
    END IF;
    PERFORM set_config('lock_timeout', '0', true);
    FOREACH line IN ARRAY bounded LOOP
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' bound ' || line, 0));
    END LOOP;
    PERFORM set_config('lock_timeout', before, true);
    RETURN bounded;
END $$;

-- How many jobs of a queue are ready, by the kept counts.
CREATE FUNCTION count_waiting(line text) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce(sum(a.jobs), 0)::bigint FROM (
        SELECT c.jobs FROM job_count c WHERE c.queue = line AND left(c.kind, 1) IN ('q', 's', 'b')
        UNION ALL
        SELECT k.jobs
        FROM count_change g CROSS JOIN LATERAL (VALUES (g.was, -g.jobs), (g.became, g.jobs)) AS k (kind, jobs)
        WHERE g.queue = line AND left(k.kind, 1) IN ('q', 's', 'b')
    ) AS a
$$;

-- Locks the queues that have a bound. Returns whether they have room for the jobs that this call has inserted. The bulk
-- paths call it.
CREATE FUNCTION has_room(bounds json, lines text[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOREACH line IN ARRAY lock_bounds(bounds, lines) LOOP
        IF count_waiting(line) > (bound_of(bounds, line) ->> 0)::int THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- Makes room for the new jobs of a call, which `prepare_jobs` has inserted: it raises a refusal, or sheds queued jobs
-- and returns their ids. Their endings are still to be counted.
CREATE FUNCTION make_room(bounds json, jobs json, t float8, requested text[], answers text[], fresh text[])
RETURNS text[]
LANGUAGE plpgsql SET jit = off SET enable_hashjoin = on SET enable_sort = on AS $$
DECLARE
    need record;
    bound json;
    waiting bigint;
    excess bigint;
    needed text[];
    gone text[];
    chosen text[] := '{}';
BEGIN
    FOR need IN
        SELECT n.queue, count(*) AS jobs, min(n.rank) AS lowest FROM jobs_needing_room(bounds, jobs, t, fresh) AS n
        GROUP BY n.queue ORDER BY min(n.n)
    LOOP
        bound := bound_of(bounds, need.queue);
        waiting := count_waiting(need.queue)
            - (SELECT count(*) FROM job j WHERE j.id = ANY (fresh) AND j.queue = need.queue AND j.state = 1);
        excess := least(need.jobs, waiting + need.jobs - (bound ->> 0)::int);
        CONTINUE WHEN excess <= 0;
        gone := '{}';
        IF bound ->> 1 <> 'refuse' THEN
            needed := coalesce(needed, rows_in_use(jobs, requested, answers, fresh));
            gone := shed_jobs(need.queue, bound, excess::int, need.lowest, needed, t);
        END IF;
        IF cardinality(gone) < excess THEN
            RAISE EXCEPTION 'full' USING ERRCODE = 'TR001',
                DETAIL = json_build_array('full', need.queue, bound ->> 0, waiting::text, need.jobs::text);
        END IF;
        chosen := chosen || gone;
    END LOOP;
    RETURN chosen;
END $$;

-- Returns the new jobs that need room in a bounded queue. A job needs no room if it supersedes a ready job of its
-- queue: an earlier one of the call, or the stored holder of its key.
CREATE FUNCTION jobs_needing_room(bounds json, jobs json, t float8, fresh text[])
RETURNS TABLE (queue text, rank smallint, n bigint) LANGUAGE sql
SET jit = off SET enable_hashjoin = on SET enable_sort = on AS $$
    WITH y AS MATERIALIZED (
        SELECT z.*, z.after IS NULL AND z.task <> '' AND z.task NOT LIKE 'treadle.%'
            AND NOT coalesce(z.function_done, false) AND bound_of(bounds, z.queue) IS NOT NULL AS needs
        FROM ROWS FROM (json_to_recordset(jobs) AS (id text, task text, queue text, rank smallint, key text,
            conflict text, after text[], function_done boolean))
            WITH ORDINALITY AS z (id, task, queue, rank, key, conflict, after, function_done, n)
        JOIN unnest(fresh) AS f (id) ON f.id = z.id
    ), rival AS (
        SELECT y.*, lag(y.id) OVER same AS earlier, lag(y.queue) OVER same AS earlier_queue,
            lag(y.needs) OVER same AS earlier_needs
        FROM y WINDOW same AS (PARTITION BY coalesce(y.key, y.id) ORDER BY y.n)
    ) SELECT r.queue, coalesce(r.rank, 0::smallint), r.n FROM rival r
    WHERE r.needs AND NOT coalesce(r.conflict = 'replace'
        AND CASE WHEN r.earlier IS NOT NULL THEN r.earlier_queue = r.queue AND r.earlier_needs
        ELSE EXISTS (SELECT 1 FROM job j WHERE j.id = holder_of(r.key, t) AND j.state = 1 AND NOT j.function_done
            AND j.queue = r.queue) END, false)
$$;

-- Returns the rows that the call returns, supersedes or waits for; none of these may be shed.
CREATE FUNCTION rows_in_use(jobs json, requested text[], answers text[], fresh text[]) RETURNS text[] LANGUAGE sql
SET jit = off SET enable_hashjoin = on SET enable_sort = on AS $$
    SELECT ARRAY(
        SELECT unnest(requested) UNION SELECT unnest(answers)
        UNION SELECT h.id FROM json_to_recordset(jobs) AS y (id text, key text)
            JOIN unnest(fresh) AS f (id) ON f.id = y.id
            JOIN holder h ON h.key = y.key WHERE h.id IS NOT NULL
        UNION SELECT coalesce(a.answer, u.up) FROM json_to_recordset(jobs) AS y (id text, after text[])
            JOIN unnest(fresh) AS f (id) ON f.id = y.id CROSS JOIN LATERAL unnest(y.after) AS u (up)
            LEFT JOIN unnest(requested, answers) AS a (id, answer) ON a.id = u.up)
$$;

-- Ends up to `wanted` queued jobs of a queue, and returns their ids. It looks at few jobs first, because the first ones
-- nearly always fit; a longer look begins with the same jobs. A row that another transaction has locked is being
-- claimed, and is skipped.
CREATE FUNCTION shed_jobs(line text, bound json, wanted int, below smallint, needed text[], t float8) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    lowest boolean := bound ->> 1 = 'drop_lowest';
    depth int;
    candidate record;
    job_row job;
    gone text[] := '{}';
BEGIN
    FOREACH depth IN ARRAY ARRAY[wanted + 16, wanted + ${SHED_LOOK}] LOOP
        FOR candidate IN SELECT * FROM shedding_candidates(line, lowest, needed || gone, depth - cardinality(gone)) LOOP
            EXIT WHEN cardinality(gone) = wanted OR (lowest AND candidate.rank >= below);
            CONTINUE WHEN NOT candidate.fit;
            SELECT * INTO job_row FROM job j WHERE j.id = candidate.id AND j.state = 1 AND j.queue_position IS NOT NULL
                AND j.started_at IS NULL
            FOR UPDATE SKIP LOCKED;
            CONTINUE WHEN NOT FOUND OR NOT lock_dependents(candidate.id);
            PERFORM end_job(job_row, 5, 'shed', 'queue ' || line || ' was full: max_waiting is ' || (bound ->> 0),
                NULL, t);
            gone := gone || candidate.id;
        END LOOP;
        EXIT WHEN cardinality(gone) = wanted;
    END LOOP;
    RETURN gone;
END $$;

-- Returns the first queued jobs by (position, id), of any rank. lowest: the last jobs in queue order, the last one
-- first.
CREATE FUNCTION shedding_candidates(line text, lowest boolean, needed text[], depth int)
RETURNS TABLE (id text, rank smallint, fit boolean) LANGUAGE plpgsql
SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off AS $$
#variable_conflict use_column
BEGIN
    IF lowest THEN
        RETURN QUERY SELECT j.id, j.rank, j.started_at IS NULL AND NOT j.function_done AND j.task NOT LIKE 'treadle.%'
        FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL AND NOT j.id = ANY (needed)
        ORDER BY j.rank, j.queue_position DESC, j.id DESC LIMIT depth;
    ELSE
        RETURN QUERY WITH RECURSIVE ranks (rank) AS (
            SELECT (SELECT max(j.rank) FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL)
            UNION ALL
            SELECT (SELECT max(j.rank) FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL
                AND j.rank < r.rank)
            FROM ranks r WHERE r.rank IS NOT NULL
        ) SELECT c.id, c.rank, c.fit FROM ranks r CROSS JOIN LATERAL (
            SELECT j.id, j.rank, j.queue_position, j.started_at IS NULL AND NOT j.function_done
                AND j.task NOT LIKE 'treadle.%' AS fit
            FROM job j WHERE j.queue = line AND j.rank = r.rank AND j.queue_position IS NOT NULL
                AND NOT j.id = ANY (needed)
            ORDER BY j.queue_position, j.id LIMIT depth
        ) AS c ORDER BY c.queue_position, c.id LIMIT depth;
    END IF;
END $$;

-- Locks the jobs that an ending of this job may change. Returns false if another transaction has locked one of them. It
-- does not wait, because this call has locked rows and ids already.
CREATE FUNCTION lock_dependents(above text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM edge e WHERE e.up = above AND e.open) THEN
        PERFORM 1 FROM job j WHERE j.id IN (
            WITH RECURSIVE below (id) AS (
                SELECT e.down FROM edge e WHERE e.up = above AND e.open
                UNION SELECT e.down FROM below b JOIN edge e ON e.up = b.id AND e.open
            ) SELECT b.id FROM below b
        ) FOR UPDATE NOWAIT;
    END IF;
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
