-- The rows of these ids, from either table; unknown ids have none. It is a function because it needs settings: a
-- statement planned while the tables were small read 100,000 rows for each lookup (13 to 60 ms), until the first
-- autoanalyze.
CREATE FUNCTION rows_of(ids text[]) RETURNS SETOF stored_row LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position,
            j.due_at, j.created_at, j.started_at, j.updated_at, CASE WHEN NOT has_no_details(j) THEN row_details(j) END
        FROM job j WHERE j.id = ANY (ids)
        UNION ALL
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, row_details(ROW(j.*)::job)
        FROM ended j WHERE j.id = ANY (ids);
END $$;
