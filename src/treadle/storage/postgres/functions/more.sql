-- Whether a row that has not ended says nothing beyond the columns that every row is told with.
-- It is written into the statements that ask, which makes reading a plain row 3 us cheaper than a call of `more`.
CREATE FUNCTION is_bare(r job) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(r.after IS NULL AND r.slack = 0 AND r.pending = 0 AND NOT r.ran AND NOT r.memo AND r.round = 0
        AND r.deadline_at IS NULL AND r.parked IS NULL AND r.result IS NULL AND r.value IS NULL AND r.error IS NULL
        AND r.reason IS NULL AND r.note IS NULL AND r.state < 3, false)
$$;

-- What a row says beyond the columns that every row is told with; NULL when all of it is as in a plain job.
-- rows.py reads it. look.py calls it where nothing of ours is on the search path, so it can call nothing.
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
