-- Enqueue in a user's transaction, in one round trip: the verbs of enqueue.sql and enqueue_keyed.sql in a
-- subtransaction. So an error of ours leaves the user's transaction intact, as a savepoint would, which takes two round
-- trips more. A statement that the server cancels (statement_timeout) does abort the transaction: it cannot be caught.
--
-- jobs: plain ones, or jobs with keys; or NULL, and any_jobs has the jobs as JSON. chosen: see enqueue_plain. patience:
-- ms to wait for a lock of another transaction, unless the user's own lock_timeout is shorter.
--
-- -> the rows of the verb; or one row with the error in `details`: ["failed", SQLSTATE, message, context], or
-- ["isolation", level]. Statements of a repeatable read keep their old snapshot: a job would wait for jobs that have
-- ended since.
CREATE FUNCTION enqueue_within(moment float8, jobs new_jobs, any_jobs json, chosen boolean, patience int)
RETURNS SETOF returned_row LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    isolation constant text := current_setting('transaction_isolation');
    before constant text := current_setting('lock_timeout');
    own constant float8 := extract(epoch FROM before::interval) * 1000;
    error text;
    context text;
BEGIN
    IF isolation NOT IN ('read committed', 'read uncommitted') THEN
        RETURN NEXT first_row(NULL, json_build_array('isolation', isolation)::text);
        RETURN;
    END IF;
    PERFORM set_config('treadle.gates', 'never', true);     -- it may last for minutes, so it takes no gates of limits
    PERFORM set_config('lock_timeout', least(nullif(own, 0), patience)::int::text, true);
    BEGIN
        IF any_jobs IS NOT NULL THEN
            RETURN QUERY SELECT * FROM enqueue_any(moment, any_jobs, NULL);
        ELSIF jobs.keys IS NOT NULL THEN
            RETURN QUERY SELECT * FROM enqueue_keyed(moment, jobs, NULL);
        ELSE
            RETURN QUERY SELECT * FROM enqueue_plain(moment, jobs, chosen, NULL);
        END IF;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
        error := json_build_array('failed', SQLSTATE, SQLERRM, context)::text;
    END;
    PERFORM set_config('lock_timeout', before, true);
    IF error IS NOT NULL THEN
        RETURN NEXT first_row(NULL, error);
    END IF;
END $$;
