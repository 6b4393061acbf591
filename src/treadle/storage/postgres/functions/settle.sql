-- The verb: what became of jobs. Plain endings of plain jobs go in one statement, everything else one by one, each in a
-- part of its own of the transaction: an outcome that cannot be stored fails alone.
--
-- Never one writing CTE that ends a job and counts others down: it would see them as of before it had to wait for the
-- ending, and leave them waiting for ever. The counting is a later statement, with eyes of its own.
--
-- outs, in the order of their ids: n (the place in the call), id, version, state, attempt, result, value, error, reason,
-- note, keep, fast (an ending and nothing else, of a job this call names once), and if not fast: delay, ran, need, slack,
-- memo, after, then. told: how many these are, as to read the text for that once more takes 2 % of a trip of 128.
-- -> of each that was not simply applied: n, status ('stale', 'refused'), and the reason.
CREATE FUNCTION settle(moment float8, outs json, told int) RETURNS TABLE (n int, status text, why text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    done text[];
    awaited text[];             -- those of them somebody waits for
    held text[];                -- those of them that name limits
    named text[];               -- ... which stand here, as texts: arrays of unlike lengths make no array
    gates text[];               -- each of these limits
    alone boolean;              -- nothing else moves in this call
    pos int;
    o record;
    found record;
BEGIN
    BEGIN
        WITH met AS (
            SELECT x.*, j.spot FROM json_to_recordset(outs) AS x (id text, version int, state smallint, attempt int,
                result text, value text, error text, reason text, note text, keep float8, fast boolean)
            CROSS JOIN LATERAL (SELECT ctid AS spot FROM job WHERE id = x.id OFFSET 0) AS j     -- see claim.sql
            WHERE x.fast
        ), gone AS (
            DELETE FROM job USING met AS x WHERE job.ctid = x.spot AND job.version = x.version AND job.state + 0 = 2
            RETURNING job.id, job.version, rank, ran, memo, lost, round, slack, joined_at, deadline_at, created_at, started_at,
                job.keep, keep_failed, lease, queue, task, worker, key, lane, root, parent, limits, costs, after, words, spec,
                job.note, x.state AS to_state, x.attempt AS to_attempt, x.result AS to_result, x.value AS to_value,
                x.error AS to_error, x.reason AS to_reason, x.note AS to_note, x.keep AS to_keep
        ), kept AS (
            INSERT INTO ended (id, version, state, rank, ran, memo, attempt, lost, round, slack, joined_at, deadline_at,
                created_at, started_at, updated_at, ended_at, expires_at, keep, keep_failed, lease, queue, task, worker,
                key, lane, root, parent, limits, costs, after, words, spec, reason, note, result, value, error)
            SELECT id, version + 1, to_state, rank, ran, memo, to_attempt, lost, round, slack, joined_at, deadline_at,
                created_at, started_at, t, t,
                greatest(t + greatest(coalesce(to_keep, CASE WHEN to_state = 4 THEN keep_failed ELSE keep END), 60),
                    created_at + (words ->> 'window')::float8),
                keep, keep_failed, lease, queue, task, worker,
                key, lane, root, parent, limits, costs, after, words, spec, to_reason, coalesce(to_note, note),
                to_result, to_value, to_error
            FROM gone
        ) SELECT array_agg(id), array_agg(id) FILTER (WHERE limits IS NOT NULL),
            array_agg(limits::text) FILTER (WHERE limits IS NOT NULL)
        INTO done, held, named FROM gone;
        SELECT array_agg(DISTINCT up) INTO awaited FROM edge WHERE up = ANY (done) AND open;
        IF awaited IS NOT NULL THEN
            PERFORM 1 FROM (
                SELECT 1 FROM job WHERE id = ANY (ARRAY(SELECT down FROM edge WHERE up = ANY (awaited) AND open))
                ORDER BY id FOR NO KEY UPDATE
            ) AS locked;
        END IF;
        alone := awaited IS NULL AND cardinality(done) = told;
        IF held IS NOT NULL THEN
            gates := ARRAY(SELECT DISTINCT unnest(n.named::text[]) FROM (SELECT DISTINCT unnest(named)) AS n (named));
            -- freed before the gates, which all who count wait for: they count these as taken until we are done, and who
            -- stands aside because of that stands there when we look
            IF alone THEN
                PERFORM free_slots(held, named, gates);
            END IF;
            PERFORM lock_gates(gates);
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        alone := false;
        done := NULL;           -- somebody's open transaction is in the way of one of them: each by itself
        PERFORM set_config('lock_timeout', '10ms', true);
    END;
    -- many endings as one hint
    PERFORM pg_notify(channel('ends'), CASE WHEN octet_length(said) < 7900 THEN said ELSE '["job:*"]' END)
    FROM (SELECT json_agg('job:' || id)::text AS said FROM unnest(done) AS id) AS topics WHERE said IS NOT NULL;
    IF alone THEN
        IF held IS NOT NULL THEN
            PERFORM call_in_all(gates, t);
        END IF;
        RETURN;
    END IF;
    -- others move besides: then each in its turn, for who joins a lane first stands first
    FOR o IN
        SELECT * FROM json_to_recordset(outs) AS x (n int, id text, version int, state smallint, attempt int,
            result text, value text, error text, reason text, note text, keep float8, fast boolean, delay float8,
            ran boolean, need int, slack int, memo json, after text[], "then" json)
        ORDER BY x.n
    LOOP
        IF o.fast AND o.id = ANY (done) THEN
            IF o.id = ANY (held) THEN
                pos := array_position(held, o.id);
                PERFORM free_slots(held[pos : pos], named[pos : pos], named[pos]::text[]);
                PERFORM call_in_all(named[pos]::text[], t);
            END IF;
            IF o.id = ANY (awaited) THEN
                PERFORM count_endings(ARRAY[o.id], ARRAY[o.state::int], t);
            END IF;
            CONTINUE;
        END IF;
        SELECT * INTO found FROM settle_one(row_to_json(o), t);
        IF found.status <> 'applied' THEN
            RETURN QUERY SELECT o.n, found.status, found.why;
        END IF;
    END LOOP;
END $$;

CREATE FUNCTION settle_one(told json, t float8, OUT status text, OUT why text) LANGUAGE plpgsql AS $$
DECLARE
    o record;
BEGIN
    SELECT * INTO o FROM json_to_record(told) AS x (id text, version int, state smallint, attempt int,
        result text, value text, error text, reason text, note text, keep float8, delay float8,
        ran boolean, need int, slack int, memo json, after text[], "then" json);
    SELECT s.status, s.why INTO status, why FROM settle_row(o.id, o.version, o.state, o.attempt, o.result, o.value,
        o.error, o.reason, o.note, o.keep, coalesce(o.delay, 0), coalesce(o.ran, false), o.need, o.slack, o.memo,
        coalesce(o.after, '{}'), coalesce(o."then", '[]'), t) AS s;
EXCEPTION
    WHEN SQLSTATE 'TR001' THEN
        status := 'refused';
        GET STACKED DIAGNOSTICS why = PG_EXCEPTION_DETAIL;
    WHEN lock_not_available THEN
        status := 'refused';
        why := json_build_array('locked');
        PERFORM set_config('lock_timeout', '10ms', true);   -- one second in all is enough
END $$;

CREATE FUNCTION settle_row(named text, of_version int, to_state smallint, attempt int, result text, value text,
    error text, reason text, note text, keep float8, delay float8, to_ran boolean, need int, slack int, memo json,
    ups text[], jobs json, t float8, OUT status text, OUT why text) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    r job := row_of(named, to_state > 2);
    old job;
    p record;
    all_fresh boolean;
BEGIN
    status := 'applied';
    IF r.id IS NULL THEN
        status := 'stale';
        why := json_build_array('gone');
        RETURN;
    END IF;
    IF r.version = of_version + 1 AND r.state <> 2
        AND (r.state = to_state OR (to_state = 0 AND r.state = 1 AND r.ran = to_ran)) AND r.attempt = attempt
        AND r.result IS NOT DISTINCT FROM result AND r.value IS NOT DISTINCT FROM value
        AND r.error IS NOT DISTINCT FROM error AND r.reason IS NOT DISTINCT FROM reason
    THEN
        RETURN;                 -- this very outcome has been applied, and nothing has touched the row since
    END IF;
    IF r.version <> of_version THEN
        status := 'stale';
        why := json_build_array('moved', r.state, r.version);
        RETURN;
    END IF;
    IF r.state > 2 THEN
        SELECT s.status, s.why INTO status, why FROM after_the_end(r, to_state, keep, delay, t) AS s;
        RETURN;
    END IF;
    SELECT * INTO p FROM prepare(jobs, t, CASE WHEN to_state > 2 THEN named END, named, ups);
    IF r.state = 2 AND r.worker IS NOT NULL AND reason IN ('asked', 'superseded') THEN
        PERFORM speak('worker:' || coalesce(nullif(regexp_replace(r.worker, '#[^#]*$', ''), ''), r.worker));
    END IF;
    IF json_array_length(memo) > 0 THEN
        PERFORM remember(named, memo);
        r.memo := true;
    END IF;
    old := r;
    r.attempt := attempt;
    r.result := result;
    r.value := value;
    r.error := error;
    r.reason := reason;
    r.note := coalesce(note, r.note);
    r.updated_at := t;
    r.ran := r.ran OR to_ran;
    IF to_state > 2 THEN
        IF r.state <> 2 THEN
            r.worker := NULL;
        END IF;
        PERFORM finish(r, to_state, reason, error, keep, t);
        PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, NULL, ARRAY[named], ARRAY[to_state::int]);
        RETURN;
    END IF;
    IF result IS NOT NULL THEN
        PERFORM speak('job:' || named);
    END IF;
    r.version := r.version + 1;
    r.worker := NULL;
    r.place := NULL;
    r.parked := NULL;
    r.due_at := NULL;
    r.state := 0;
    PERFORM put(r);
    PERFORM store_all(jobs, t, p.asked, p.answers, p.fresh, named, '{}', '{}');
    IF to_state = 1 AND delay <= 0 THEN
        PERFORM join_line(r, t);
    ELSIF to_state = 1 THEN
        PERFORM schedule(r, t + delay);
    ELSE
        -- a job born of it that another row answered is nobody's child: not waited for
        all_fresh := cardinality(p.fresh) = cardinality(p.asked);
        SELECT array_agg(u.up ORDER BY u.n) INTO r.after FROM (
            SELECT up, min(n) AS n FROM unnest(ups) WITH ORDINALITY AS a (up, n)
            WHERE all_fresh OR up = ANY (p.fresh) OR NOT up = ANY (p.asked) GROUP BY up
        ) AS u;
        r.pending := least(need, coalesce(cardinality(r.after), 0));
        r.slack := slack;
        r.due_at := least(CASE WHEN NOT r.ran THEN r.deadline_at END, CASE WHEN delay > 0 THEN t + delay END);
        PERFORM put(r);
        PERFORM watch_ups(r, t, '{}', '{}');
    END IF;
    PERFORM call_in(old, t);
END $$;

