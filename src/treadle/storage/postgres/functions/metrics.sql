-- The rows of metrics. They are telemetry: no function of jobs reads or locks them.

-- The verb store_metrics: stores rows and removes others, row by row in the order of their key, so that two calls never
-- wait for each other. Each key occurs only once. data is in hexadecimal.
CREATE FUNCTION store_metrics(stored json, removed json) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    metric record;
BEGIN
    PERFORM begin_call('closing');
    FOR metric IN
        SELECT s.span, s.at, s.source, s.data
        FROM json_to_recordset(stored) AS s (at float8, span float8, source text, data text)
        UNION ALL
        SELECT r.span, r.at, r.source, NULL FROM json_to_recordset(removed) AS r (at float8, span float8, source text)
        ORDER BY 1, 2, 3
    LOOP
        IF metric.data IS NULL THEN
            DELETE FROM metrics m WHERE m.span = metric.span AND m.at = metric.at AND m.source = metric.source;
        ELSE
            INSERT INTO metrics (span, at, source, data)
            VALUES (metric.span, metric.at, metric.source, decode(metric.data, 'hex'))
            ON CONFLICT (span, at, source) DO UPDATE SET data = excluded.data;
        END IF;
    END LOOP;
END $$;

-- The verb read_metrics: returns the rows whose span overlaps [since, until), with their data in hexadecimal. The exact
-- condition decides; the wider one lets the planner use the index.
CREATE FUNCTION read_metrics(since float8, until float8) RETURNS TABLE (at float8, span float8, source text, data text)
LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
#variable_conflict use_column
DECLARE
    length float8 := '-Infinity';
BEGIN
    LOOP
        SELECT m.span INTO length FROM metrics m WHERE m.span > length ORDER BY m.span LIMIT 1;
        EXIT WHEN NOT FOUND;
        RETURN QUERY SELECT m.at, m.span, m.source, encode(m.data, 'hex') FROM metrics m
        WHERE m.span = length AND m.at < until AND m.at >= since - length - 0.001 AND m.at + m.span > since;
    END LOOP;
END $$;
