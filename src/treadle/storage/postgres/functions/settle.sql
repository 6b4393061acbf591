-- The verb: settle outcomes. Plain endings of plain jobs take one statement. All others go one by one, each in a
-- subtransaction: an outcome that cannot be stored fails alone.
--
-- Never one writing CTE that ends a job and counts down others: its snapshot is from before its wait for the row, and
-- would leave them waiting for ever. A later statement counts, with a new snapshot.
--
-- outs, in the order of their ids: n (the index in the call), id, version, state, attempt, result, value, error,
-- reason, note, keep, fast (an ending, and at most an act besides, of a job this call names once), act (the nonce of a
-- person's act on a job this call names once; its checkpoints hold nothing else), and if not fast: delay,
-- function_done, required, failures_allowed, checkpoints, after, followups, reach. told: the number of outcomes,
-- because counting them in the text takes 2 % of a trip of 128. slow: some are not fast.
--
-- -> for each that was not simply applied: n, status ('stale', 'refused'), and the reason.
CREATE FUNCTION settle(moment float8, outs json, told int, slow boolean) RETURNS TABLE (n int, status text, why text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    done text[];
    awaited text[];             -- those of them that other jobs wait for
    held text[];                -- those of them that name limits
    named text[];               -- their limits, as text: an array cannot contain arrays of different lengths
    gates text[];               -- each of these limits
    acted text[];               -- those of them that a person's act ended
    nonces text[];              -- the nonce of each of those
    notified text[];        -- workers that ran one of those
    others text[];              -- jobs that acts changed in another way
    alone boolean;              -- this call changes no other jobs
    o record;
    found record;
BEGIN
    LOOP
        BEGIN
            PERFORM lock_for_outcomes(outs, slow);
            t := instant(moment);   -- after the wait: what ended meanwhile ended before these jobs and their children
            others := CASE WHEN slow THEN settle_acts(outs, t) END;
            WITH met AS (
                SELECT x.*, j.spot FROM json_to_recordset(outs) AS x (id text, version int, state smallint, attempt int,
                    result text, value text, error text, reason text, note text, keep float8, fast boolean, act text)
                CROSS JOIN LATERAL (SELECT ctid AS spot FROM job WHERE id = x.id OFFSET 0) AS j     -- see claim.sql
                WHERE x.fast
            ), gone AS (
                DELETE FROM job USING met AS x WHERE job.ctid = x.spot AND job.version = x.version
                    AND (job.state + 0 = 2 OR x.act IS NOT NULL AND (job.state + 0 = 1     -- a waiting job may be doomed by another
                        OR NOT EXISTS (SELECT 1 FROM edge WHERE edge.down = x.id AND edge.open)))
                RETURNING job.id, job.version, job.state, rank, function_done, checkpoints, lost, reopenings, failures_allowed, return_position, deadline_at, created_at, started_at,
                    job.keep, keep_failed, lease, queue, task, worker, key, lane, root, parent, limits, costs, after, words, spec,
                    kind_of(job.state, job.queue_position, job.blocked_on) AS was, job.note, x.state AS to_state, x.attempt AS to_attempt, x.result AS to_result, x.value AS to_value,
                    x.error AS to_error, x.reason AS to_reason, x.note AS to_note, x.keep AS to_keep, x.act
            ), kept AS (
                INSERT INTO ended (id, version, state, rank, function_done, checkpoints, attempt, lost, reopenings, failures_allowed, return_position, deadline_at,
                    created_at, started_at, updated_at, ended_at, expires_at, keep, keep_failed, lease, queue, task, worker,
                    key, lane, root, parent, limits, costs, after, words, spec, reason, note, result, value, error)
                SELECT id, version + 1, to_state, rank, function_done, checkpoints OR act IS NOT NULL, to_attempt, lost, reopenings, failures_allowed, return_position, deadline_at,
                    created_at, started_at, t, t,
                    greatest(t + greatest(coalesce(to_keep, CASE WHEN to_state = 4 THEN keep_failed ELSE keep END), ${KEEP_LEAST}),
                        created_at + (words ->> 'window')::float8),
                    keep, keep_failed, lease, queue, task, CASE WHEN state = 2 THEN worker END,
                    key, lane, root, parent, limits, costs, after, words, spec, to_reason, coalesce(to_note, note),
                    to_result, to_value, to_error
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
                PERFORM lock_late(awaited);
            END IF;
            alone := awaited IS NULL AND coalesce(cardinality(done), 0) + coalesce(cardinality(others), 0) = told;
            IF held IS NOT NULL THEN
                gates := ARRAY(SELECT DISTINCT unnest(n.named::text[]) FROM (SELECT DISTINCT unnest(named)) AS n (named));
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
    -- many endings in one hint
    PERFORM note_topics('ends', said)
    FROM (SELECT string_agg(to_json('job:' || id)::text, ',') AS said FROM unnest(done) AS id) AS topics WHERE said IS NOT NULL;
    IF alone THEN
        PERFORM call_in_freed(gates, t);
        RETURN;
    END IF;
    -- other jobs change too: then each in its turn, because the first that joins a lane is ahead
    FOR o IN
        SELECT * FROM json_to_recordset(outs) AS x (n int, id text, version int, state smallint, attempt int,
            result text, value text, error text, reason text, note text, keep float8, fast boolean, delay float8,
            function_done boolean, required int, failures_allowed int, checkpoints json, after text[], followups json, reach text[])
        ORDER BY x.n
    LOOP
        CONTINUE WHEN o.id = ANY (others);
        IF o.fast AND o.id = ANY (done) THEN
            IF o.id = ANY (awaited) THEN
                PERFORM count_endings(ARRAY[o.id], ARRAY[o.state::int], t);
            END IF;
            CONTINUE;
        END IF;
        SELECT * INTO found FROM settle_one(row_to_json(o), moment, t);
        IF found.status <> 'applied' THEN
            RETURN QUERY SELECT o.n, found.status, found.why;
        END IF;
    END LOOP;
    PERFORM call_in_freed(gates, t);
END $$;

-- Locks the keys and rows that these outcomes need, in their order. Plain endings that no job waits for lock their rows
-- as they delete them.
CREATE FUNCTION lock_for_outcomes(outs json, slow boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    own text[];
    failing text[];
BEGIN
    IF NOT slow AND NOT EXISTS (SELECT 1 FROM edge WHERE open) THEN
        RETURN;
    END IF;
    SELECT array_agg(x.id), array_agg(x.id) FILTER (WHERE x.state IN (4, 5)) INTO own, failing
    FROM json_to_recordset(outs) AS x (id text, state smallint);
    IF slow THEN
        PERFORM lock_ahead((SELECT json_agg(born.job) FROM json_to_recordset(outs) AS x (followups json)
            CROSS JOIN LATERAL (SELECT * FROM json_array_elements(x.followups) OFFSET 0) AS born (job)), own, failing);
    ELSIF EXISTS (SELECT 1 FROM edge WHERE up = ANY (own) AND open) THEN
        PERFORM lock_below(own, failing, true);
    END IF;
END $$;

CREATE FUNCTION settle_one(told json, moment float8, t float8, OUT status text, OUT why text) LANGUAGE plpgsql AS $$
DECLARE
    o record;
BEGIN
    SELECT * INTO o FROM json_to_record(told) AS x (id text, version int, state smallint, attempt int,
        result text, value text, error text, reason text, note text, keep float8, delay float8,
        function_done boolean, required int, failures_allowed int, checkpoints json, after text[], followups json, reach text[]);
    SELECT s.status, s.why INTO status, why FROM settle_row(o.id, o.version, o.state, o.attempt, o.result, o.value,
        o.error, o.reason, o.note, o.keep, coalesce(o.delay, 0), coalesce(o.function_done, false), o.required, o.failures_allowed, o.checkpoints,
        coalesce(o.after, '{}'), coalesce(o.followups, '[]'), o.reach, moment, t) AS s;
EXCEPTION
    WHEN SQLSTATE 'TR001' THEN
        status := 'refused';
        GET STACKED DIAGNOSTICS why = PG_EXCEPTION_DETAIL;
    WHEN lock_not_available THEN
        status := 'refused';
        why := json_build_array('locked');
        PERFORM set_config('lock_timeout', '10ms', true);   -- one second of waiting in all is enough
END $$;

CREATE FUNCTION settle_row(named text, of_version int, to_state smallint, attempt int, result text, value text,
    error text, reason text, note text, keep float8, delay float8, to_ran boolean, required int, failures_allowed int, checkpoints json,
    ups text[], jobs json, reach text[], moment float8, t float8, OUT status text, OUT why text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    r job := row_of(named, to_state > 2);
    old job;
    p record;
    all_fresh boolean;
    act text;
    circle text[] := '{}';      -- rows it must not wait for
    alone boolean;              -- it creates no jobs, and does not wait
BEGIN
    status := 'applied';
    IF r.id IS NULL OR NOT coalesce(r.queue = ANY (reach), true) THEN
        status := 'stale';
        why := json_build_array('gone');
        RETURN;
    END IF;
    act := act_in(checkpoints);
    IF r.version = of_version + 1 AND r.state <> 2 AND act IS NOT NULL THEN
        -- only the same act is a repetition, whatever another one assigned
        IF EXISTS (SELECT 1 FROM checkpoints m WHERE m.id = named AND m.name = 'treadle:act' AND m.value = act) THEN
            RETURN;
        END IF;
    ELSIF r.version = of_version + 1 AND r.state <> 2
        AND (r.state = to_state OR (to_state = 0 AND r.state = 1 AND r.function_done = to_ran)) AND r.attempt = attempt
        AND r.result IS NOT DISTINCT FROM result AND r.value IS NOT DISTINCT FROM value
        AND r.error IS NOT DISTINCT FROM error AND r.reason IS NOT DISTINCT FROM reason AND remembers(named, checkpoints)
    THEN
        RETURN;                 -- this very outcome has been applied, and the row has not changed since
    END IF;
    IF r.version <> of_version THEN
        status := 'stale';
        why := json_build_array('moved', r.state, r.version);
        RETURN;
    END IF;
    IF r.state > 2 THEN
        SELECT s.status, s.why INTO status, why FROM after_the_end(r, to_state, keep, delay, coalesce(checkpoints, '[]'), reach, t) AS s;
        RETURN;
    END IF;
    IF to_state > 2 AND cardinality(ups) > 0 THEN
        why := overtaken(r, ups);
        IF why IS NOT NULL THEN
            status := 'stale';
            RETURN;
        END IF;
        ups := '{}';
    END IF;
    alone := to_state <> 0 AND json_array_length(jobs) = 0;     -- skipping the rest saves about a third of a cancel
    IF NOT alone THEN
        SELECT * INTO p FROM prepare(jobs, moment, t, CASE WHEN to_state > 2 THEN named END, named, ups);
        all_fresh := cardinality(p.fresh) = cardinality(p.asked);
        IF to_state = 0 AND (NOT all_fresh OR mentions(jobs, 'after')) THEN
            circle := circle_of(named, jobs, ups, p.asked, p.answers, p.fresh);
        END IF;
        IF reach IS NOT NULL THEN
            PERFORM refuse_ups(named, ups, coalesce(r.after, '{}') || p.asked, reach);
        END IF;
    END IF;
    IF r.state = 2 AND reason IN ('asked', 'superseded') THEN
        PERFORM notify_worker(r.worker);
    END IF;
    IF json_array_length(checkpoints) > 0 THEN
        PERFORM remember(named, checkpoints);
        r.checkpoints := true;
    END IF;
    old := r;
    r.attempt := attempt;
    r.result := result;
    r.value := value;
    r.error := error;
    r.reason := reason;
    r.note := coalesce(note, r.note);
    r.updated_at := t;
    r.function_done := r.function_done OR to_ran;
    IF to_state > 2 THEN
        IF r.state <> 2 THEN
            r.worker := NULL;
        END IF;
        PERFORM finish(r, to_state, reason, error, keep, t);
        IF alone THEN
            PERFORM count_endings(ARRAY[named], ARRAY[to_state::int], t);
        ELSE
            PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, NULL, ARRAY[named], ARRAY[to_state::int]);
        END IF;
        RETURN;
    END IF;
    IF result IS NOT NULL THEN
        PERFORM publish('job:' || named);
    END IF;
    r.version := r.version + 1;
    r.worker := NULL;
    r.queue_position := NULL;
    r.blocked_on := NULL;
    r.due_at := NULL;
    r.state := 0;
    PERFORM put(r);
    IF NOT alone THEN
        PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, named, '{}', '{}');
    END IF;
    IF to_state = 1 AND delay <= 0 THEN
        PERFORM join_line(r, t);
    ELSIF to_state = 1 THEN
        PERFORM schedule(r, t + delay);
    ELSE
        IF all_fresh THEN
            SELECT array_agg(u.up ORDER BY u.n) INTO r.after
            FROM (SELECT up, min(n) AS n FROM unnest(ups) WITH ORDINALITY AS a (up, n) GROUP BY up) AS u;
        ELSE
            r.after := answered(ups, p.asked, p.answers, circle);
        END IF;
        r.pending := least(required, (SELECT count(DISTINCT u.up) FROM unnest(r.after) AS u (up)));
        r.failures_allowed := failures_allowed;
        r.due_at := least(CASE WHEN NOT r.function_done THEN r.deadline_at END, CASE WHEN delay > 0 THEN t + delay END);
        PERFORM put(r);
        PERFORM watch_ups(r, t, '{}', '{}', '{}');
    END IF;
    PERFORM note_freed(old.limits);
END $$;

-- Why an ending that names failed jobs is stale: one of them was reopened, and is open or has succeeded since. NULL: none
-- was, and none is reopened before the end of this transaction. Raises an error if one is just being reopened, because
-- that transaction may wait for the row of this job.
CREATE FUNCTION overtaken(r job, ups text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    up text;
BEGIN
    FOREACH up IN ARRAY ups LOOP
        IF NOT up = ANY (r.after) THEN
            PERFORM refuse_up(up, r.id);
        END IF;
    END LOOP;
    PERFORM 1 FROM (SELECT 1 FROM ended WHERE id = ANY (ups) ORDER BY id FOR KEY SHARE NOWAIT) AS locked;
    RETURN (SELECT json_build_array('reopened', u.up, j.state) FROM unnest(ups) WITH ORDINALITY AS u (up, n)
        CROSS JOIN LATERAL (
            SELECT state FROM job WHERE id = u.up UNION ALL SELECT state FROM ended WHERE id = u.up AND state = 3) AS j
        ORDER BY u.n LIMIT 1);
END $$;

-- Lock the jobs that wait for these, which are deleted by now. All are locked already but those that began to wait
-- meanwhile. Raises TR003 if another transaction holds one of them, because this one must not wait out of order.
CREATE FUNCTION lock_late(ups text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    below text[] := ARRAY(SELECT DISTINCT down FROM edge WHERE up = ANY (ups) AND open);
BEGIN
    IF (SELECT count(*) FROM job WHERE id = ANY (below))
        > (SELECT count(*) FROM (SELECT 1 FROM job WHERE id = ANY (below) FOR NO KEY UPDATE SKIP LOCKED) AS had)
    THEN
        RAISE SQLSTATE 'TR003';
    END IF;
END $$;
