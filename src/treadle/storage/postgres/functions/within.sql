-- Enqueue in a user's transaction, in one round trip: the verbs of enqueue.sql and keyed.sql in a subtransaction. So an
-- error of ours leaves the user's transaction intact, as a savepoint would, which takes two round trips more.
--
-- -> the rows of the verb; or one row with the error in `more`: ["failed", SQLSTATE, message], or ["isolation", level].
-- A statement that the server cancels (statement_timeout) does abort the transaction: it cannot be caught.

-- The error of a transaction in which no job can be stored, else NULL. Statements of a repeatable read keep their old
-- snapshot: a job would wait for jobs that have ended since.
CREATE FUNCTION enter_within() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RETURN json_build_array('isolation', current_setting('transaction_isolation'))::text;
    END IF;
    PERFORM set_config('treadle.gates', 'never', true);     -- it may last for minutes, so it takes no gates of limits
    RETURN NULL;
END $$;

CREATE FUNCTION failed_within(error text) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE sql IMMUTABLE AS $$
    SELECT NULL::text, NULL::text, NULL::smallint, NULL::int, NULL::int, NULL::int, NULL::text, NULL::float8,
        NULL::float8, NULL::float8, NULL::float8, NULL::float8, NULL::float8, error
$$;

CREATE FUNCTION enqueue_plain_within(moment float8, ids text[], tasks text[], queues text[], specs text[], ranks smallint[],
    keeps float8[], keeps_failed float8[], limits text[], costs text[], labels text[], chosen boolean) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    error text := enter_within();
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_plain(moment, ids, tasks, queues, specs, ranks, keeps, keeps_failed, limits,
                costs, labels, chosen);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            error := json_build_array('failed', SQLSTATE, SQLERRM)::text;
        END;
    END IF;
    RETURN QUERY SELECT * FROM failed_within(error);
END $$;

CREATE FUNCTION enqueue_keyed_within(moment float8, ids text[], tasks text[], queues text[], specs text[], ranks smallint[],
    keeps float8[], keeps_failed float8[], limits text[], costs text[], labels text[], keys text[], words text[],
    leases float8[]) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    error text := enter_within();
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_keyed(moment, ids, tasks, queues, specs, ranks, keeps, keeps_failed, limits,
                costs, labels, keys, words, leases);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            error := json_build_array('failed', SQLSTATE, SQLERRM)::text;
        END;
    END IF;
    RETURN QUERY SELECT * FROM failed_within(error);
END $$;

CREATE FUNCTION enqueue_any_within(moment float8, jobs json) RETURNS TABLE (
    asked text, spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    error text := enter_within();
BEGIN
    IF error IS NULL THEN
        BEGIN
            RETURN QUERY SELECT * FROM enqueue_any(moment, jobs);
            RETURN;
        EXCEPTION WHEN OTHERS THEN
            error := json_build_array('failed', SQLSTATE, SQLERRM)::text;
        END;
    END IF;
    RETURN QUERY SELECT * FROM failed_within(error);
END $$;
