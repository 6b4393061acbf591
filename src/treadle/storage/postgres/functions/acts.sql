-- Bulk path for a person's acts on jobs that no other job depends on: reopen, queue now, change the retention. Endings
-- (a cancel) take the bulk path of `settle`. Each kind of act takes one statement with the effects of settle_row:
-- 10,000 acts in a quarter of the time.

-- outcomes: as in `settle`. -> the ids of the jobs that were acted on; settle_row handles the rest. lock_for_outcomes
-- has locked the rows of `job` and the keys, in their order.
CREATE FUNCTION settle_acts(outcomes json, t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    ids text[];
    nonces text[];
    acted text[];
BEGIN
    SELECT array_agg(x.id), array_agg(x.act) INTO ids, nonces
    FROM json_to_recordset(outcomes) AS x (id text, act text, fast boolean) WHERE x.act IS NOT NULL
        AND x.fast IS NOT TRUE;
    IF ids IS NULL THEN
        RETURN NULL;
    END IF;
    -- a job that begins to wait for one of these holds its row, so the next statements see its edge
    PERFORM 1 FROM (SELECT 1 FROM ended WHERE id = ANY (ids) ORDER BY id FOR UPDATE) AS locked;
    acted := set_retention(outcomes) || queue_now(outcomes, t) || reopen_alone(outcomes, t);
    PERFORM note_acts(a.id, a.nonces) FROM (
        SELECT array_agg(y.id) AS id, array_agg(y.nonce) AS nonces FROM unnest(ids, nonces) AS y (id, nonce)
        WHERE y.id = ANY (acted)) AS a;
    RETURN acted;
END $$;

-- The checkpoints of a job store the nonce of its last act, by which a repeated call is recognised.
CREATE FUNCTION note_acts(ids text[], nonces text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO checkpoints (id, name, value)
    SELECT a.id, 'treadle:act', a.nonce FROM unnest(ids, nonces) AS a (id, nonce)
    ON CONFLICT (id, name) DO UPDATE SET value = excluded.value
$$;

-- Notify the worker that runs a job under this claim id.
CREATE FUNCTION notify_worker(claim_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF claim_id IS NOT NULL THEN
        PERFORM publish('worker:' || coalesce(nullif(regexp_replace(claim_id, '#[^#]*$', ''), ''), claim_id));
    END IF;
END $$;

-- Change the retention of ended jobs. The version rises, so the next act must name the new version.
CREATE FUNCTION set_retention(outcomes json) RETURNS text[] LANGUAGE sql AS $$
    WITH gone AS (
        UPDATE ended SET expires_at = greatest(ended_at + greatest(x.keep, ${KEEP_LEAST}),
            created_at + (words ->> 'window')::float8),
            checkpoints = true, version = ended.version + 1
        FROM json_to_recordset(outcomes) AS x (id text, version int, state smallint, keep float8, act text)
        WHERE x.act IS NOT NULL AND x.keep IS NOT NULL AND ended.id = x.id AND ended.version = x.version
            AND ended.state = x.state
        RETURNING ended.id
    ) SELECT coalesce(array_agg(id), '{}') FROM gone
$$;

-- Queue delayed jobs now.
CREATE FUNCTION queue_now(outcomes json, t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    acted text[];
    queues text[];
BEGIN
    WITH moved AS (
        UPDATE job SET version = job.version + 1, attempt = x.attempt, result = NULL, value = NULL, error = x.error,
            reason = x.reason, note = coalesce(x.note, job.note), checkpoints = true, updated_at = t, worker = NULL,
            queue_position = coalesce(job.return_position, t), return_position = coalesce(job.return_position, t),
            due_at = CASE WHEN NOT function_done THEN deadline_at END
        FROM json_to_recordset(outcomes) AS x (id text, version int, state smallint, attempt int, error text,
            reason text, note text, delay float8, act text)
        WHERE x.act IS NOT NULL AND x.state = 1 AND x.delay = 0 AND job.id = x.id AND job.version = x.version
            AND job.state + 0 = 1 AND job.queue_position IS NULL AND job.blocked_on IS NULL AND job.lane IS NULL
            AND (job.words -> 'aging') IS NULL AND (job.limits IS NULL OR job.started_at IS NULL)
        RETURNING job.id, job.queue, job.task
    ), counted AS (
        INSERT INTO count_change SELECT queue, task, 's', 'q', count(*) FROM moved GROUP BY queue, task
    ) SELECT coalesce(array_agg(id), '{}'), array_agg(DISTINCT queue) INTO acted, queues FROM moved;
    PERFORM publish('queue:' || q) FROM unnest(queues) AS q;
    RETURN acted;
END $$;

-- Reopen and queue ended jobs that have no key, no lane and no dependents, and whose parent did not fail because of its
-- children. Jobs that ended because of others are left to settle_row: those others, perhaps of the same call, may
-- reopen them.
CREATE FUNCTION reopen_alone(outcomes json, t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    acted text[];
    queues text[];
BEGIN
    WITH gone AS (
        DELETE FROM ended
        USING json_to_recordset(outcomes) AS x (id text, version int, state smallint, delay float8, act text)
        WHERE x.act IS NOT NULL AND x.state = 1 AND x.delay = 0 AND ended.id = x.id AND ended.version = x.version
            AND ended.key IS NULL AND ended.lane IS NULL AND (ended.reason IN ('children', 'upstream')) IS NOT TRUE
            AND (ended.words -> 'started') IS NULL AND (ended.words -> 'aging') IS NULL
            AND NOT EXISTS (SELECT 1 FROM edge WHERE up = ended.id)
            AND (ended.parent IS NULL OR NOT EXISTS (
                SELECT 1 FROM ended p WHERE p.id = ended.parent AND p.state = 4 AND p.reason = 'children'))
        RETURNING ended.*, coalesce(words ? 'function_done', false) AS has_run,
            t + deadline_of(words, created_at) AS over_at
    ), again AS (
        INSERT INTO job (id, version, state, rank, function_done, checkpoints, reopenings, failures_allowed,
            queue_position, return_position, due_at, deadline_at,
            created_at, updated_at, keep, keep_failed, lease, queue, task, root, parent, limits, costs, after, words,
            spec, note)
        SELECT id, version + 1, 1, rank, has_run, true, reopenings + 1, failures_allowed, t, t,
            CASE WHEN NOT has_run THEN over_at END,
            over_at, created_at, t, keep, keep_failed, lease, queue, task, root, parent, limits, costs, after, words,
            spec, note
        FROM gone RETURNING id, queue
    ), counted AS (
        INSERT INTO count_change SELECT queue, task, kind_of(state, NULL, NULL), 'q', count(*) FROM gone
            GROUP BY queue, task, state
    ) SELECT coalesce(array_agg(id), '{}'), array_agg(DISTINCT queue) INTO acted, queues FROM again;
    PERFORM publish('queue:' || q) FROM unnest(queues) AS q;
    RETURN acted;
END $$;
