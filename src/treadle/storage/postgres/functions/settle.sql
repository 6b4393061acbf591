-- The verb settle: settles outcomes. Plain endings of plain jobs take one statement. All others go one by one, each in
-- a subtransaction: an outcome that cannot be stored fails alone.
--
-- Do not end a job and count down others in one writing CTE: its snapshot is older than its wait for the row, so the
-- others would wait for ever. A later statement counts them down, with a new snapshot.
--
-- outcomes: an array of job_outcome, in the order of their ids. number: how many, because counting them in the text
-- takes 2 % of a trip of 128. slow: some are not fast.
--
-- Returns a row for each outcome that was not simply applied: n, status ('stale', 'refused'), and the reason.
CREATE FUNCTION settle(moment float8, outcomes json, number int, slow boolean)
RETURNS TABLE (n int, status text, why text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    done text[];
    awaited text[];             -- the jobs that other jobs wait for
    held text[];                -- the jobs that name limits
    named text[];               -- their limits, as text: an array cannot contain arrays of different lengths
    gates text[];               -- each of these limits
    acted text[];               -- the jobs that a person's act ended
    nonces text[];              -- the nonce of each such act
    notified text[];        -- workers that ran one of these jobs
    others text[];              -- jobs that acts changed in another way
    alone boolean;              -- this call changes no other jobs
    outcome job_outcome;
    settled record;
BEGIN
    LOOP
        BEGIN
            PERFORM lock_for_outcomes(outcomes, slow);
            t := instant(moment);   -- after the wait: what ended meanwhile ended before these jobs and their children
            others := CASE WHEN slow THEN settle_acts(outcomes, t) END;
            WITH stored AS (
                SELECT x.*, j.spot FROM json_to_recordset(outcomes) AS x (id text, version int, state smallint,
                    attempt int, result text, value text, error text, reason text, note text, keep float8, fast boolean,
                    act text)
                CROSS JOIN LATERAL (    -- see settle_and_claim.sql
                    SELECT ctid AS spot FROM job WHERE id = x.id OFFSET 0) AS j
                WHERE x.fast
            ), gone AS (
                DELETE FROM job USING stored AS x WHERE job.ctid = x.spot AND job.version = x.version
                    -- an upstream of the same call may end a waiting job
                    AND (job.state + 0 = 2 OR x.act IS NOT NULL AND (job.state + 0 = 1
                        OR NOT EXISTS (SELECT 1 FROM edge WHERE edge.down = x.id AND edge.open)))
                RETURNING job.id, job.version, job.state, rank, function_done, checkpoints, lost, reopenings,
                    failures_allowed, return_position, deadline_at, created_at, started_at, job.keep, keep_failed,
                    lease, queue, task, worker, key, lane, root, parent, limits, costs, after, words, spec, job.note,
                    kind_of(job.state, job.queue_position, job.blocked_on) AS was, x.state AS to_state,
                    x.attempt AS to_attempt, x.result AS to_result, x.value AS to_value, x.error AS to_error,
                    x.reason AS to_reason, x.note AS to_note, x.keep AS to_keep, x.act
            ), kept AS (
                INSERT INTO ended (id, version, state, rank, function_done, checkpoints, attempt, lost, reopenings,
                    failures_allowed, return_position, deadline_at, created_at, started_at, updated_at, ended_at,
                    expires_at, keep, keep_failed, lease, queue, task, worker, key, lane, root, parent, limits, costs,
                    after, words, spec, reason, note, result, value, error)
                SELECT id, version + 1, to_state, rank, function_done, checkpoints OR act IS NOT NULL, to_attempt, lost,
                    reopenings, failures_allowed, return_position, deadline_at, created_at, started_at, t, t,
                    greatest(created_at + (words ->> 'window')::float8, t + greatest(${KEEP_LEAST},
                        coalesce(to_keep, CASE WHEN to_state = 4 THEN keep_failed ELSE keep END))),
                    keep, keep_failed, lease, queue, task, CASE WHEN state = 2 THEN worker END, key, lane, root, parent,
                    limits, costs, after, words, spec, to_reason, coalesce(to_note, note), to_result, to_value, to_error
                FROM gone
            ), counted AS (
                INSERT INTO count_change SELECT queue, task, was, kind_of(to_state, NULL, NULL), count(*) FROM gone
                GROUP BY queue, task, was, to_state
            ) SELECT array_agg(id), array_agg(id) FILTER (WHERE limits IS NOT NULL),
                array_agg(limits::text) FILTER (WHERE limits IS NOT NULL),
                array_agg(id) FILTER (WHERE act IS NOT NULL), array_agg(act) FILTER (WHERE act IS NOT NULL),
                array_agg(DISTINCT worker) FILTER (WHERE act IS NOT NULL AND state = 2)
            INTO done, held, named, acted, nonces, notified FROM gone;
            IF acted IS NOT NULL THEN
                PERFORM note_acts(acted, nonces);
                PERFORM notify_worker(w) FROM unnest(notified) AS w;
            END IF;
            SELECT array_agg(DISTINCT up) INTO awaited FROM edge WHERE up = ANY (done) AND open;
            IF awaited IS NOT NULL THEN
                PERFORM lock_late_dependents(awaited);
            END IF;
            alone := awaited IS NULL AND coalesce(cardinality(done), 0) + coalesce(cardinality(others), 0) = number;
            IF held IS NOT NULL THEN
                gates := ARRAY(SELECT DISTINCT unnest(n.named::text[])
                    FROM (SELECT DISTINCT unnest(named)) AS n (named));
                PERFORM free_slots(held, named, gates);
            END IF;
            EXIT;
        EXCEPTION
            WHEN SQLSTATE 'TR003' THEN      -- a job that began to wait meanwhile is locked: lock again, in order
                NULL;
            WHEN lock_not_available THEN
                alone := false;
                done := NULL;
                others := NULL;
                gates := NULL;      -- another transaction has locked one of them: settle each by itself
                PERFORM set_config('lock_timeout', '10ms', true);
                EXIT;
        END;
    END LOOP;
    -- one hint for many endings
    PERFORM note_topics('ends', topics)
    FROM (SELECT string_agg(to_json('job:' || id)::text, ',') AS topics FROM unnest(done) AS id) AS endings
    WHERE topics IS NOT NULL;
    IF alone THEN
        PERFORM unblock_freed_limits(gates, t);
        RETURN;
    END IF;
    -- if other jobs change too, each outcome is applied in its turn, because the first job that joins a lane is ahead
    FOR outcome IN SELECT * FROM json_populate_recordset(NULL::job_outcome, outcomes) AS x ORDER BY x.n LOOP
        CONTINUE WHEN outcome.id = ANY (others);
        IF outcome.fast AND outcome.id = ANY (done) THEN
            IF outcome.id = ANY (awaited) THEN
                PERFORM count_endings(ARRAY[outcome.id], ARRAY[outcome.state::int], t);
            END IF;
            CONTINUE;
        END IF;
        settled := settle_one(outcome, moment, t);
        IF settled.status <> 'applied' THEN
            RETURN QUERY SELECT outcome.n, settled.status, settled.why;
        END IF;
    END LOOP;
    PERFORM unblock_freed_limits(gates, t);
END $$;

-- Locks the keys and rows that these outcomes need, in their order. Plain endings that no job waits for lock their rows
-- as they delete them.
CREATE FUNCTION lock_for_outcomes(outcomes json, slow boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    own text[];
    failing text[];
BEGIN
    IF NOT slow AND NOT EXISTS (SELECT 1 FROM edge WHERE open) THEN
        RETURN;
    END IF;
    SELECT array_agg(x.id), array_agg(x.id) FILTER (WHERE x.state IN (4, 5)) INTO own, failing
    FROM json_to_recordset(outcomes) AS x (id text, state smallint);
    IF slow THEN
        PERFORM lock_keys_and_rows((SELECT json_agg(born.job) FROM json_to_recordset(outcomes) AS x (followups json)
            CROSS JOIN LATERAL (SELECT * FROM json_array_elements(x.followups) OFFSET 0) AS born (job)), own, failing);
    ELSIF EXISTS (SELECT 1 FROM edge WHERE up = ANY (own) AND open) THEN
        PERFORM lock_with_dependents(own, failing, true);
    END IF;
END $$;

-- Settles one outcome in a subtransaction. Returns the status ('applied', 'stale' or 'refused') and the reason.
CREATE FUNCTION settle_one(outcome job_outcome, moment float8, t float8, OUT status text, OUT why text)
LANGUAGE plpgsql AS $$
BEGIN
    outcome.delay := coalesce(outcome.delay, 0);
    outcome.function_done := coalesce(outcome.function_done, false);
    outcome.after := coalesce(outcome.after, '{}');
    outcome.followups := coalesce(outcome.followups, '[]');
    SELECT s.status, s.why INTO status, why FROM settle_row(outcome, moment, t) AS s;
EXCEPTION
    WHEN SQLSTATE 'TR001' THEN
        status := 'refused';
        GET STACKED DIAGNOSTICS why = PG_EXCEPTION_DETAIL;
    WHEN lock_not_available THEN
        status := 'refused';
        why := json_build_array('locked');
        PERFORM set_config('lock_timeout', '10ms', true);   -- together the waits may take one second
END $$;

-- Settles one outcome on the per-row path.
CREATE FUNCTION settle_row(outcome job_outcome, moment float8, t float8, OUT status text, OUT why text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    job_row job := lock_row(outcome.id, outcome.state > 2);
    prepared record;
    circle text[] := '{}';      -- rows that the job must not wait for
    alone boolean;              -- it creates no jobs, and does not wait
BEGIN
    status := 'applied';
    IF job_row.id IS NULL OR NOT coalesce(job_row.queue = ANY (outcome.reach), true) THEN
        status := 'stale';
        why := json_build_array('gone');
        RETURN;
    ELSIF is_repetition(outcome, job_row) THEN
        RETURN;
    ELSIF job_row.version <> outcome.version THEN
        status := 'stale';
        why := json_build_array('moved', job_row.state, job_row.version);
        RETURN;
    ELSIF job_row.state > 2 THEN
        SELECT s.status, s.why INTO status, why FROM settle_ended(job_row, outcome, t) AS s;
        RETURN;
    END IF;
    IF outcome.state > 2 AND cardinality(outcome.after) > 0 THEN
        why := stale_because_reopened(job_row, outcome.after);
        IF why IS NOT NULL THEN
            status := 'stale';
            RETURN;
        END IF;
        outcome.after := '{}';
    END IF;
    -- if so, the rest is skipped, which saves about a third of a cancel
    alone := outcome.state <> 0 AND json_array_length(outcome.followups) = 0;
    IF NOT alone THEN
        SELECT * INTO prepared FROM prepare_jobs(outcome.followups, moment, t,
            CASE WHEN outcome.state > 2 THEN outcome.id END, outcome.id, outcome.after);
        IF outcome.state = 0 AND (cardinality(prepared.fresh) < cardinality(prepared.requested)
            OR mentions(outcome.followups, 'after'))
        THEN
            circle := waiting_circle(outcome.id, outcome.followups, outcome.after, prepared.requested,
                prepared.answers, prepared.fresh);
        END IF;
        IF outcome.reach IS NOT NULL THEN
            PERFORM refuse_ups(outcome.id, outcome.after, coalesce(job_row.after, '{}') || prepared.requested,
                outcome.reach);
        END IF;
    END IF;
    IF job_row.state = 2 AND outcome.reason IN ('asked', 'superseded', 'paused') THEN
        PERFORM notify_worker(job_row.worker);
    END IF;
    IF json_array_length(outcome.checkpoints) > 0 THEN
        PERFORM forget_steps(outcome.id, outcome.checkpoints);
        PERFORM store_checkpoints(outcome.id, outcome.checkpoints);
        job_row.checkpoints := true;
    END IF;
    IF outcome.spent IS NOT NULL THEN
        PERFORM note_spent(job_row, outcome.spent);
    END IF;
    job_row.attempt := outcome.attempt;
    job_row.result := outcome.result;
    job_row.value := outcome.value;
    job_row.error := outcome.error;
    job_row.reason := outcome.reason;
    job_row.note := coalesce(outcome.note, job_row.note);
    job_row.updated_at := t;
    job_row.function_done := job_row.function_done OR outcome.function_done;
    IF outcome.state > 2 THEN
        IF job_row.state <> 2 THEN
            job_row.worker := NULL;
        END IF;
        PERFORM end_job(job_row, outcome.state, outcome.reason, outcome.error, outcome.keep, t);
        IF alone THEN
            PERFORM count_endings(ARRAY[outcome.id], ARRAY[outcome.state::int], t);
        ELSE
            PERFORM place_new_jobs(outcome.followups, t, prepared.requested, prepared.answers, prepared.fresh, NULL,
                ARRAY[outcome.id], ARRAY[outcome.state::int]);
        END IF;
        RETURN;
    END IF;
    IF outcome.result IS NOT NULL THEN
        PERFORM publish('job:' || outcome.id);
    END IF;
    job_row.version := job_row.version + 1;
    job_row.worker := NULL;
    job_row.queue_position := NULL;
    job_row.blocked_on := NULL;
    job_row.due_at := NULL;
    job_row.state := 0;
    PERFORM update_job(job_row);
    IF NOT alone THEN
        PERFORM place_new_jobs(outcome.followups, t, prepared.requested, prepared.answers, prepared.fresh, outcome.id,
            '{}', '{}');
    END IF;
    IF outcome.state = 1 AND outcome.delay <= 0 THEN
        PERFORM queue_job(job_row, t);
    ELSIF outcome.state = 1 THEN
        PERFORM schedule_job(job_row, t + outcome.delay);
    ELSE
        IF cardinality(prepared.fresh) = cardinality(prepared.requested) THEN
            SELECT array_agg(u.up ORDER BY u.n) INTO job_row.after
            FROM (SELECT up, min(n) AS n FROM unnest(outcome.after) WITH ORDINALITY AS a (up, n) GROUP BY up) AS u;
        ELSE
            job_row.after := awaited_rows(outcome.after, prepared.requested, prepared.answers, circle);
        END IF;
        job_row.pending := least(outcome.required, (SELECT count(DISTINCT u.up) FROM unnest(job_row.after) AS u (up)));
        job_row.failures_allowed := outcome.failures_allowed;
        job_row.due_at := least(CASE WHEN NOT job_row.function_done THEN job_row.deadline_at END,
            CASE WHEN outcome.delay > 0 THEN t + outcome.delay END);
        PERFORM update_job(job_row);
        PERFORM wait_for_upstreams(job_row, t, '{}', '{}', '{}');
    END IF;
    PERFORM note_freed(job_row.limits);
END $$;

-- Whether this very outcome has been applied, and the row has not changed since. A person's act is a repetition only if
-- its nonce is stored, whatever values another act has assigned.
CREATE FUNCTION is_repetition(outcome job_outcome, job_row job) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    nonce text;
BEGIN
    IF job_row.version <> outcome.version + 1 OR job_row.state = 2 THEN
        RETURN false;
    END IF;
    nonce := act_nonce(outcome.checkpoints);
    IF nonce IS NOT NULL THEN
        RETURN EXISTS (SELECT 1 FROM checkpoints m WHERE m.id = job_row.id AND m.name = 'treadle:act'
            AND m.value = nonce);
    END IF;
    RETURN (job_row.state = outcome.state
        OR (outcome.state = 0 AND job_row.state = 1 AND job_row.function_done = outcome.function_done))
        AND job_row.attempt = outcome.attempt AND job_row.result IS NOT DISTINCT FROM outcome.result
        AND job_row.value IS NOT DISTINCT FROM outcome.value AND job_row.error IS NOT DISTINCT FROM outcome.error
        AND job_row.reason IS NOT DISTINCT FROM outcome.reason AND has_checkpoints(job_row.id, outcome.checkpoints);
END $$;

-- Why an ending that names failed jobs is stale: one of them was reopened, and is open or has succeeded since. NULL:
-- none was reopened, and none will be before the end of this transaction. Raises an error if another transaction is
-- just reopening one of them, because it may wait for the row of this job.
CREATE FUNCTION stale_because_reopened(job_row job, ups text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    up text;
BEGIN
    FOREACH up IN ARRAY ups LOOP
        IF NOT up = ANY (job_row.after) THEN
            PERFORM refuse_up(up, job_row.id);
        END IF;
    END LOOP;
    PERFORM 1 FROM (SELECT 1 FROM ended WHERE id = ANY (ups) ORDER BY id FOR KEY SHARE NOWAIT) AS locked;
    RETURN (SELECT json_build_array('reopened', u.up, j.state) FROM unnest(ups) WITH ORDINALITY AS u (up, n)
        CROSS JOIN LATERAL (
            SELECT state FROM job WHERE id = u.up UNION ALL SELECT state FROM ended WHERE id = u.up AND state = 3) AS j
        ORDER BY u.n LIMIT 1);
END $$;

-- Locks the jobs that wait for these ended jobs, whose rows are deleted by now. Only jobs that began to wait meanwhile
-- are not locked already. Raises TR003 if another transaction holds one of them, because this one must not wait out of
-- order.
CREATE FUNCTION lock_late_dependents(ups text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    below text[] := ARRAY(SELECT DISTINCT down FROM edge WHERE up = ANY (ups) AND open);
BEGIN
    IF (SELECT count(*) FROM job WHERE id = ANY (below))
        > (SELECT count(*) FROM (SELECT 1 FROM job WHERE id = ANY (below) FOR NO KEY UPDATE SKIP LOCKED) AS had)
    THEN
        RAISE SQLSTATE 'TR003';
    END IF;
END $$;
