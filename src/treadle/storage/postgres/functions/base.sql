-- What every verb stands on: a row read and locked, a row written, a topic noted.
-- All of these belong to the slow road, one row at a time; plain rows pass them by (claim.sql, settle.sql, enqueue.sql).

-- Topics of this call are collected in two settings of the transaction, one for each channel, as JSON strings. The process
-- sends them after the commit: a commit that notifies holds a lock of the whole server until it is on disk.
CREATE FUNCTION speak(topic text) RETURNS void LANGUAGE sql AS $$
    SELECT note_topics(CASE WHEN topic LIKE 'job:%' THEN 'ends' ELSE 'say' END, to_json(topic)::text)
$$;

-- topics: JSON strings with commas between them; too many become a pattern.
CREATE FUNCTION note_topics(kind text, topics text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    before text := coalesce(current_setting('treadle.' || kind, true), '');
BEGIN
    IF position(topics IN before) > 0 OR before IN ('"job:*"', '"queue:*","worker:*"') THEN
        RETURN;
    END IF;
    topics := CASE WHEN before = '' THEN topics ELSE before || ',' || topics END;
    IF octet_length(topics) > 7000 THEN
        topics := CASE kind WHEN 'ends' THEN '"job:*"' ELSE '"queue:*","worker:*"' END;
    END IF;
    PERFORM set_config('treadle.' || kind, topics, true);
END $$;

-- What the process has to send once this transaction has committed, NULL: nothing. say, ends: the channels; each listening
-- session holds a shared lock of its channel's name, and topics that no session listens to are left out. Not in a user's
-- transaction, which may commit much later. There the first element is the transaction, else null.
-- The test is one expression: no interrupt can come between its two calls and leave the lock taken.
CREATE FUNCTION noted_topics(say text, ends text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    of_say text := nullif(current_setting('treadle.say', true), '');
    of_ends text := nullif(current_setting('treadle.ends', true), '');
BEGIN
    IF of_say IS NULL AND of_ends IS NULL THEN
        RETURN NULL;
    END IF;
    IF current_setting('treadle.gates', true) = 'never' THEN
        RETURN '[' || concat_ws(',', '"' || pg_current_xact_id() || '"', of_say, of_ends) || ']';
    END IF;
    of_say := CASE WHEN of_say IS NULL THEN NULL WHEN pg_try_advisory_lock(hashtextextended(say, 0))
        THEN CASE WHEN NOT pg_advisory_unlock(hashtextextended(say, 0)) THEN of_say END ELSE of_say END;
    of_ends := CASE WHEN of_ends IS NULL THEN NULL WHEN pg_try_advisory_lock(hashtextextended(ends, 0))
        THEN CASE WHEN NOT pg_advisory_unlock(hashtextextended(ends, 0)) THEN of_ends END ELSE of_ends END;
    RETURN '[null,' || nullif(concat_ws(',', of_say, of_ends), '') || ']';
END $$;

-- A job, locked, wherever it is; NULL if there is none. `ending`: also from those who wait for it, for it will be moved.
CREATE FUNCTION row_of(wanted text, ending boolean DEFAULT false) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    r job;
BEGIN
    LOOP
        IF ending THEN
            SELECT * INTO r FROM job WHERE id = wanted FOR UPDATE;
        ELSE
            SELECT * INTO r FROM job WHERE id = wanted FOR NO KEY UPDATE;
        END IF;
        EXIT WHEN FOUND;
        SELECT * INTO r FROM ended WHERE id = wanted FOR UPDATE;
        EXIT WHEN FOUND;
        -- it may have moved between the two statements
        PERFORM 1 FROM job WHERE id = wanted UNION ALL SELECT 1 FROM ended WHERE id = wanted;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN r;
END $$;

-- Write an unfinished row, and the slots it keeps.
CREATE FUNCTION put(r job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE job SET
        version = r.version, state = r.state, ran = r.ran, memo = r.memo, attempt = r.attempt, lost = r.lost,
        round = r.round, pending = r.pending, slack = r.slack, place = r.place, joined_at = r.joined_at,
        due_at = r.due_at, deadline_at = r.deadline_at, started_at = r.started_at, updated_at = r.updated_at,
        worker = r.worker, key = r.key, parked = r.parked, after = r.after, reason = r.reason, note = r.note,
        result = r.result, value = r.value, error = r.error
    WHERE id = r.id;
    IF r.limits IS NOT NULL THEN
        IF r.started_at IS NULL THEN
            DELETE FROM slot WHERE key = ANY (r.limits) AND id = r.id;
        ELSE
            INSERT INTO slot (key, id, cost, live)
            SELECT u.key, r.id, greatest(u.cost, 1), r.state = 2 AND NOT r.ran FROM unnest(r.limits, r.costs) AS u (key, cost)
            ON CONFLICT (key, id) DO UPDATE SET live = excluded.live WHERE slot.live <> excluded.live;
        END IF;
    END IF;
    IF r.place IS NOT NULL THEN
        PERFORM speak('queue:' || r.queue);
    END IF;
END $$;

-- Its number in line if it joins at `moment`.
CREATE FUNCTION place_of(r job, moment float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    turn float8 := moment - coalesce((r.words ->> 'aging')::float8 * (r.words ->> 'priority')::int, 0);
    last float8;
    head float8;
BEGIN
    IF r.lane IS NULL THEN
        RETURN turn;
    END IF;
    SELECT place INTO last FROM job
    WHERE queue = r.queue AND rank = r.rank AND lane = r.lane AND place IS NOT NULL ORDER BY place DESC LIMIT 1;
    IF FOUND THEN
        RETURN last + (r.words ->> 'stride')::float8;
    END IF;
    SELECT place INTO head FROM job
    WHERE queue = r.queue AND rank = r.rank AND place IS NOT NULL ORDER BY place LIMIT 1;
    RETURN least(turn, head);
END $$;

-- In line: at the turn it had, or at a new one as of `moment`.
CREATE FUNCTION join_line(r job, moment float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    r.place := coalesce(r.joined_at, place_of(r, moment));
    r.state := 1;
    r.joined_at := r.place;
    r.parked := NULL;
    r.due_at := CASE WHEN NOT r.ran THEN r.deadline_at END;
    PERFORM put(r);
END $$;

CREATE FUNCTION schedule(r job, run_at float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    r.state := 1;
    r.pending := 0;
    r.place := NULL;
    r.parked := NULL;
    r.joined_at := NULL;
    r.due_at := least(run_at, CASE WHEN NOT r.ran THEN r.deadline_at END);
    PERFORM put(r);
    PERFORM speak('queue:' || r.queue);
END $$;

-- It waits no longer: in line now, or when its delay is over. A promise waits on, for its settlement.
CREATE FUNCTION release(r job, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    run_at float8 := r.created_at + (r.words ->> 'delay')::float8;
BEGIN
    IF r.task = '' THEN
        PERFORM put(r);
    ELSIF r.started_at IS NULL AND NOT r.ran AND run_at > t THEN
        PERFORM schedule(r, run_at);
    ELSE
        r.pending := 0;
        PERFORM join_line(r, t);
    END IF;
END $$;

-- Steps remembered: merged by name, in the order in which they first came.
CREATE FUNCTION remember(wanted text, steps json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO memo (id, name, value)
    SELECT wanted, s.step ->> 0, s.step ->> 1 FROM json_array_elements(steps) WITH ORDINALITY AS s (step, at)
    WHERE NOT EXISTS (SELECT 1 FROM json_array_elements(steps) WITH ORDINALITY AS later (step, at)
        WHERE later.at > s.at AND later.step ->> 0 = s.step ->> 0)
    ORDER BY s.at
    ON CONFLICT (id, name) DO UPDATE SET value = excluded.value
$$;

-- The nonce of an outcome that is an act of a person; NULL: it is none.
CREATE FUNCTION act_in(steps json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT s.step ->> 1 FROM json_array_elements(steps) AS s (step) WHERE s.step ->> 0 = 'treadle:act'
$$;
