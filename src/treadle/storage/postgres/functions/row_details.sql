-- Whether an unfinished row has nothing that `row_details` would return. The planner inlines it into the statements
-- that call it, so reading a plain row costs 3 us less than a call of `row_details`.
CREATE FUNCTION has_no_details(job_row job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(job_row.after IS NULL AND job_row.failures_allowed = 0 AND job_row.pending = 0
        AND NOT job_row.function_done AND NOT job_row.checkpoints AND job_row.reopenings = 0
        AND job_row.deadline_at IS NULL AND job_row.blocked_on IS NULL AND job_row.result IS NULL
        AND job_row.value IS NULL AND job_row.error IS NULL AND job_row.reason IS NULL AND job_row.note IS NULL
        AND job_row.state < 3, false)
$$;

-- Returns, as JSON for rows.py, the columns that are not returned for a plain job. Pages call it without our schema on
-- the search path, so it can call no function of ours.
CREATE FUNCTION details_of(job_row job, steps json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN json_build_array(job_row.after, job_row.pending, job_row.failures_allowed, job_row.function_done,
        job_row.deadline_at, job_row.blocked_on, job_row.reopenings, job_row.result, job_row.value, job_row.error,
        job_row.reason, job_row.note, job_row.ended_at, job_row.expires_at, steps)::text;
END $$;

-- Returns the same as details_of; it reads the checkpoints from their table.
CREATE FUNCTION row_details(job_row job) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN details_of(job_row, CASE WHEN job_row.checkpoints THEN
        (SELECT json_agg(json_build_array(m.name, m.value) ORDER BY m.num)
            FROM checkpoints m WHERE m.id = job_row.id) END);
END $$;

-- For each of these ids, the row that is returned for it. One SELECT without settings, so that the planner inlines it.
CREATE FUNCTION returned_rows(requested text[], answers text[]) RETURNS SETOF returned_row LANGUAGE sql STABLE AS $$
    SELECT a.requested, r.* FROM unnest(requested, answers) AS a (requested, answer)
    CROSS JOIN LATERAL (
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, CASE WHEN NOT has_no_details(j) THEN row_details(j) END
        FROM job j WHERE j.id = a.answer
        UNION ALL
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, row_details(ROW(j.*)::job)
        FROM ended j WHERE j.id = a.answer
        OFFSET 0) AS r
$$;
