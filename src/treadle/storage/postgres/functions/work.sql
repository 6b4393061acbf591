-- What a worker asks of a server all day: what became of its jobs, more of them, or both in one trip and one commit.
-- The settings stand here, once: to set and reset them for each function in it took 20 us, and a mark of a move looked
-- for three times 20 more, of 1,000 for a trip that carries eight jobs.
--
-- A plan is made once, and what the planner believes of a table is what the last sweep found: nothing at all, where it
-- was empty. It would then read the whole table for each call and look into the call's few jobs for each row. So every
-- statement here that looks up the jobs of a call is of a shape that has one plan: `CROSS JOIN LATERAL (... OFFSET 0)`,
-- which is never turned round, `id = ANY (...)`, or `ctid`; and `place + 0`, `state + 0` keep it from an index of a line.
-- (34 us of the server for a job instead of 90, in every second process that began after a sweep.)
--
-- outs, ask: what `settle` and `claim` are told; NULL: not asked for
-- -> what `settle` says (state -1: the status in `spec`, n in `version`, why in `more`), then what `claim` answers.
CREATE FUNCTION work(moment float8, outs json, ask json) RETURNS TABLE (
    spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s' SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
BEGIN
    PERFORM enter(CASE WHEN ask IS NULL THEN 'closing' END);
    IF outs IS NOT NULL THEN
        RETURN QUERY SELECT s.status, -1::smallint, s.n, NULL::int, NULL::int, NULL::text, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8, s.why
        FROM settle(moment, outs) AS s;
    END IF;
    IF ask IS NOT NULL THEN
        RETURN QUERY SELECT * FROM claim(moment, ask);
    END IF;
END $$;
