-- Changes of limits: storage/limit_facts.py in SQL. limit_fact stores the facts about each limit, one per row, and each
-- change writes its own; `rule` holds the rule that acts, derived from them. Changes run one at a time, because of two
-- concurrent ones each would miss the other's fact.

-- The verb. Each change is { do, name, the columns of a rule, why, until }. All limits that block jobs are checked.
CREATE FUNCTION set_limits(moment float8, changes json) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    line text;
    change json;
    anew boolean := false;
BEGIN
    PERFORM begin_call(NULL);
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' limits', 0));
    FOR change IN SELECT value FROM json_array_elements(changes) LOOP
        IF apply_change(change) THEN
            anew := true;
            PERFORM derive_rule(change ->> 'name');
        END IF;
    END LOOP;
    IF NOT anew THEN
        RETURN;
    END IF;
    -- waits for claims that still use the old rules: they would block jobs by a rule that is gone
    PERFORM pg_advisory_xact_lock(rules_lock());
    PERFORM derive_bounds();
    PERFORM unblock_all_limits(t);
    LOOP
        SELECT queue INTO line FROM job WHERE queue_position IS NOT NULL AND queue > coalesce(line, '')
        ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        PERFORM publish('queue:' || line);
    END LOOP;
END $$;

-- Apply one change -> whether anything has changed.
CREATE FUNCTION apply_change(change json) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    fact limit_fact := json_populate_record(NULL::limit_fact, change);
    paused text := change ->> 'why';
    changed int;
    opened int;
BEGIN
    CASE change ->> 'do'
    WHEN 'remove' THEN
        DELETE FROM limit_fact f WHERE f.name = fact.name AND f.kind IN ('set', 'declared');
    WHEN 'resume' THEN
        DELETE FROM limit_fact f WHERE f.name = fact.name AND f.kind = paused
            AND (fact.until IS NULL OR f.until <= fact.until);
        GET DIAGNOSTICS opened = ROW_COUNT;
        IF paused = 'paused' THEN
            DELETE FROM limit_fact f
            WHERE f.name = fact.name AND f.kind IN ('set', 'declared') AND f.slots = 0 AND f.max_waiting IS NULL;
            GET DIAGNOSTICS changed = ROW_COUNT;
            opened := opened + changed;
            UPDATE limit_fact f SET slots = NULL, rate = NULL, per = 1, how = 'window', burst = NULL, hold = 'running'
            WHERE f.name = fact.name AND f.kind IN ('set', 'declared') AND f.slots = 0;
        END IF;
    ELSE
        fact.kind := CASE change ->> 'do' WHEN 'pause' THEN paused WHEN 'declare' THEN 'declared' ELSE 'set' END;
        INSERT INTO limit_fact AS f SELECT fact.*
        ON CONFLICT (name, kind) DO UPDATE SET slots = excluded.slots, rate = excluded.rate, per = excluded.per,
            how = excluded.how, burst = excluded.burst, hold = excluded.hold, max_waiting = excluded.max_waiting,
            when_full = excluded.when_full, until = excluded.until
        WHERE f IS DISTINCT FROM excluded;
    END CASE;
    GET DIAGNOSTICS changed = ROW_COUNT;
    RETURN changed + coalesce(opened, 0) > 0;
END $$;

-- Stores the rule that applies to a limit: the operator's, else the declared one, with 0 slots while there is a reason
-- for a pause. Deletes the acting rule if no rule applies. The starts that a rate has counted stay.
CREATE FUNCTION derive_rule(limited text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    fact limit_fact;
BEGIN
    SELECT * INTO fact FROM limit_fact WHERE name = limited AND kind IN ('set', 'declared') ORDER BY kind DESC LIMIT 1;
    IF EXISTS (SELECT FROM limit_fact WHERE name = limited AND kind IN ('paused', 'held')) THEN
        fact.slots := 0;
    ELSIF fact.name IS NULL THEN
        DELETE FROM rule WHERE name = limited;
        RETURN;
    END IF;
    INSERT INTO rule (name, slots, rate, per, how, burst, hold)
    VALUES (limited, fact.slots, fact.rate, coalesce(fact.per, 1), coalesce(fact.how, 'window'), fact.burst,
        coalesce(fact.hold, 'running'))
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, rate = excluded.rate, per = excluded.per,
        how = excluded.how, burst = excluded.burst, hold = excluded.hold;
END $$;
