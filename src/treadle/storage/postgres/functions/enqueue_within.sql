-- Enqueue in a user's transaction, in one round trip: the verbs of enqueue.sql and enqueue_keyed.sql in a
-- subtransaction. So an error of ours leaves the user's transaction intact, as a savepoint would, which takes two round
-- trips more.
--
-- -> the rows of the verb; or one row with the error in `details`: ["failed", SQLSTATE, message, context], or
-- ["isolation", level].
-- A statement that the server cancels (statement_timeout) does abort the transaction: it cannot be caught.

-- The error of a transaction in which no job can be stored, else NULL. Statements of a repeatable read keep their old
-- snapshot: a job would wait for jobs that have ended since.
--
-- patience: ms to wait for a lock of another transaction, unless the user's own lock_timeout is shorter.
CREATE FUNCTION enter_within(patience int) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    own constant float8 := extract(epoch FROM current_setting('lock_timeout')::interval) * 1000;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RETURN json_build_array('isolation', current_setting('transaction_isolation'))::text;
    END IF;
    PERFORM set_config('treadle.gates', 'never', true);     -- it may last for minutes, so it takes no gates of limits
    PERFORM set_config('lock_timeout', least(nullif(own, 0), patience)::int::text, true);
    RETURN NULL;
END $$;

CREATE FUNCTION enqueue_plain_within(moment float8, jobs new_jobs, chosen boolean, patience int)
RETURNS SETOF returned_row LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
    error text := enter_within(patience);
    context text;
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_plain(moment, jobs, chosen, NULL);
            PERFORM set_config('lock_timeout', before, true);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
            error := json_build_array('failed', SQLSTATE, SQLERRM, context)::text;
        END;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
    RETURN NEXT first_row(NULL, error);
END $$;

CREATE FUNCTION enqueue_keyed_within(moment float8, jobs new_jobs, patience int)
RETURNS SETOF returned_row LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
    error text := enter_within(patience);
    context text;
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_keyed(moment, jobs, NULL);
            PERFORM set_config('lock_timeout', before, true);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
            error := json_build_array('failed', SQLSTATE, SQLERRM, context)::text;
        END;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
    RETURN NEXT first_row(NULL, error);
END $$;

CREATE FUNCTION enqueue_any_within(moment float8, jobs json, patience int)
RETURNS SETOF returned_row LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
    error text := enter_within(patience);
    context text;
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_any(moment, jobs, NULL);
            PERFORM set_config('lock_timeout', before, true);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS context = PG_EXCEPTION_CONTEXT;
            error := json_build_array('failed', SQLSTATE, SQLERRM, context)::text;
        END;
    END IF;
    PERFORM set_config('lock_timeout', before, true);
    RETURN NEXT first_row(NULL, error);
END $$;
