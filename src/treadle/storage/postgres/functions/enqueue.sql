-- The verb enqueue: stores jobs. Plain jobs are inserted as they are, sorted by id, so that two calls with the same ids
-- do not deadlock.

-- chosen: the caller has chosen an id; if it is known, it may belong to another job, and enqueue_any decides.
-- patience: ms to wait for a lock of another transaction, which may be a user's and stay open; NULL: no limit, because
-- no other transaction can have these ids, or one that the caller has set.
--
-- Arrays take 0.7 us of the server for a job; JSON takes 2, because it is parsed twice and turned into a hash for each
-- row. They are read by index, because `unnest` of nine arrays opens nine tables: 15 us a call.
--
-- -> the time, then for each known id: the id and its row. Or 'general' in `details` of the first row: nothing was
-- stored, because an id is known and one is chosen.
CREATE FUNCTION enqueue_plain(moment float8, jobs new_jobs, chosen boolean, patience int) RETURNS SETOF returned_row
LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    -- copied into variables: reading an element of a composite's field reads all elements before it
    ids constant text[] := jobs.ids;
    tasks constant text[] := jobs.tasks;
    queues constant text[] := jobs.queues;
    specs constant text[] := jobs.specs;
    limits constant text[] := jobs.limits;
    costs constant text[] := jobs.costs;
    labels constant text[] := jobs.labels;
    general boolean := false;
    bounds text;                -- of queues; NULL: none has one
    fresh text[] := ids;
    stored text[];              -- ids that were known before this call
    over text[];                -- the upstreams that have ended
BEGIN
    PERFORM begin_call(NULL);
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience::text, true);
    END IF;
    SELECT value INTO bounds FROM meta WHERE name = 'bounds';
    -- nearly always all ids are new; ON CONFLICT would check each first and record which row stayed: 1.3 us a job
    BEGIN
        WITH put AS (
            INSERT INTO job (id, task, queue, rank, keep, keep_failed, limits, costs, spec, state, queue_position,
                return_position, created_at, updated_at)
            SELECT ids[n], tasks[n], queues[n], coalesce(jobs.ranks[n], 0), coalesce(jobs.keeps[n], ${KEEP}),
                coalesce(jobs.keeps_failed[n], ${KEEP_FAILED}), nullif(limits[n], '')::text[],
                nullif(costs[n], '')::int[], specs[n], 1, t, t, t, t
            FROM generate_series(1, cardinality(ids)) AS n RETURNING queue, task
        )
        INSERT INTO count_change SELECT queue, task, NULL, 'q', count(*) FROM put GROUP BY queue, task;
        IF bounds IS NOT NULL AND NOT has_room(bounds::json, queues) THEN
            RAISE unique_violation;     -- undoes the inserts above
        END IF;
    EXCEPTION WHEN unique_violation THEN
        general := chosen OR bounds IS NOT NULL;
        fresh := insert_jobs((SELECT json_agg(x) FROM (
            SELECT ids[n] AS id, tasks[n] AS task, queues[n] AS queue, coalesce(jobs.ranks[n], 0) AS rank,
                jobs.keeps[n] AS keep, jobs.keeps_failed[n] AS keep_failed, nullif(limits[n], '')::text[] AS limits,
                nullif(costs[n], '')::int[] AS costs, 0 AS failures_allowed, specs[n] AS spec
            FROM generate_series(1, cardinality(ids)) AS n WHERE NOT general) AS x), t);
        stored := ARRAY(SELECT unnest(ids) EXCEPT SELECT unnest(fresh));
    END;
    -- A new statement: it sees jobs that ended since the last one. Ids are usually in the order of their time, so
    -- usually no ended job has an id between these.
    IF NOT general AND EXISTS (SELECT 1 FROM ended e WHERE e.id BETWEEN ids[1] AND ids[cardinality(ids)]) THEN
        over := ARRAY(SELECT e.id FROM ended e WHERE e.id = ANY (fresh));
        general := chosen AND cardinality(over) > 0;
        PERFORM delete_jobs(CASE WHEN general THEN fresh ELSE over END);
        stored := stored || over;
    END IF;
    RETURN NEXT first_row(t, CASE WHEN general THEN 'general' END);
    IF general THEN
        RETURN;
    END IF;
    IF labels IS NOT NULL THEN
        INSERT INTO label (label, id)
        SELECT unnest(nullif(labels[n], '')::text[]), ids[n] FROM generate_series(1, cardinality(ids)) AS n
        WHERE ids[n] NOT IN (SELECT unnest(stored)) ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(stored) > 0 THEN
        RETURN QUERY SELECT * FROM returned_rows(stored, stored);
    END IF;
    IF cardinality(fresh) > 0 THEN
        PERFORM publish('queue:' || q) FROM (SELECT DISTINCT unnest(queues)) AS queues (q);
    END IF;
