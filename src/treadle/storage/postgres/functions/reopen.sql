-- An outcome for an ended job: change its retention, or reopen it with all jobs that ended because of it.
CREATE FUNCTION settle_ended(r job, o job_outcome, t float8, OUT status text, OUT why text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    has_steps constant boolean := coalesce(json_array_length(o.checkpoints) > 0, false);
    reopened text[];
    keys text[];
    wanted text;
    e job;
    holder_id text;
    d record;
BEGIN
    status := 'applied';
    IF o.state = r.state AND o.keep IS NOT NULL THEN
        IF has_steps THEN
            PERFORM store_checkpoints(r.id, o.checkpoints);
        END IF;
        -- an act raises the version: the next one must have read this one
        UPDATE ended SET expires_at = expires(r, r.state, r.ended_at, o.keep), checkpoints = checkpoints OR has_steps,
            version = version + CASE WHEN act_nonce(o.checkpoints) IS NULL THEN 0 ELSE 1 END
        WHERE ended.id = r.id;
        RETURN;
    END IF;
    IF o.state <> 1 THEN
        status := 'stale';
        why := json_build_array('moved', r.state, r.version);
        RETURN;
    END IF;
    reopened := jobs_to_reopen(r);
    SELECT array_agg(k) INTO keys FROM (
        SELECT coalesce(j.key, j.words ->> 'started') AS k FROM ended j WHERE j.id = ANY (reopened)) AS x
    WHERE k IS NOT NULL;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
        FOREACH wanted IN ARRAY reopened LOOP
            SELECT coalesce(j.key, j.words ->> 'started') AS k INTO d FROM ended j WHERE j.id = wanted;
            holder_id := CASE WHEN d.k IS NOT NULL THEN holder_of(d.k, t) END;
            IF holder_id <> wanted THEN
                RAISE EXCEPTION 'held' USING ERRCODE = 'TR001', DETAIL = json_build_array('held', d.k,
                    CASE WHEN coalesce(queue_of(holder_id) = ANY (o.reach), true) THEN holder_id ELSE '' END);
            END IF;
        END LOOP;
    END IF;
    FOREACH wanted IN ARRAY reopened LOOP
        FOR d IN SELECT down, ended.state FROM edge, ended WHERE up = wanted AND ended.id = wanted ORDER BY num LOOP
            PERFORM undo_count_down(wanted, d.down, d.state, t);
        END LOOP;
    END LOOP;
    IF has_steps THEN
        PERFORM store_checkpoints(r.id, o.checkpoints);
        UPDATE ended SET checkpoints = true WHERE ended.id = r.id;
    END IF;
    FOREACH wanted IN ARRAY reopened LOOP
        SELECT * INTO e FROM ended WHERE ended.id = wanted;
        PERFORM reopen_row(e, t);
    END LOOP;
    SELECT * INTO r FROM job WHERE job.id = r.id;
    r.pending := 0;
    IF o.delay > 0 THEN
        PERFORM schedule_job(r, t + o.delay);
    ELSE
        PERFORM queue_job(r, t);
    END IF;
    FOREACH wanted IN ARRAY reopened[2:] LOOP
        PERFORM restart_wait(wanted, t);
    END LOOP;
END $$;

-- The job, each ancestor that failed because of its children, and all jobs that the endings of these have doomed. All
-- are locked.
CREATE FUNCTION jobs_to_reopen(r job) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    ids text[] := ARRAY[r.id];
    stack text[] := ARRAY[r.id];
    n int := 1;
    reopened text;
    parent_id text;
    d record;
BEGIN
    WHILE n > 0 LOOP
        reopened := stack[n];
        n := n - 1;
        SELECT parent INTO parent_id FROM ended WHERE id = reopened;
        FOR d IN
            SELECT j.id, e.num FROM edge e CROSS JOIN LATERAL (SELECT * FROM ended WHERE id = e.down OFFSET 0) AS j
            WHERE e.up = reopened AND j.reason = 'upstream' AND j.state = 5
            UNION ALL
            SELECT j.id, NULL FROM ended j WHERE j.id = parent_id AND j.state = 4 AND j.reason = 'children'
            ORDER BY num NULLS LAST
        LOOP
            IF NOT d.id = ANY (ids) THEN
                PERFORM 1 FROM ended WHERE id = d.id FOR UPDATE;
                CONTINUE WHEN NOT FOUND;
                ids := ids || d.id;
                n := n + 1;
                stack[n] := d.id;
            END IF;
        END LOOP;
    END LOOP;
    RETURN ids;
END $$;

-- A job that still waits, and has counted this ending, waits for the next one.
CREATE FUNCTION undo_count_down(above text, below text, ended_as smallint, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r job;
BEGIN
    SELECT * INTO r FROM job WHERE id = below FOR NO KEY UPDATE;
    IF r.state IS DISTINCT FROM 0 THEN
        RETURN;
    END IF;
    UPDATE edge SET open = true
    WHERE up = above AND down = below AND NOT open AND NOT soft AND edge.version = r.version;
    IF FOUND THEN
        IF r.failures_allowed IS NULL OR ended_as = 3 THEN
            r.pending := r.pending + 1;
        ELSE
            r.failures_allowed := r.failures_allowed + 1;
        END IF;
        PERFORM update_job(r);
    END IF;
END $$;

CREATE FUNCTION reopen_row(r job, t float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM ended WHERE id = r.id;
    PERFORM note_count(r.queue, r.task, kind_of(r.state, NULL, NULL), 'w');
    r.key := coalesce(r.key, r.words ->> 'started');
    IF r.key IS NOT NULL THEN
        UPDATE holder SET id = r.id WHERE key = r.key;
    END IF;
    r.function_done := coalesce(r.words ? 'function_done', false) OR coalesce(r.reason = 'children', false);
    r.deadline_at := t + (r.words ->> 'deadline')::float8;
    r.due_at := CASE WHEN NOT r.function_done THEN r.deadline_at END;
    r.version := r.version + 1;
    r.state := 0;
    r.attempt := 0;
    r.lost := 0;
    r.reopenings := r.reopenings + 1;
    r.worker := NULL;
    r.result := NULL;
    r.value := NULL;
    r.error := NULL;
    r.reason := NULL;
    r.return_position := NULL;
    r.started_at := NULL;
    r.ended_at := NULL;
    r.expires_at := NULL;
    r.updated_at := t;
    INSERT INTO job SELECT (r).*;
END $$;

-- Count anew what it waits for: those of its upstreams that were reopened have to end again. One without a row counts
-- as a success: it was pruned, and its ending would never come.
CREATE FUNCTION restart_wait(wanted text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r job;
    required int;
    awaited bigint;
    gone text[];
BEGIN
    SELECT * INTO r FROM job WHERE id = wanted;
    awaited := (SELECT count(DISTINCT up) FROM unnest(r.after) AS a (up));
    IF r.function_done AND NOT coalesce(r.words ? 'function_done', false) THEN
        r.failures_allowed := NULL;
    ELSE
        required := (r.words ->> 'required')::int;
        r.failures_allowed := CASE
            WHEN r.words ? 'failures_allowed' THEN (r.words ->> 'failures_allowed')::int ELSE 0 END;
    END IF;
    r.pending := least(required, awaited);
    r.failures_allowed := allowed_failures(r.failures_allowed, required, awaited);
    PERFORM update_job(r);
    gone := lock_upstreams(r.after);
    DELETE FROM edge WHERE down = r.id AND up = ANY (r.after);
    PERFORM wait_for_upstreams(r, t, '{}', '{}', gone);
END $$;
