-- The next jobs of a queue behind a position: of these tasks, of these ids, or, if the queue is shut, those that may be
-- exempt. far: how many rows of the queue are read; NULL: all. Otherwise, when a batch is full, each claim would read
-- all of the queue behind it: 54 jobs/s with 16,000 rows instead of 1,000 and more. wants: the limits they name, as
-- text.
CREATE FUNCTION page_of(line text, tasks text[], wanted text[], shut boolean, at_rank smallint, at_position float8,
    at_id text, wide int, far int) RETURNS TABLE (id text, spot tid, rank smallint, queue_position float8, wants text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(wanted) > 0 THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.id = ANY (wanted) AND j.queue = line AND j.queue_position + 0 IS NOT NULL
            AND (at_id IS NULL OR (-j.rank, j.queue_position, j.id) > (-at_rank, at_position, at_id))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT wide;
        RETURN;
    END IF;
    IF far IS NOT NULL THEN
        RETURN QUERY SELECT k.id, k.spot, k.rank, k.queue_position, k.wants FROM (
            SELECT j.id, j.ctid AS spot, j.rank, j.queue_position, j.limits::text AS wants, j.task, j.function_done OR j.started_at IS NOT NULL AS begun
            FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL
                AND (at_id IS NULL OR (j.rank = at_rank AND (j.queue_position, j.id) > (at_position, at_id)))
            ORDER BY j.rank DESC, j.queue_position, j.id LIMIT far) AS k
        WHERE k.task = ANY (tasks) AND (NOT shut OR k.begun) LIMIT wide;
        IF at_id IS NULL OR FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF at_id IS NOT NULL AND far IS NULL THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank = at_rank AND (j.queue_position, j.id) > (at_position, at_id)
            AND (tasks IS NULL OR j.task = ANY (tasks)) AND (NOT shut OR j.function_done OR j.started_at IS NOT NULL)
        ORDER BY j.queue_position, j.id LIMIT wide;
        IF FOUND THEN
            RETURN;     -- a short page is not the end: the next one begins behind it
        END IF;
    END IF;
    IF far IS NOT NULL THEN
        RETURN QUERY SELECT k.id, k.spot, k.rank, k.queue_position, k.wants FROM (
            SELECT j.id, j.ctid AS spot, j.rank, j.queue_position, j.limits::text AS wants, j.task, j.function_done OR j.started_at IS NOT NULL AS begun
            FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank < at_rank
            ORDER BY j.rank DESC, j.queue_position, j.id LIMIT far) AS k
        WHERE k.task = ANY (tasks) AND (NOT shut OR k.begun) LIMIT wide;
    ELSIF shut THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = line AND j.queue_position IS NOT NULL AND (j.function_done OR j.started_at IS NOT NULL)
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT wide;
    ELSE
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = line AND j.queue_position IS NOT NULL
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT wide;
    END IF;
END $$;

-- The limits that the jobs of a page name, and those that all of them name.
CREATE FUNCTION limits_of_page(line text, tasks text[], wanted text[], shut boolean, at_rank smallint, at_position float8,
    at_id text, wide int, far int, OUT names text[], OUT shared text[]) LANGUAGE plpgsql AS $$
DECLARE
    wants text[] := ARRAY(SELECT p.wants FROM page_of(line, tasks, wanted, shut, at_rank, at_position, at_id, wide, far) AS p);
BEGIN
    names := ARRAY(SELECT DISTINCT unnest(w::text[]) FROM unnest(wants) AS w);
    shared := ARRAY(SELECT n FROM unnest(wants[1]::text[]) AS n WHERE NOT EXISTS (
        SELECT 1 FROM unnest(wants) AS w WHERE n = ANY (w::text[]) IS NOT true));
END $$;
