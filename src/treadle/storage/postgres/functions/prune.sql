-- The verb: advance due rows; then delete ended rows past their retention that no unfinished job needs: no such job
-- names them in `after` or belongs to their workflow. Locked rows are skipped: a call waits for them, or reopens them.
--
-- past: where the last call stopped, or NULL: rows before it are read only if too few lie behind it. Deleted rows stay
-- dead at the head until a vacuum, and each call would read past them: with 500,000, 4.2 us a row instead of 2.3.
--
-- A row that could go stays if an ended job names it that may be reopened, and would wait for it again. It gets the
-- expiry of that job, so no call reads it before.
--
-- most: rows to delete; scan_limit: rows to look at, at least as many. -> how many were deleted, the `expires_at`
-- behind which the next call may begin, and how many rows stayed.
CREATE FUNCTION prune(moment float8, most int, scan_limit int, past float8, OUT went int, OUT reached float8,
    OUT stayed int) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms'
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    picked tid[];
    gone text[];
    named boolean;
    passed float8;
BEGIN
    PERFORM begin_call(NULL);
    PERFORM advance_due(t);
    PERFORM fold_counts();
    PERFORM drop_empty_counts();
    LOOP
        -- is_needed is called only where a job waits or a workflow continues: 5 us a row instead of 83
        picked := ARRAY(
            SELECT e.ctid FROM ended e
            WHERE e.expires_at >= coalesce(past, '-Infinity') AND e.expires_at <= t AND NOT (
                (EXISTS (SELECT 1 FROM edge) OR EXISTS (SELECT 1 FROM job WHERE root IS NOT NULL) OR e.root IS NOT NULL)
                AND is_needed(e.id, workflow_of(e.task, e.root, e.ended_at, e.expires_at)))
            ORDER BY e.expires_at, e.id LIMIT greatest(scan_limit, 0) FOR UPDATE SKIP LOCKED);
        EXIT WHEN past IS NULL OR cardinality(picked) = scan_limit;
        past := NULL;
    END LOOP;
    went := 0;
    stayed := 0;
    IF cardinality(picked) = 0 THEN
        RETURN;
    END IF;
    named := EXISTS (SELECT 1 FROM edge);  -- if not, no job will name these rows: they are locked
    -- checks again, now that no job can begin to wait for them
    IF named THEN
        -- in one statement: a job that waits for a row may end between two, as one that may be reopened
        WITH free AS MATERIALIZED (
            SELECT e.ctid AS place, e.id, e.expires_at, (
                SELECT max(d.expires_at) FROM edge w CROSS JOIN LATERAL (
                    SELECT state, reason, expires_at, after FROM ended WHERE id = w.down OFFSET 0) AS d
                WHERE w.up = e.id AND d.expires_at > t AND e.id = ANY (d.after)
                    AND (d.state = 5 AND d.reason = 'upstream' OR d.state = 4 AND d.reason = 'children')) AS until
            FROM ended e WHERE e.ctid = ANY (picked)
                AND NOT is_needed(e.id, workflow_of(e.task, e.root, e.ended_at, e.expires_at))
        ), turn AS (  -- those up to the last row that is deleted
            SELECT * FROM (
                SELECT f.*, count(*) FILTER (WHERE f.until IS NULL) OVER (
                    ORDER BY f.expires_at, f.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                FROM free f) AS f WHERE f.before < most
        ), kept AS (
            UPDATE ended e SET expires_at = f.until FROM turn f WHERE f.until IS NOT NULL AND e.ctid = f.place
            RETURNING f.expires_at
        ) SELECT count(*), max(kept.expires_at), ARRAY(SELECT f.place FROM turn f WHERE f.until IS NULL)
        INTO stayed, passed, picked FROM kept;
    ELSE
        picked := picked[:most];
    END IF;
    WITH away AS (
        DELETE FROM ended e
        WHERE e.ctid = ANY (picked) AND (named OR NOT (
            (EXISTS (SELECT 1 FROM job WHERE root IS NOT NULL) OR e.root IS NOT NULL)
            AND is_needed(e.id, workflow_of(e.task, e.root, e.ended_at, e.expires_at))))
        RETURNING e.id, e.expires_at, e.queue, e.task, e.state
    ), counted AS (
        INSERT INTO count_change SELECT queue, task, kind_of(state, NULL, NULL), NULL, count(*) FROM away
            GROUP BY queue, task, state
    ) SELECT coalesce(array_agg(away.id), '{}'), max(away.expires_at) INTO gone, reached FROM away;
    DELETE FROM edge WHERE down = ANY (gone);
    DELETE FROM checkpoints WHERE id = ANY (gone);
    DELETE FROM label WHERE id = ANY (gone);
    DELETE FROM behind WHERE id = ANY (gone);
    DELETE FROM holder WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM holder WHERE id = ANY (gone) FOR UPDATE SKIP LOCKED)) AND id = ANY (gone);
    went := cardinality(gone);
    IF went < most THEN
        reached := greatest(reached, passed);
    END IF;
END $$;

-- The root of a row, as far as it keeps the row: a row without a task that was settled with `keep=0` is not kept.
CREATE FUNCTION workflow_of(task text, root text, ended_at float8, expires_at float8) RETURNS text LANGUAGE sql IMMUTABLE
AS $$ SELECT CASE WHEN task <> '' OR expires_at > ended_at + ${KEEP_LEAST} THEN root END $$;

CREATE FUNCTION is_needed(wanted text, its_root text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN EXISTS (
            SELECT 1 FROM edge e CROSS JOIN LATERAL (SELECT after FROM job WHERE id = e.down OFFSET 0) AS d
            WHERE e.up = wanted AND wanted = ANY (d.after))
        OR EXISTS (SELECT 1 FROM job u WHERE u.root = coalesce(its_root, wanted))
        OR EXISTS (SELECT 1 FROM job u WHERE u.id = its_root AND u.root IS NULL);
END $$;
