-- The verb: store jobs. Plain ones go in as they come, in the order of their ids (so that two calls with the same ids
-- do not lock each other out).

-- Each array is a column; NULL: all of them as by default. limits, costs, labels: of each job as the text of an array, or
-- ''. chosen: the caller has chosen an id, and a known one may be another job's, which enqueue_any decides.
-- Arrays, because JSON is read twice and made a hash of for each row: 0.7 us of the server for a job instead of 2. They
-- are read by number, because `unnest` of nine opens nine tables: 15 us a call.
-- -> the moment, then of each that was known: its id and the row. Or, in `more` of the first row, 'general': nothing was
-- stored, because an id is known and one is chosen.
CREATE FUNCTION enqueue_plain(moment float8, ids text[], tasks text[], queues text[], specs text[], ranks smallint[],
    keeps float8[], keeps_failed float8[], limits text[], costs text[], labels text[], chosen boolean) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    general boolean := false;
    fresh text[] := ids;
    stored text[];              -- before this call
    over text[];                -- those of them that have ended
BEGIN
    PERFORM enter(NULL);
    -- nearly always all of them are new; ON CONFLICT asks of each first, and notes of each that it stayed: 1.3 us a job
    BEGIN
        INSERT INTO job (id, task, queue, rank, keep, keep_failed, limits, costs, spec, state, place, joined_at,
            created_at, updated_at)
        SELECT ids[n], tasks[n], queues[n], coalesce(ranks[n], 0), coalesce(keeps[n], ${KEEP}),
            coalesce(keeps_failed[n], ${KEEP_FAILED}), nullif(limits[n], '')::text[], nullif(costs[n], '')::int[], specs[n],
            1, t, t, t, t
        FROM generate_series(1, cardinality(ids)) AS n;
    EXCEPTION WHEN unique_violation THEN
        general := chosen;
        fresh := put_in((SELECT json_agg(x) FROM (
            SELECT ids[n] AS id, tasks[n] AS task, queues[n] AS queue, coalesce(ranks[n], 0) AS rank, keeps[n] AS keep,
                keeps_failed[n] AS keep_failed, nullif(limits[n], '')::text[] AS limits,
                nullif(costs[n], '')::int[] AS costs, 0 AS slack, specs[n] AS spec
            FROM generate_series(1, cardinality(ids)) AS n WHERE NOT chosen) AS x), t);
        stored := ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(fresh));
    END;
    -- A statement of its own: one that has ended since the last one is seen. Ids are in the order of their time as a rule,
    -- and nobody has ended between these.
    IF NOT general AND EXISTS (SELECT 1 FROM ended e WHERE e.id BETWEEN ids[1] AND ids[cardinality(ids)]) THEN
        over := ARRAY(SELECT e.id FROM ended e WHERE e.id = ANY (fresh));
        general := chosen AND cardinality(over) > 0;
        DELETE FROM job WHERE id = ANY (CASE WHEN general THEN fresh ELSE over END);
        stored := stored || over;
    END IF;
    RETURN QUERY SELECT NULL::text, NULL::text, NULL::smallint, NULL::int, NULL::int, NULL::int, NULL::text,
        NULL::float8, NULL::float8, NULL::float8, t, NULL::float8, NULL::float8, CASE WHEN general THEN 'general' END;
    IF general THEN
        RETURN;
    END IF;
    IF labels IS NOT NULL THEN
        INSERT INTO label (label, id)
        SELECT unnest(nullif(labels[n], '')::text[]), ids[n] FROM generate_series(1, cardinality(ids)) AS n
        WHERE ids[n] NOT IN (SELECT unnest(stored)) ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(stored) > 0 THEN
        RETURN QUERY SELECT j.id, j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at,
            j.due_at, j.created_at, j.started_at, j.updated_at, more(j)
        FROM job j WHERE j.id = ANY (stored)
        UNION ALL
        SELECT e.id, e.spec, e.state, e.version, e.attempt, e.lost, e.worker, e.place, e.joined_at,
            e.due_at, e.created_at, e.started_at, e.updated_at, more(ROW(e.*)::job)
        FROM ended e WHERE e.id = ANY (stored);
    END IF;
    IF cardinality(fresh) > 0 THEN
        PERFORM speak('queue:' || q) FROM (SELECT DISTINCT unnest(queues)) AS queues (q);
    END IF;
END $$;

-- -> a row with what was refused in `more`; or of each id asked for: the row that answers it.
CREATE FUNCTION enqueue_any(moment float8, jobs json) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    p record;
    refusal text;
BEGIN
    PERFORM enter(NULL);
    BEGIN
        PERFORM lock_ahead(jobs, '{}', NULL);
        SELECT * INTO p FROM prepare(jobs, t, NULL, NULL, NULL);
        PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, NULL, '{}', '{}');
        PERFORM call_in_freed('{}', t);
    EXCEPTION WHEN SQLSTATE 'TR001' THEN
        GET STACKED DIAGNOSTICS refusal = PG_EXCEPTION_DETAIL;
        RETURN QUERY SELECT NULL::text, NULL::text, NULL::smallint, NULL::int, NULL::int, NULL::int, NULL::text,
            NULL::float8, NULL::float8, NULL::float8, t, NULL::float8, NULL::float8, refusal;
        RETURN;
    END;
    RETURN QUERY SELECT * FROM answering(p.asked, p.answers);
END $$;
