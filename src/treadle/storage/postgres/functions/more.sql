-- Whether a row that has not ended says nothing beyond the columns that every row is told with.
-- It is written into the statements that ask, which makes reading a plain row 3 us cheaper than a call of `more`.
CREATE FUNCTION is_bare(r job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(r.after IS NULL AND r.slack = 0 AND r.pending = 0 AND NOT r.ran AND NOT r.memo AND r.round = 0
        AND r.deadline_at IS NULL AND r.parked IS NULL AND r.result IS NULL AND r.value IS NULL AND r.error IS NULL
        AND r.reason IS NULL AND r.note IS NULL AND r.state < 3, false)
$$;

-- What a row says beyond the columns that every row is told with; NULL when all of it is as in a plain job.
-- rows.py reads it. queries.py calls it where nothing of ours is on the search path, so it can call nothing.
CREATE FUNCTION more_of(r job, steps json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF r.state < 3 AND r.after IS NULL AND r.slack = 0 AND r.pending = 0 AND NOT r.ran AND NOT r.memo AND r.round = 0
        AND r.deadline_at IS NULL AND r.parked IS NULL AND r.result IS NULL AND r.value IS NULL AND r.error IS NULL
        AND r.reason IS NULL AND r.note IS NULL
    THEN
        RETURN NULL;
    END IF;
    RETURN json_build_array(r.after, r.pending, r.slack, r.ran, r.deadline_at, r.parked, r.round, r.result, r.value,
        r.error, r.reason, r.note, r.ended_at, r.expires_at, steps)::text;
END $$;

-- The same where the tables are at hand.
CREATE FUNCTION more(r job) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN more_of(r, CASE WHEN r.memo THEN
        (SELECT json_agg(json_build_array(m.name, m.value) ORDER BY m.num) FROM memo m WHERE m.id = r.id) END);
END $$;

-- Of each id asked for: the row that answers it. One SELECT without settings, so that the planner inlines it.
CREATE FUNCTION answering(wanted text[], answers text[]) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE sql STABLE AS $$
    SELECT a.asked, r.* FROM unnest(wanted, answers) AS a (asked, answer)
    CROSS JOIN LATERAL (
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, CASE WHEN NOT is_bare(j) THEN more(j) END
        FROM job j WHERE j.id = a.answer
        UNION ALL
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, more(ROW(j.*)::job)
        FROM ended j WHERE j.id = a.answer
        OFFSET 0) AS r
$$;
