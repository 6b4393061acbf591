-- Helpers of all verbs: they read, lock and write one row, and note topics. The per-row path uses them; the bulk paths
-- are in settle_and_claim.sql, settle.sql and enqueue.sql.

-- Collects the topics of a call in two settings of the transaction, one for each channel, as JSON strings. The process
-- publishes them after the commit: a commit that notifies holds a lock of the whole server until it is on disk.
CREATE FUNCTION publish(topic text) RETURNS void LANGUAGE sql AS $$
    SELECT note_topics(CASE WHEN topic LIKE 'job:%' THEN 'ends' ELSE 'say' END, to_json(topic)::text)
$$;

-- Notes topics, which are JSON strings separated by commas. If there are too many, it notes a pattern instead.
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

-- Returns the topics to publish after this transaction has committed, or NULL. say, ends: the channels. Each listening
-- session holds a shared lock on the name of its channel; topics without a listener are left out. A user's transaction
-- keeps all of them, because it may commit much later. The first element is the id of a user's transaction, else null.
--
-- One expression tests each lock: no interrupt can come between its two calls and leave the lock held.
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

-- Locks a job in either table and returns it; NULL if there is none. ending: the row will be moved, so the lock also
-- excludes transactions that begin to wait for the job.
CREATE FUNCTION lock_row(wanted text, ending boolean DEFAULT false) RETURNS job LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
BEGIN
    LOOP
        IF ending THEN
            SELECT * INTO job_row FROM job WHERE id = wanted FOR UPDATE;
        ELSE
            SELECT * INTO job_row FROM job WHERE id = wanted FOR NO KEY UPDATE;
        END IF;
        EXIT WHEN FOUND;
        SELECT * INTO job_row FROM ended WHERE id = wanted FOR UPDATE;
        EXIT WHEN FOUND;
        -- the row may have moved between the two statements
        PERFORM 1 FROM job WHERE id = wanted UNION ALL SELECT 1 FROM ended WHERE id = wanted;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END LOOP;
    RETURN job_row;
END $$;

-- Writes an unfinished row, and the slots that it holds.
CREATE FUNCTION update_job(job_row job) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM note_count(job_row.queue, job_row.task, kind_of(j.state, j.queue_position, j.blocked_on),
        kind_of(job_row.state, job_row.queue_position, job_row.blocked_on)) FROM job j WHERE j.id = job_row.id;
    UPDATE job SET
        version = job_row.version, state = job_row.state, function_done = job_row.function_done,
        checkpoints = job_row.checkpoints, attempt = job_row.attempt, lost = job_row.lost,
        reopenings = job_row.reopenings, pending = job_row.pending, failures_allowed = job_row.failures_allowed,
        queue_position = job_row.queue_position, return_position = job_row.return_position, due_at = job_row.due_at,
        deadline_at = job_row.deadline_at, started_at = job_row.started_at, updated_at = job_row.updated_at,
        worker = job_row.worker, key = job_row.key, blocked_on = job_row.blocked_on, after = job_row.after,
        reason = job_row.reason, note = job_row.note, result = job_row.result, value = job_row.value,
        error = job_row.error
    WHERE id = job_row.id;
    IF job_row.limits IS NOT NULL THEN
        IF job_row.started_at IS NULL THEN
            DELETE FROM slot WHERE key = ANY (job_row.limits) AND id = job_row.id;
        ELSE
            INSERT INTO slot (key, id, cost, live)
            SELECT u.key, job_row.id, u.cost, job_row.state = 2 AND NOT job_row.function_done
            FROM unnest(job_row.limits, job_row.costs) AS u (key, cost)
            ON CONFLICT (key, id) DO UPDATE SET live = excluded.live WHERE slot.live <> excluded.live;
        END IF;
    END IF;
    IF job_row.queue_position IS NOT NULL THEN
        PERFORM publish('queue:' || job_row.queue);
    END IF;
END $$;

