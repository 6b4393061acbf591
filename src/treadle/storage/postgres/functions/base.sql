-- What every verb stands on: a row read and locked, a row written, a topic spoken.
-- All of these belong to the slow road, one row at a time; plain rows pass them by (claim.sql, settle.sql, enqueue.sql).

-- One hint about a queue or a worker, or about a job. What is spoken twice in a transaction is heard once.
CREATE FUNCTION speak(topic text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify(channel(CASE WHEN topic LIKE 'job:%' THEN 'ends' ELSE 'say' END),
        CASE WHEN octet_length(topic) < 2000 THEN json_build_array(topic)::text ELSE '["job:*", "queue:*"]' END)
$$;

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
            SELECT u.key, r.id, u.cost, r.state = 2 AND NOT r.ran FROM unnest(r.limits, r.costs) AS u (key, cost)
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
