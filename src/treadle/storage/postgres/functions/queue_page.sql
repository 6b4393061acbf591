-- The next jobs of a queue: of the open tasks, of the named ids, or, if the queue is closed, those that may be exempt.
-- With `read_past` it reads at most this many rows of the queue. Otherwise, while a batch is full, each claim would
-- read the rest of the queue: 54 jobs/s with 16,000 rows instead of 1,000 and more. wants: the limits they name, as
-- text.
CREATE FUNCTION queue_page(scan queue_scan)
RETURNS TABLE (id text, spot tid, rank smallint, queue_position float8, wants text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF scan.named THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.id = ANY (scan.ids) AND j.queue = scan.queue AND j.queue_position + 0 IS NOT NULL
            AND (scan.at_id IS NULL
                OR (-j.rank, j.queue_position, j.id) > (-scan.at_rank, scan.at_position, scan.at_id))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT scan.size;
        RETURN;
    END IF;
    IF scan.read_past IS NOT NULL THEN
        RETURN QUERY SELECT k.id, k.spot, k.rank, k.queue_position, k.wants FROM (
            SELECT j.id, j.ctid AS spot, j.rank, j.queue_position, j.limits::text AS wants, j.task,
                j.function_done OR j.started_at IS NOT NULL AS exempt
            FROM job j WHERE j.queue = scan.queue AND j.queue_position IS NOT NULL
                AND (scan.at_id IS NULL
                    OR (j.rank = scan.at_rank AND (j.queue_position, j.id) > (scan.at_position, scan.at_id)))
            ORDER BY j.rank DESC, j.queue_position, j.id LIMIT scan.read_past) AS k
        WHERE k.task = ANY (scan.open_tasks) AND (NOT scan.closed OR k.exempt) LIMIT scan.size;
        IF scan.at_id IS NULL OR FOUND THEN
            RETURN;
        END IF;
    END IF;
    IF scan.at_id IS NOT NULL AND scan.read_past IS NULL THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = scan.queue AND j.queue_position IS NOT NULL
            AND j.rank = scan.at_rank AND (j.queue_position, j.id) > (scan.at_position, scan.at_id)
            AND (scan.open_tasks IS NULL OR j.task = ANY (scan.open_tasks))
            AND (NOT scan.closed OR j.function_done OR j.started_at IS NOT NULL)
        ORDER BY j.queue_position, j.id LIMIT scan.size;
        IF FOUND THEN
            RETURN;     -- a short page does not end the queue: the next one begins after it
        END IF;
    END IF;
    IF scan.read_past IS NOT NULL THEN
        RETURN QUERY SELECT k.id, k.spot, k.rank, k.queue_position, k.wants FROM (
            SELECT j.id, j.ctid AS spot, j.rank, j.queue_position, j.limits::text AS wants, j.task,
                j.function_done OR j.started_at IS NOT NULL AS exempt
            FROM job j WHERE j.queue = scan.queue AND j.queue_position IS NOT NULL AND j.rank < scan.at_rank
            ORDER BY j.rank DESC, j.queue_position, j.id LIMIT scan.read_past) AS k
        WHERE k.task = ANY (scan.open_tasks) AND (NOT scan.closed OR k.exempt) LIMIT scan.size;
    ELSIF scan.closed THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = scan.queue AND j.queue_position IS NOT NULL AND (j.function_done OR j.started_at IS NOT NULL)
            AND (scan.at_id IS NULL OR j.rank < scan.at_rank)
            AND (scan.open_tasks IS NULL OR j.task = ANY (scan.open_tasks))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT scan.size;
    ELSE
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.queue_position, j.limits::text FROM job j
        WHERE j.queue = scan.queue AND j.queue_position IS NOT NULL
            AND (scan.at_id IS NULL OR j.rank < scan.at_rank)
            AND (scan.open_tasks IS NULL OR j.task = ANY (scan.open_tasks))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT scan.size;
    END IF;
END $$;

-- The limits that the jobs of a page name, and those that all of them name.
CREATE FUNCTION page_limits(scan queue_scan, OUT names text[], OUT shared text[]) LANGUAGE plpgsql AS $$
DECLARE
    wants text[] := ARRAY(SELECT p.wants FROM queue_page(scan) AS p);
BEGIN
    names := ARRAY(SELECT DISTINCT unnest(w::text[]) FROM unnest(wants) AS w);
    shared := ARRAY(SELECT n FROM unnest(wants[1]::text[]) AS n WHERE NOT EXISTS (
        SELECT 1 FROM unnest(wants) AS w WHERE n = ANY (w::text[]) IS NOT true));
END $$;

-- The next page of a queue, and the gates of the limits that it names (gates.sql). The jobs are read once more when the
-- gates are held. Without the queue's own gate it reads no job.
--
-- first: nothing was claimed yet. moment: the time of the test's clock, or NULL.
CREATE FUNCTION read_page(scan queue_scan, first boolean, moment float8, t float8) RETURNS claim_page
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    page claim_page;
    wanted record;
    gates record;
    opened text[];
BEGIN
    page.t := t;
    page.held := '{}';
    page.complete := true;
    page.busy := false;
    IF scan.ruled THEN
        wanted := page_limits(scan);
        gates := take_page_gates(scan.own_limit, wanted.names, CASE WHEN first THEN wanted.shared END,
            scan.last AND first);
        page.held := gates.held;
        page.complete := gates.missing IS NULL;
        page.busy := gates.busy;
        IF gates.busy OR scan.own_limit = ANY (gates.missing) THEN
            RETURN page;
        END IF;
    END IF;
    FOR reading IN 1 .. 4 LOOP
        SELECT array_agg(p.id), array_agg(p.spot), array_agg(p.rank), array_agg(p.queue_position), array_agg(p.wants)
        INTO page.ids, page.spots, page.ranks, page.positions, page.wants FROM queue_page(scan) AS p;
        page.t := greatest(page.t, instant(moment));    -- no job of the page was queued later
        -- a rate that has opened since due rows were advanced admits blocked jobs before the queued ones
        EXIT WHEN reading = 4 OR NOT scan.ruled OR NOT EXISTS (SELECT 1 FROM gate WHERE gate.opens <= page.t);
        opened := ARRAY(SELECT key FROM gate WHERE gate.opens <= page.t AND key = ANY (page.held));
        EXIT WHEN cardinality(opened) = 0;
        PERFORM unblock_limits(opened, page.t);
        scan.at_id := NULL;
    END LOOP;
    page.from_head := scan.at_id IS NULL;
    RETURN page;
END $$;