END $$;

-- The first row of a result. note: 'general', or a refusal; NULL: the jobs were stored at t.
CREATE FUNCTION first_row(t float8, note text) RETURNS returned_row LANGUAGE sql IMMUTABLE AS $$
    SELECT (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, t, NULL, NULL, note)::returned_row
$$;

-- -> one row with the refusal in `details`; or for each requested id, the row that is returned for it.
CREATE FUNCTION enqueue_any(moment float8, jobs json, patience int) RETURNS SETOF returned_row LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    prepared record;
    refusal text;
    bounds text;
    gone text[] := '{}';        -- jobs that were shed
BEGIN
    PERFORM begin_call(NULL);
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience::text, true);
    END IF;
    SELECT value INTO bounds FROM meta WHERE name = 'bounds';
    BEGIN
        PERFORM lock_keys_and_rows(jobs, '{}', NULL);
        t := instant(moment);       -- the holder of a key may have ended while this call waited
        SELECT * INTO prepared FROM prepare_jobs(jobs, moment, t, NULL, NULL, NULL);
        IF bounds IS NOT NULL THEN
            PERFORM lock_bounds(bounds::json, ARRAY(SELECT y.queue FROM json_to_recordset(jobs) AS y (queue text)));
            gone := make_room(bounds::json, jobs, t, prepared.requested, prepared.answers, prepared.fresh);
        END IF;
        PERFORM place_new_jobs(jobs, t, prepared.requested, prepared.answers, prepared.fresh, NULL, gone,
            array_fill(5, ARRAY[cardinality(gone)]));
        PERFORM unblock_freed_limits('{}', t);
    EXCEPTION WHEN SQLSTATE 'TR001' THEN
        GET STACKED DIAGNOSTICS refusal = PG_EXCEPTION_DETAIL;
        RETURN NEXT first_row(t, refusal);
        RETURN;
    END;
    RETURN QUERY SELECT * FROM returned_rows(prepared.requested, prepared.answers);
END $$;

-- The ids of those jobs that would wait for a lock of another transaction: each is stored alone, and undone. The caller
-- stores the others without them. It stops after `most` ms, so it may miss some; the next call finds them.
CREATE FUNCTION locked_jobs(moment float8, jobs json, most int) RETURNS SETOF text LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET lock_timeout = '5ms' AS $$
DECLARE
    began constant timestamptz := clock_timestamp();
    new_job json;
BEGIN
    FOR new_job IN SELECT value FROM json_array_elements(jobs) LOOP
        BEGIN
            PERFORM enqueue_any(moment, json_build_array(new_job), NULL);
            RAISE SQLSTATE 'TR004';
        EXCEPTION
            WHEN lock_not_available THEN
                RETURN NEXT new_job ->> 'id';
            WHEN OTHERS THEN        -- it was stored, or is refused without a wait
                NULL;
        END;
        EXIT WHEN clock_timestamp() > began + make_interval(secs => most / 1000.0);
    END LOOP;
END $$;
