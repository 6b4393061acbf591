-- Returns a page of a query that bounds the rows it reads; pages.py writes the statement. It is a function because it
-- needs settings: without statistics the planner would read and sort the whole table.
CREATE FUNCTION scan_page(statement text, parameters text[]) RETURNS TABLE (
    n bigint, behind boolean, fits boolean, spec text, state smallint, version int, attempt int, lost int, worker text,
    queue_position float8, return_position float8, due_at float8, created_at float8, started_at float8,
    updated_at float8, details text
) LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET max_parallel_workers_per_gather = 0 SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    RETURN QUERY EXECUTE statement USING parameters;
END $$;

-- Runs a counting statement of pages.py under the same settings, and returns its number.
CREATE FUNCTION scan_count(statement text, parameters text[]) RETURNS bigint LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET max_parallel_workers_per_gather = 0 SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
    count_ bigint;
BEGIN
    EXECUTE statement INTO count_ USING parameters;
    RETURN count_;
END $$;
