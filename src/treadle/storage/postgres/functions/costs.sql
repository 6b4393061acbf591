-- The real costs of runs. Only the holder of a gate may change what its rate counts, so the transaction of an outcome
-- notes them in `recheck`. unblock_freed_limits reads the notes at the end of the call, or else the next call that has
-- the gate, before it counts.

-- Notes the real costs of the run that ends, which replace those that its claim reserved.
CREATE FUNCTION note_spent(job_row job, spent json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[];
BEGIN
    IF job_row.worker IS NULL OR job_row.started_at IS NULL OR job_row.function_done THEN
        RETURN;     -- no run of its function ends
    END IF;
    WITH noted AS (
        INSERT INTO recheck (key, at, reserved, spent)
        SELECT x.key, job_row.started_at, cost_of(job_row, x.key), x.cost FROM (
            SELECT DISTINCT ON (s.value ->> 0) s.value ->> 0 AS key, (s.value ->> 1)::int AS cost
            FROM json_array_elements(spent) WITH ORDINALITY AS s (value, n)
            ORDER BY s.value ->> 0, s.n DESC) AS x
        WHERE x.key = ANY (job_row.limits)
        RETURNING key
    ) SELECT array_agg(key) INTO keys FROM noted;
    PERFORM note_freed(keys);
END $$;

-- Lets the rates of these limits, whose gates the caller holds, count the noted costs, and deletes all notes of these
-- limits. A start whose window is over is not found, or no longer counts.
CREATE FUNCTION settle_noted_costs(keys text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    noted record;
    limit_rule rule;
    change bigint;
BEGIN
    FOR noted IN
        WITH notes AS (DELETE FROM recheck WHERE key = ANY (keys) RETURNING key, at, reserved, spent)
        SELECT * FROM notes WHERE at IS NOT NULL ORDER BY key, at
    LOOP
        limit_rule := rule_of(noted.key);
        IF limit_rule.rate IS NOT NULL AND limit_rule.how = 'bucket' THEN
            UPDATE gate SET at = greatest(at, t), tokens = least(capacity(limit_rule)::float8,
                rate_level(noted.key, limit_rule, t) + least(noted.reserved, capacity(limit_rule)) - noted.spent)
            WHERE key = noted.key AND tokens IS NOT NULL AND noted.at >= coalesce(since, 0);
        ELSE
            SELECT greatest(0, cost - noted.reserved) + noted.spent - cost INTO change FROM start
            WHERE key = noted.key AND at = noted.at;
            IF FOUND THEN
                UPDATE start SET cost = cost + change WHERE key = noted.key AND at = noted.at;
                UPDATE gate SET spent = spent + change WHERE key = noted.key;
            END IF;
        END IF;
    END LOOP;
END $$;
