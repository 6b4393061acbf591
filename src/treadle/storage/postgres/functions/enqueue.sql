-- The verb: store jobs. Plain ones go in as they come, in the order of their ids (so that two calls with the same ids
-- do not lock each other out).

-- given: how many they are; that and their queues are not asked of the text again, which would read all of it once more
-- each time: 7.5 us of the server for a job instead of 9.
-- -> the moment, then of each that was known: its id and the row.
CREATE FUNCTION enqueue_plain(moment float8, jobs json, given int) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    fresh text[];
    known text[];
    stored text[];              -- before this call
    queues text[];
BEGIN
    PERFORM enter(NULL);
    WITH put AS (
        INSERT INTO job (id, task, queue, rank, keep, keep_failed, limits, costs, spec, state, place, joined_at,
            created_at, updated_at)
        SELECT x.id, x.task, x.queue, coalesce(x.rank, 0), coalesce(x.keep, 86400), coalesce(x.keep_failed, 2592000),
            x.limits, x.costs, x.spec, 1, t, t, t, t
        FROM json_to_recordset(jobs) AS x (id text, task text, queue text, rank smallint, keep float8,
            keep_failed float8, limits text[], costs int[], spec text)
        ON CONFLICT DO NOTHING RETURNING id, queue
    ) SELECT (SELECT array_agg(id) FROM put), ARRAY(SELECT DISTINCT queue FROM put) INTO fresh, queues;
    -- a statement of its own: one that has ended since the last one is seen
    SELECT array_agg(id) INTO known FROM ended WHERE id = ANY (fresh);
    DELETE FROM job WHERE id = ANY (known);
    RETURN QUERY SELECT NULL::text, NULL::text, NULL::smallint, NULL::int, NULL::int, NULL::int, NULL::text,
        NULL::float8, NULL::float8, NULL::float8, t, NULL::float8, NULL::float8, NULL::text;
    IF known IS NOT NULL OR coalesce(cardinality(fresh), 0) < given THEN
        stored := ARRAY(SELECT x.id FROM json_to_recordset(jobs) AS x (id text) EXCEPT SELECT unnest(fresh));
        RETURN QUERY SELECT j.id, j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at,
            j.due_at, j.created_at, j.started_at, j.updated_at, more(j)
        FROM job j WHERE j.id = ANY (stored)
        UNION ALL
        SELECT e.id, e.spec, e.state, e.version, e.attempt, e.lost, e.worker, e.place, e.joined_at,
            e.due_at, e.created_at, e.started_at, e.updated_at, more(ROW(e.*)::job)
        FROM ended e WHERE e.id = ANY (stored)
        UNION ALL
        SELECT e.id, e.spec, e.state, e.version, e.attempt, e.lost, e.worker, e.place, e.joined_at,
            e.due_at, e.created_at, e.started_at, e.updated_at, more(ROW(e.*)::job)
        FROM ended e WHERE e.id = ANY (known);
    END IF;
    PERFORM speak('queue:' || q) FROM unnest(queues) AS q;
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
        SELECT * INTO p FROM prepare(jobs, t, NULL, NULL, NULL);
        PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, NULL, '{}', '{}');
    EXCEPTION WHEN SQLSTATE 'TR001' THEN
        GET STACKED DIAGNOSTICS refusal = PG_EXCEPTION_DETAIL;
        RETURN QUERY SELECT NULL::text, NULL::text, NULL::smallint, NULL::int, NULL::int, NULL::int, NULL::text,
            NULL::float8, NULL::float8, NULL::float8, t, NULL::float8, NULL::float8, refusal;
        RETURN;
    END;
    RETURN QUERY
    SELECT a.asked, r.* FROM unnest(p.asked, p.answers) AS a (asked, answer)
    CROSS JOIN LATERAL (
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, CASE WHEN NOT is_bare(j) THEN more(j) END
        FROM job j WHERE j.id = a.answer
        UNION ALL
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, more(ROW(j.*)::job)
        FROM ended j WHERE j.id = a.answer
        OFFSET 0) AS r;
END $$;
