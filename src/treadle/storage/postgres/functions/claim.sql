-- Settle, claim, or both in one round trip and one commit: the calls that a worker makes all day. The settings are
-- here, once: setting and resetting them for each inner function took 20 us, and reading the mark of a move three times
-- 20 more, of 1,000 for a trip with eight jobs. A separate function for the claim would write each row once more, 1 %
-- of a trip with 128 jobs.
--
-- A plan is made once, from what the last vacuum found: nothing at all, if the table was empty. The planner would then
-- read the whole table for each call and search the call's few jobs for each row. So every statement here that looks up
-- the jobs of a call has a form with a single plan: `CROSS JOIN LATERAL (... OFFSET 0)`, which is never reordered, `id
-- = ANY (...)`, or `ctid`; and `queue_position + 0`, `state + 0` keep the planner from an index of the queue. (34 us of
-- the server for a job instead of 90, in every second process that began after a vacuum.)
--
-- The claim leases the first queued jobs. A queue of plain jobs takes one statement; for limits, or rooms per task, see
-- walk.sql.
--
-- Rows are updated by ctid, found by a subquery that runs once: with a join the planner could take too many. A row that
-- another transaction changed in between is left for the next claim, so a short result does not mean an empty queue.
-- Each statement sees what was committed before it: jobs with limits, and a rule for this queue, that came after the
-- path was chosen are left for the next claim, too. The settings restrict the planner: without statistics it would read
-- and sort the whole queue.
--
-- outs, told, slow: see `settle`; outs NULL: no outcomes.
-- ask, NULL: no claim: worker, name, slot, lines (queues) and shares (of each), tasks [name, ...] or null, leases (of
-- these, null: `lease`), rooms (of these, null: no bound) or null, limit, lease, ids, holds; floors {queue: [rank,
-- position]} or null: where to scan first, see scan_floor.py.
-- -> the rows of `settle` (state -1: the status in `spec`, n in `version`, why in `more`); then the claimed jobs, in
-- queue order; then one row without a spec: `version` 1 if this claim id was used before, 2 if more is left to scan
-- (see walk) or this call has settled and gets no turn, `attempt` the number of jobs that were blocked, `created_at` the
-- time, `due_at` the next due time.
CREATE FUNCTION work(moment float8, outs json, told int, slow boolean, ask json) RETURNS TABLE (
    spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s' SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8;
    a record;
    earlier text[];
    most int;
    got int;
    ruled boolean;
    passed boolean;             -- queues with a rule were skipped: other calls count their slots
    asks boolean;               -- limits, or room per task, must be checked
    roomy text[] := '{}';       -- queues with a rule under which jobs may start
    room int[];                 -- how many of each
    line text;
    share int;
    picked tid[];
BEGIN
    PERFORM enter(CASE WHEN ask IS NULL THEN 'closing' END);
    IF outs IS NOT NULL AND ask IS NOT NULL THEN
        -- A call that has settled does not wait for its turn to claim: the slots that it has freed would stay taken
        -- meanwhile. Its claim is repeated without outcomes. (300 tenants of two slots, four workers at concurrency 100:
        -- 0.05 blocked jobs for each that ran instead of 2.)
        PERFORM set_config('treadle.patience', '0', true);
    END IF;
    IF outs IS NOT NULL THEN
        RETURN QUERY SELECT s.status, -1::smallint, s.n, NULL::int, NULL::int, NULL::text, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8, s.why
        FROM settle(moment, outs, told, slow) AS s;
    END IF;
    IF ask IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO a FROM json_to_record(ask) AS a (worker text, name text, slot int, lines text[], shares int[],
        tasks text[], leases float8[], rooms int[], "limit" int, lease float8, ids text[], holds text[], floors json, reach text[]);
    IF a.reach IS NOT NULL THEN     -- never empty: that would be a claim of the queues
        a.ids := ARRAY(SELECT j.id FROM unnest(a.ids) WITH ORDINALITY AS i (id, n) JOIN job j ON j.id = i.id
            WHERE j.queue = ANY (a.reach) ORDER BY i.n) || ''::text;
    END IF;
    -- the same claim twice at once, over two connections: the second one finds what the first has taken
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || a.worker, 0));
    t := instant(moment);       -- after the wait, which must not shorten the lease
    SELECT jobs INTO earlier FROM recent_claim k WHERE k.worker = a.name AND k.slot = a.slot AND k.claim_id = a.worker;
    IF FOUND THEN
        RETURN QUERY SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, more(j)
        FROM job j WHERE j.id = ANY (earlier) AND j.state = 2 AND j.worker = a.worker;
        IF FOUND THEN
            version := 1;
            attempt := 0;
            due_at := next_moment(a.lines, a.ids, t, true, false);
            created_at := t;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    -- with a floor this is between two full scans, and due rows wait for the next: their indexes hold dead rows too
    IF a.floors IS NULL AND (EXISTS (SELECT 1 FROM job j WHERE j.due_at <= t AND j.state <> 2)
        OR EXISTS (SELECT 1 FROM job j WHERE j.due_at < t AND j.state = 2)
        OR EXISTS (SELECT 1 FROM gate WHERE opens <= t)
        OR EXISTS (SELECT 1 FROM recheck))
    THEN
        PERFORM set_config('lock_timeout', '500ms', true);
        PERFORM advance_due(t);
    END IF;
    -- whether jobs of these queues must be checked
    SELECT EXISTS (SELECT 1 FROM rule), EXISTS (
        SELECT 1 FROM job j WHERE j.queue = ANY (a.lines) AND j.queue_position IS NOT NULL AND j.limits IS NOT NULL)
    INTO ruled, asks;
    asks := asks OR a.rooms IS NOT NULL OR cardinality(a.ids) > 0;
    IF asks OR ruled THEN
        PERFORM set_config('lock_timeout', '500ms', true);
    END IF;
    IF ruled AND NOT asks THEN
        SELECT * INTO roomy, room, asks, passed FROM room_of(a.lines, a."limit");
    END IF;
    IF asks THEN
        IF outs IS NULL THEN
            PERFORM set_config('treadle.patience', '80', true);
        END IF;
        RETURN QUERY SELECT * FROM walk(a.worker, a.name, a.slot, a.lines, a.shares, a.tasks, a.leases, a.rooms,
            a."limit", a.lease, a.ids, a.holds, moment);
        RETURN;
    END IF;
    most := a."limit";
    FOR n IN 0 .. 2 * cardinality(a.lines) - 1 LOOP     -- each up to its share, then again as far as there is room
        line := a.lines[n % cardinality(a.lines) + 1];
        share := CASE WHEN n < cardinality(a.lines) THEN least(a.shares[n + 1], most) ELSE most END;
        share := least(share, room[array_position(roomy, line)]);
        CONTINUE WHEN share <= 0;
        picked := NULL;
        IF a.floors -> line IS NOT NULL THEN
            picked := from_floor(line, a.tasks, a.holds, (a.floors -> line ->> 0)::smallint,
                (a.floors -> line ->> 1)::float8, share);
        END IF;
        -- `began` is read after the statement has begun, so no job that it sees was queued later. `t` is earlier by what
        -- this call has waited for meanwhile.
        RETURN QUERY WITH clock AS MATERIALIZED (SELECT instant(moment) AS began), taken AS (
            UPDATE job SET state = 2, version = job.version + 1, queue_position = NULL, blocked_on = NULL, worker = a.worker,
                due_at = (SELECT began FROM clock) + coalesce(nullif(job.lease, 0), a.leases[array_position(a.tasks, task)], a.lease),
                started_at = (SELECT began FROM clock), updated_at = (SELECT began FROM clock),
                key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL ELSE key END
            WHERE ctid = ANY (coalesce(picked, ARRAY(
                SELECT ctid FROM job j
                WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.limits IS NULL
                    AND (line = ANY (roomy) OR NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line)))
                    AND (a.tasks IS NULL OR j.task = ANY (a.tasks))
                    AND j.id NOT IN (SELECT unnest(a.holds))     -- a hash: <> ALL would compare each with each
                ORDER BY j.rank DESC, j.queue_position, j.id LIMIT share
                FOR NO KEY UPDATE SKIP LOCKED)))
            RETURNING job.id, rank, task, job.spec, job.state, job.version, job.attempt, job.lost, job.worker, job.queue_position,
                job.return_position, job.due_at, job.created_at, job.started_at, job.updated_at,
                CASE WHEN NOT is_bare(job) THEN more(job) END AS more
        ), kept AS (
            INSERT INTO recent_claim (worker, slot, claim_id, jobs, at)
            SELECT a.name, a.slot, a.worker, array_agg(id), t FROM taken HAVING count(*) > 0
            ON CONFLICT (worker, slot) DO UPDATE SET claim_id = excluded.claim_id, at = excluded.at,
                jobs = CASE WHEN recent_claim.claim_id = excluded.claim_id THEN recent_claim.jobs || excluded.jobs
                    ELSE excluded.jobs END
        ), counted AS (
            INSERT INTO count_change SELECT line, task, 'q', 'r', count(*) FROM taken GROUP BY task
        )
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, j.more
        FROM taken j ORDER BY j.rank DESC, j.return_position, j.id;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        IF line = ANY (roomy) THEN
            room[array_position(roomy, line)] := room[array_position(roomy, line)] - got;
        END IF;
    END LOOP;
    version := CASE WHEN passed AND most = a."limit" THEN 2 ELSE 0 END;
    attempt := 0;
    due_at := next_moment(a.lines, a.ids, t, ruled, picked IS NOT NULL AND most <= 0);
    created_at := t;
    RETURN NEXT;
