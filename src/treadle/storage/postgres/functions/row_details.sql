-- Whether an unfinished row has nothing that `row_details` would return. Inlined into the statements that call it, it
-- makes reading a plain row 3 us cheaper than a call of `row_details`.
CREATE FUNCTION has_no_details(r job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(r.after IS NULL AND r.failures_allowed = 0 AND r.pending = 0 AND NOT r.function_done
        AND NOT r.checkpoints AND r.reopenings = 0 AND r.deadline_at IS NULL AND r.blocked_on IS NULL
        AND r.result IS NULL AND r.value IS NULL AND r.error IS NULL AND r.reason IS NULL AND r.note IS NULL
        AND r.state < 3, false)
$$;

-- The columns that are not returned for every row, as JSON; NULL if all of them are as in a plain job. rows.py reads
-- it. queries.py calls it without our schema on the search path, so it can call no function of ours.
CREATE FUNCTION details_of(r job, steps json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF r.state < 3 AND r.after IS NULL AND r.failures_allowed = 0 AND r.pending = 0 AND NOT r.function_done
        AND NOT r.checkpoints AND r.reopenings = 0 AND r.deadline_at IS NULL AND r.blocked_on IS NULL
        AND r.result IS NULL AND r.value IS NULL AND r.error IS NULL AND r.reason IS NULL AND r.note IS NULL
    THEN
        RETURN NULL;
    END IF;
    RETURN json_build_array(r.after, r.pending, r.failures_allowed, r.function_done, r.deadline_at, r.blocked_on,
        r.reopenings, r.result, r.value, r.error, r.reason, r.note, r.ended_at, r.expires_at, steps)::text;
END $$;

-- The same, with the checkpoints read from their table.
CREATE FUNCTION row_details(r job) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN details_of(r, CASE WHEN r.checkpoints THEN
        (SELECT json_agg(json_build_array(m.name, m.value) ORDER BY m.num) FROM checkpoints m WHERE m.id = r.id) END);
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
