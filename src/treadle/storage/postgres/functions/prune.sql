-- The verb: advance due rows; then delete ended rows past their retention that no unfinished job needs: none waits for
-- them by name, none belongs to their workflow. Locked rows are skipped: a call waits for them, or reopens them.
--
-- past: where the last call stopped, or NULL: rows before it are read only if too few lie behind it. Deleted rows stay
-- dead at the head until a vacuum, and each call would read past them: with 500,000, 4.2 us a row instead of 2.3.
--
-- -> how many were deleted, and the latest `expires_at` of these.
CREATE FUNCTION prune(moment float8, most int, past float8, OUT went int, OUT reached float8) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms'
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    picked tid[];
    gone text[];
BEGIN
    PERFORM enter(NULL);
    PERFORM advance_due(t);
    PERFORM fold_counts();
    PERFORM drop_empty_counts();
    LOOP
        -- is_needed is called only where a job waits or a workflow continues: 5 us a row instead of 83
        picked := ARRAY(
            SELECT e.ctid FROM ended e
            WHERE e.expires_at >= coalesce(past, '-Infinity') AND e.expires_at <= t AND NOT (
                (EXISTS (SELECT 1 FROM edge) OR EXISTS (SELECT 1 FROM job WHERE root IS NOT NULL) OR e.root IS NOT NULL)
                AND is_needed(e.id, e.root))
            ORDER BY e.expires_at, e.id LIMIT greatest(most, 0) FOR UPDATE SKIP LOCKED);
        EXIT WHEN past IS NULL OR cardinality(picked) = most;
        past := NULL;
    END LOOP;
    went := 0;
    IF cardinality(picked) = 0 THEN
        RETURN;
    END IF;
    -- again, now that no job can begin to wait for them
    WITH away AS (
        DELETE FROM ended e
        WHERE e.ctid = ANY (picked) AND NOT (
            (EXISTS (SELECT 1 FROM edge) OR EXISTS (SELECT 1 FROM job WHERE root IS NOT NULL) OR e.root IS NOT NULL)
            AND is_needed(e.id, e.root))
        RETURNING e.id, e.expires_at, e.queue, e.task, e.state
    ), counted AS (
        INSERT INTO count_change SELECT queue, task, kind_of(state, NULL, NULL), NULL, count(*) FROM away GROUP BY queue, task, state
    ) SELECT coalesce(array_agg(away.id), '{}'), max(away.expires_at) INTO gone, reached FROM away;
    DELETE FROM edge WHERE down = ANY (gone);
    DELETE FROM checkpoints WHERE id = ANY (gone);
    DELETE FROM label WHERE id = ANY (gone);
    DELETE FROM behind WHERE id = ANY (gone);
    DELETE FROM holder WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM holder WHERE id = ANY (gone) FOR UPDATE SKIP LOCKED)) AND id = ANY (gone);
    went := cardinality(gone);
END $$;

CREATE FUNCTION is_needed(wanted text, its_root text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
            SELECT 1 FROM edge e CROSS JOIN LATERAL (SELECT after FROM job WHERE id = e.down OFFSET 0) AS d
            WHERE e.up = wanted AND wanted = ANY (d.after))
        OR EXISTS (SELECT 1 FROM job u WHERE u.root = coalesce(its_root, wanted))
        OR EXISTS (SELECT 1 FROM job u WHERE u.id = its_root AND u.root IS NULL);
END $$;