-- Returns the queue position of a job that is queued at `moment`.
CREATE FUNCTION queue_position_of(job_row job, moment float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    turn float8 := moment - coalesce((job_row.words ->> 'aging')::float8 * (job_row.words ->> 'priority')::int, 0);
    last float8;
    head float8;
BEGIN
    IF job_row.lane IS NULL THEN
        RETURN turn;
    END IF;
    SELECT queue_position INTO last FROM job
    WHERE queue = job_row.queue AND rank = job_row.rank AND lane = job_row.lane AND queue_position IS NOT NULL
    ORDER BY queue_position DESC LIMIT 1;
    IF FOUND THEN
        RETURN last + (job_row.words ->> 'stride')::float8;
    END IF;
    SELECT queue_position INTO head FROM job
    WHERE queue = job_row.queue AND rank = job_row.rank AND queue_position IS NOT NULL ORDER BY queue_position LIMIT 1;
    RETURN least(turn, head);
END $$;

-- Queues a job at its return position; without one, at a new position as of `moment`.
CREATE FUNCTION queue_job(job_row job, moment float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    job_row.queue_position := coalesce(job_row.return_position, queue_position_of(job_row, moment));
    job_row.state := 1;
    job_row.return_position := job_row.queue_position;
    job_row.blocked_on := NULL;
    job_row.due_at := CASE WHEN NOT job_row.function_done THEN job_row.deadline_at END;
    PERFORM update_job(job_row);
END $$;

-- Schedules a job for a later time.
CREATE FUNCTION schedule_job(job_row job, run_at float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    job_row.state := 1;
    job_row.pending := 0;
    job_row.queue_position := NULL;
    job_row.blocked_on := NULL;
    job_row.return_position := NULL;
    job_row.due_at := least(run_at, CASE WHEN NOT job_row.function_done THEN job_row.deadline_at END);
    PERFORM update_job(job_row);
    PERFORM publish('queue:' || job_row.queue);
END $$;

-- The span of a job that was created at `since`: up to its instant, if it has one. See row_rules.delay_of.
CREATE FUNCTION span_of(span float8, moment float8, since float8) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN moment IS NULL THEN span ELSE greatest(moment - since, 0) END
$$;

-- The span within which a job must end.
CREATE FUNCTION deadline_of(words jsonb, created_at float8) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT span_of((words ->> 'deadline')::float8, (words ->> 'deadline_at')::float8, created_at)
$$;

-- Ends a wait: queues the job now, or when its delay is over. A promise keeps waiting until it is settled.
CREATE FUNCTION end_wait(job_row job, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    run_at float8 := coalesce((job_row.words ->> 'run_at')::float8,
        job_row.created_at + (job_row.words ->> 'delay')::float8);
BEGIN
    IF job_row.task = '' THEN
        PERFORM update_job(job_row);
    ELSIF job_row.started_at IS NULL AND NOT job_row.function_done AND run_at > t THEN
        PERFORM schedule_job(job_row, run_at);
    ELSE
        job_row.pending := 0;
        PERFORM queue_job(job_row, t);
    END IF;
END $$;

-- Returns the checkpoints of an outcome. If several have the same name, the last one counts.
CREATE FUNCTION checkpoints_of(steps json) RETURNS TABLE (at bigint, name text, value text) LANGUAGE sql IMMUTABLE AS $$
    SELECT DISTINCT ON (s.step ->> 0) s.at, s.step ->> 0, s.step ->> 1
    FROM json_array_elements(steps) WITH ORDINALITY AS s (step, at) ORDER BY s.step ->> 0, s.at DESC
$$;

-- Stores checkpoints. They are merged by name, in the order in which each name first occurred.
CREATE FUNCTION store_checkpoints(wanted text, steps json) RETURNS void LANGUAGE sql AS $$
    INSERT INTO checkpoints (id, name, value)
    SELECT wanted, s.name, s.value FROM checkpoints_of(steps) AS s ORDER BY s.at
    ON CONFLICT (id, name) DO UPDATE SET value = excluded.value
$$;

-- Deletes the steps of a job if an outcome with these checkpoints begins a new round of it.
CREATE FUNCTION forget_steps(wanted text, steps json) RETURNS void LANGUAGE sql AS $$
    DELETE FROM checkpoints c WHERE c.id = wanted AND left(c.name, 8) <> 'treadle:'
        AND EXISTS (SELECT 1 FROM json_array_elements(steps) AS s WHERE s ->> 0 = 'treadle:round')
$$;

-- Whether the job has all these checkpoints; see row_rules.repeats.
CREATE FUNCTION has_checkpoints(wanted text, steps json) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT EXISTS (SELECT 1 FROM checkpoints_of(steps) AS s WHERE left(s.name, 8) <> 'treadle:' AND NOT EXISTS
        (SELECT 1 FROM checkpoints AS c WHERE c.id = wanted AND c.name = s.name AND c.value = s.value))
$$;

-- The nonce of a person's act; NULL: the outcome is not an act.
CREATE FUNCTION act_nonce(steps json) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT s.step ->> 1 FROM json_array_elements(steps) AS s (step) WHERE s.step ->> 0 = 'treadle:act'
$$;
