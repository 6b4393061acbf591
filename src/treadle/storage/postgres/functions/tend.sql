-- Acting on what is due: scheduled jobs join the line, lost leases return, deadlines and waits end, rates let somebody in.
-- The common rows in two statements, the others one by one in the order of their moments; all of them so when lanes are
-- among them, for then it matters who joins first. What somebody else holds at the moment is left for later.
CREATE FUNCTION tend(t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    d record;
    limited text;
    queues text[];
    most int := ${TEND_STEP};
BEGIN
    IF NOT EXISTS (
        SELECT 1 FROM (SELECT lane FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most) AS due
        WHERE lane IS NOT NULL)
    THEN
        WITH joined AS (
            UPDATE job SET place = due_at, joined_at = due_at, due_at = CASE WHEN NOT ran THEN deadline_at END
            WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most
                    FOR NO KEY UPDATE SKIP LOCKED))
                AND state = 1 AND place IS NULL AND parked IS NULL AND joined_at IS NULL
                AND NOT coalesce(words ? 'aging', false) AND (ran OR deadline_at IS NULL OR deadline_at > t)
            RETURNING queue
        ) SELECT array_agg(DISTINCT queue) INTO queues FROM joined;
        PERFORM speak('queue:' || q) FROM unnest(queues) AS q;
        WITH returned AS (
            UPDATE job SET place = joined_at, state = 1, lost = lost + 1, updated_at = t,
                due_at = CASE WHEN NOT ran THEN deadline_at END, reason = lost_by(worker)
            WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM job WHERE due_at < t AND state = 2 ORDER BY due_at LIMIT most
                    FOR NO KEY UPDATE SKIP LOCKED))
                AND limits IS NULL AND joined_at IS NOT NULL AND (ran OR deadline_at IS NULL OR deadline_at > t)
            RETURNING queue
        ) SELECT array_agg(DISTINCT queue) INTO queues FROM returned;
        PERFORM speak('queue:' || q) FROM unnest(queues) AS q;
    END IF;
    FOR d IN
        SELECT * FROM (
            (SELECT id, due_at FROM job WHERE due_at <= t AND state <> 2 ORDER BY due_at LIMIT most)
            UNION ALL
            (SELECT id, due_at FROM job WHERE due_at < t AND state = 2 ORDER BY due_at LIMIT most)
        ) AS due ORDER BY due_at, id
    LOOP
        PERFORM act(d.id, d.due_at, t);
    END LOOP;
    PERFORM call_in_freed('{}', t);
    -- gates that other transactions hold are looked at by these, or by the next call
    FOREACH limited IN ARRAY try_gates(ARRAY(SELECT key FROM gate WHERE opens <= t LIMIT most)) LOOP
        PERFORM call_in_for(limited, t);
    END LOOP;
    PERFORM recheck_limits(t);
END $$;

-- Why a job is back in line whose lease ran out: the name of the worker, without the number of the ticket.
CREATE FUNCTION lost_by(ticket text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'lost by ' || coalesce(nullif(regexp_replace(ticket, '#[^#]*$', ''), ''), ticket)
$$;

-- The moment of this row has come. Where somebody else's open transaction is in the way, it comes again.
CREATE FUNCTION act(wanted text, due float8, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r job;
BEGIN
    SELECT * INTO r FROM job WHERE id = wanted AND due_at = due FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF r.deadline_at <= t AND NOT r.ran THEN
        PERFORM lock_below(ARRAY[r.id], ARRAY[r.id], false);
        PERFORM finish(r, 4, 'expired', 'its deadline passed', NULL, t);
        PERFORM count_endings(ARRAY[r.id], ARRAY[4], t);
    ELSIF r.state = 2 THEN
        r.lost := r.lost + 1;
        r.reason := lost_by(r.worker);
        r.updated_at := t;
        PERFORM join_line(r, t);
        PERFORM note_freed(r.limits);
    ELSIF r.state = 1 THEN
        PERFORM join_line(r, due);
    ELSIF r.started_at IS NULL AND NOT r.ran THEN
        PERFORM lock_below(ARRAY[r.id], ARRAY[r.id], false);
        PERFORM finish(r, 4, 'expired', 'what it waited for did not come in time', NULL, t);
        PERFORM count_endings(ARRAY[r.id], ARRAY[4], t);
    ELSIF r.task <> '' THEN
        PERFORM join_line(r, t);
    ELSE    -- a promise that ran: nobody acts on it, so it is due no more
        r.due_at := CASE WHEN NOT r.ran THEN r.deadline_at END;
        PERFORM put(r);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    PERFORM set_config('lock_timeout', '10ms', true);   -- half a second in all is enough
END $$;
