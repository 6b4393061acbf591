-- Drops what no call reads any more: claim ids older than a day, workers unseen for 30 days, and limits that hold
-- nothing. Partitions (`user:<id>`) come and go, and each leaves a gate and its starts.

-- The second half of the verb prune. It is a separate transaction, because claims wait for the gates that it holds. It
-- checks `most` gates after the key `past` -> the key where the next call continues, or '' after the last. Gates are
-- picked without locks, then the free ones are locked: it never waits for a gate in use.
CREATE FUNCTION drop_unused(moment float8, most int, past text) RETURNS text LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    keys text[] COLLATE "C";
    empty text[];
BEGIN
    PERFORM begin_call(NULL);
    DELETE FROM recent_claim
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM recent_claim WHERE at < t - 86400 FOR UPDATE SKIP LOCKED));
    DELETE FROM worker
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM worker WHERE seen < t - 30 * 86400 FOR UPDATE SKIP LOCKED));
    keys := ARRAY(SELECT g.key FROM gate g WHERE g.key > past COLLATE "C" ORDER BY g.key LIMIT most);
    empty := ARRAY(SELECT g.key FROM gate g WHERE g.key = ANY (keys) AND NOT is_used(g, t));
    empty := ARRAY(SELECT g.key FROM gate g WHERE g.key = ANY (empty) ORDER BY g.key FOR UPDATE SKIP LOCKED);
    -- checked again under the lock: a transaction that writes a start holds the gate
    empty := ARRAY(SELECT g.key FROM gate g WHERE g.key = ANY (empty) AND NOT is_used(g, t));
    DELETE FROM start WHERE key = ANY (empty);
    DELETE FROM gate WHERE key = ANY (empty);
    RETURN CASE WHEN cardinality(keys) < most THEN '' ELSE keys[most] END;
END $$;

-- Whether a limit holds anything that a claim needs: slots, blocked jobs, starts within the window, a bucket that is
-- not full. Starts and tokens that no rule counts are kept for 30 days, in case the rule comes back.
CREATE FUNCTION is_used(gate_row gate, t float8) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
DECLARE
    month constant float8 := 30 * 86400;
    limit_rule rule;
    last float8;
BEGIN
    IF gate_row.opens IS NOT NULL OR EXISTS (SELECT 1 FROM slot WHERE key = gate_row.key)
        OR EXISTS (SELECT 1 FROM job WHERE blocked_on = gate_row.key AND queue_position IS NULL)
    THEN
        RETURN true;
    END IF;
    SELECT s.at INTO last FROM start s WHERE s.key = gate_row.key ORDER BY s.at DESC LIMIT 1;
    IF last IS NULL AND gate_row.tokens IS NULL THEN
        RETURN false;
    END IF;
    limit_rule := rule_of(gate_row.key);
    IF last + (CASE WHEN limit_rule.how <> 'bucket' AND limit_rule.rate IS NOT NULL
        THEN limit_rule.per ELSE month END) > t
    THEN
        RETURN true;
    END IF;
    IF limit_rule.rate IS NOT NULL AND limit_rule.how = 'bucket' THEN
        RETURN rate_level(gate_row.key, limit_rule, t) < capacity(limit_rule);
    END IF;
    RETURN gate_row.tokens IS NOT NULL AND gate_row.at + month > t;
END $$;