END $$;

-- Queues whose rule has slots and nothing else, and how many of their jobs may start: the usual limit of a queue, for
-- which no job needs to be checked. The gates of these limits are held then. asks: the jobs must be checked after all
-- (walk.sql), because a rule has a rate or an order to keep, rules are being changed, or there is less room than `most`
-- and some jobs need none. passed: other transactions hold the gates of some queues, which are left out like queues
-- without room. Six such queues cost 115 us of the server for a job when each was checked, at 100 jobs a claim; now 56.
CREATE FUNCTION room_of(lines text[], most int, OUT roomy text[], OUT room int[], OUT asks boolean, OUT passed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    ruled record;
    held text[];
BEGIN
    passed := false;
    roomy := '{}';
    SELECT array_agg(l.line) AS lines, array_agg('queue:' || l.line) AS keys, array_agg(r.slots) AS slots,
        bool_or(r.slots IS NULL OR r.rate IS NOT NULL OR r.hold = 'ended') AS special INTO ruled
    FROM unnest(lines) AS l (line) CROSS JOIN LATERAL (
        SELECT slots, rate, hold FROM rule WHERE name IN ('queue', 'queue:' || l.line) ORDER BY name = 'queue' LIMIT 1) AS r
    WHERE EXISTS (SELECT 1 FROM job j WHERE j.queue = l.line AND j.queue_position IS NOT NULL);
    asks := coalesce(ruled.special, false) OR NOT share_rules();
    IF asks OR ruled.lines IS NULL THEN
        RETURN;
    END IF;
    PERFORM await_turn(20);
    held := try_gates(ruled.keys);
    passed := cardinality(held) < cardinality(ruled.keys);
    -- one scan of all running jobs: counting by queue would read all of them for each queue
    SELECT array_agg(f.line), array_agg(f.room), coalesce(bool_or(f.room < most AND EXISTS (SELECT 1 FROM job j
        WHERE j.queue = f.line AND j.queue_position IS NOT NULL AND (j.function_done OR j.started_at IS NOT NULL))), true)
    INTO roomy, room, asks FROM (
        SELECT u.line, u.slots - coalesce(running.jobs, 0)
            - (SELECT coalesce(sum(s.cost), 0) FROM slot s WHERE s.key = u.key AND s.live) AS room
        FROM unnest(ruled.lines, ruled.keys, ruled.slots) AS u (line, key, slots)
        LEFT JOIN (SELECT queue, count(*) AS jobs FROM job
            WHERE state = 2 AND due_at IS NOT NULL AND NOT function_done GROUP BY queue) AS running ON running.queue = u.line
        WHERE u.key = ANY (held)
    ) AS f;
END $$;

-- Locks the first jobs of a queue that have a higher rank than the floor, or are at or behind it; NULL: there are too
-- few, scan the whole queue.
CREATE FUNCTION from_floor(line text, tasks text[], holds text[], at_rank smallint, at_position float8, share int)
RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    found tid[];
BEGIN
    found := ARRAY(
        SELECT ctid FROM job j
        WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank > at_rank AND j.limits IS NULL
            AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
            AND (tasks IS NULL OR j.task = ANY (tasks)) AND j.id NOT IN (SELECT unnest(holds))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT share FOR NO KEY UPDATE SKIP LOCKED);
    IF cardinality(found) < share THEN
        found := found || ARRAY(
            SELECT ctid FROM job j
            WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank = at_rank AND j.queue_position >= at_position
                AND j.limits IS NULL AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
                AND (tasks IS NULL OR j.task = ANY (tasks)) AND j.id NOT IN (SELECT unnest(holds))
            ORDER BY j.queue_position, j.id LIMIT share - cardinality(found) FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    RETURN CASE WHEN cardinality(found) = share THEN found END;
END $$;

-- The next time that any row is due, or that a rate admits the next job of one of these queues. `ruled`: there may be
-- rules. `brief`: leases are not read, because a claim that got all it asked for does not wait.
CREATE FUNCTION next_moment(lines text[], ids text[], t float8, ruled boolean, brief boolean) RETURNS float8
LANGUAGE plpgsql AS $$
DECLARE
    first float8 := least(
        CASE WHEN NOT brief THEN (SELECT min(due_at) FROM job WHERE state = 2) END,
        (SELECT min(due_at) FROM job WHERE due_at IS NOT NULL AND state <> 2),
        (SELECT min(opens) FROM gate WHERE opens IS NOT NULL),
        (SELECT t + 0.05 FROM recheck LIMIT 1));
    line text;
BEGIN
    IF ruled AND EXISTS (SELECT 1 FROM rule WHERE rate IS NOT NULL AND (name = 'queue' OR starts_with(name, 'queue:'))) THEN
        FOR line IN
            SELECT l FROM unnest(lines) AS l WHERE cardinality(ids) = 0
            UNION SELECT queue FROM job WHERE id = ANY (ids)
        LOOP
            IF EXISTS (SELECT 1 FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL) THEN
                first := least(first, opens_at('queue:' || line, rule_of('queue:' || line), 1, t));
            END IF;
        END LOOP;
    END IF;
    RETURN first;
END $$;
