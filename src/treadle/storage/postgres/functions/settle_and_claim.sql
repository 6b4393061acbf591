-- Settles, claims, or does both in one round trip and one commit; workers call it all the time. The settings are
-- here, once: setting and resetting them for each inner function took 20 us, and reading the mark of a move three times
-- 20 more, of 1,000 for a trip with eight jobs. A separate function for the claim would write each row once more, 1 %
-- of a trip with 128 jobs.
--
-- The server plans a statement once, from the statistics of the last vacuum, which may have found an empty table. The
-- planner would then read the whole table for each call and search the call's few jobs for each row. So every statement
-- here that looks up the jobs of a call has a form with a single plan: `CROSS JOIN LATERAL (... OFFSET 0)`, which is
-- never reordered, `id = ANY (...)`, or `ctid`; and `queue_position + 0`, `state + 0` keep the planner from an index of
-- the queue. (34 us of the server for a job instead of 90, in every second process that began after a vacuum.)
--
-- The claim leases the first queued jobs. A queue of plain jobs takes one statement; for limits, or rooms per task, see
-- claim_with_limits.sql.
--
-- Rows are updated by ctid, found by a subquery that runs once: with a join the planner could take too many. A row that
-- another transaction changed in between is left for the next claim, so a short result does not mean an empty queue.
-- Each statement sees what was committed before it: jobs with limits, and a rule for this queue, that came after the
-- path was chosen are left for the next claim, too. The settings restrict the planner: without statistics it would read
-- and sort the whole queue. `began` is read after the statement has begun, so no job that it sees was queued later; `t`
-- is earlier by what this call has waited for meanwhile.
--
-- A call that has settled does not wait for its turn to claim: the slots that it has freed would stay taken meanwhile.
-- Its claim is repeated without outcomes. (300 tenants of two slots, four workers at concurrency 100: 0.05 blocked jobs
-- for each that ran instead of 2.)
--
-- outcomes, number, slow: see `settle`; outcomes NULL: none. request: a claim_request; NULL: no claim.
-- -> the outcomes that were not simply applied (see outcome_row); then the claimed jobs, in queue order; then one row
-- without a spec (see claim_summary).
CREATE FUNCTION settle_and_claim(moment float8, outcomes json, number int, slow boolean, request json)
RETURNS SETOF stored_row LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s'
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8;
    claim claim_request;
    earlier text[];
    missing int;                -- how many jobs the claim still wants
    got int;
    ruled boolean;
    passed boolean;             -- queues with a rule were skipped: other calls count their slots
    checked boolean;            -- limits, or room per task, must be checked
    open_queues text[] := '{}'; -- queues with a rule under which jobs may start
    rooms int[];                -- how many jobs of each task
    line text;
    share int;
    picked tid[];
BEGIN
    PERFORM begin_call(CASE WHEN request IS NULL THEN 'closing' END);
    IF outcomes IS NOT NULL THEN
        IF request IS NOT NULL THEN
            PERFORM set_config('treadle.patience', '0', true);
        END IF;
        RETURN QUERY SELECT (outcome_row(s.n, s.status, s.why)).* FROM settle(moment, outcomes, number, slow) AS s;
    END IF;
    IF request IS NULL THEN
        RETURN;
    END IF;
    claim := json_populate_record(NULL::claim_request, request);
    claim.ids := CASE WHEN claim.reach IS NULL THEN claim.ids ELSE ids_in_reach(claim.ids, claim.reach) END;
    -- the same claim runs over two connections at once: the second returns what the first has taken
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || claim.worker, 0));
    t := instant(moment);       -- read after the wait, which must not shorten the lease
    SELECT jobs INTO earlier FROM recent_claim k WHERE k.worker = claim.name AND k.slot = claim.slot
        AND k.claim_id = claim.worker;
    IF FOUND THEN
        RETURN QUERY SELECT r.* FROM rows_of(earlier) AS r WHERE r.state = 2 AND r.worker = claim.worker;
        IF FOUND THEN
            RETURN NEXT claim_summary(1, 0, next_due_time(claim.queues, claim.ids, t, true, false), t);
            RETURN;
        END IF;
    END IF;
    -- a claim with a floor is between two full scans; due rows wait for the next one, as their indexes hold dead rows
    -- too
    IF claim.floors IS NULL AND (EXISTS (SELECT 1 FROM job j WHERE j.due_at <= t AND j.state <> 2)
        OR EXISTS (SELECT 1 FROM job j WHERE j.due_at < t AND j.state = 2)
        OR EXISTS (SELECT 1 FROM gate WHERE opens <= t) OR EXISTS (SELECT 1 FROM recheck))
    THEN
        PERFORM set_config('lock_timeout', '500ms', true);
        PERFORM advance_due(t);
    END IF;
    -- whether jobs of these queues must be checked
    SELECT EXISTS (SELECT 1 FROM rule), EXISTS (
        SELECT 1 FROM job j
        WHERE j.queue = ANY (claim.queues) AND j.queue_position IS NOT NULL AND j.limits IS NOT NULL)
    INTO ruled, checked;
    checked := checked OR claim.rooms IS NOT NULL OR cardinality(claim.ids) > 0;
    IF checked OR ruled THEN
        PERFORM set_config('lock_timeout', '500ms', true);
    END IF;
    IF ruled AND NOT checked THEN
        SELECT * INTO open_queues, rooms, checked, passed FROM queue_rooms(claim.queues, claim."limit");
    END IF;
    IF checked THEN
        IF outcomes IS NULL THEN
            PERFORM set_config('treadle.patience', '80', true);
        END IF;
        RETURN QUERY SELECT * FROM claim_with_limits(claim, moment);
        RETURN;
    END IF;
    missing := claim."limit";
    FOR n IN 0 .. 2 * cardinality(claim.queues) - 1 LOOP    -- each up to its share, then again as far as there is room
        line := claim.queues[n % cardinality(claim.queues) + 1];
        share := CASE WHEN n < cardinality(claim.queues) THEN least(claim.shares[n + 1], missing) ELSE missing END;
        share := least(share, rooms[array_position(open_queues, line)]);
        CONTINUE WHEN share <= 0;
        picked := CASE WHEN claim.floors -> line IS NOT NULL THEN lock_from_floor(claim, line, share) END;
        RETURN QUERY WITH clock AS MATERIALIZED (SELECT instant(moment) AS began), taken AS (
            UPDATE job SET state = 2, version = job.version + 1, queue_position = NULL, blocked_on = NULL,
                worker = claim.worker, started_at = (SELECT began FROM clock), updated_at = (SELECT began FROM clock),
                due_at = (SELECT began FROM clock)
                    + coalesce(nullif(job.lease, 0), claim.leases[array_position(claim.tasks, task)], claim.lease),
                key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL ELSE key END
            WHERE ctid = ANY (coalesce(picked, ARRAY(
                SELECT ctid FROM job j
                WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.limits IS NULL
                    AND (line = ANY (open_queues)
                        OR NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line)))
                    AND (claim.tasks IS NULL OR j.task = ANY (claim.tasks))
                    AND j.id NOT IN (SELECT unnest(claim.running))   -- by hash; <> ALL compares all pairs
                ORDER BY j.rank DESC, j.queue_position, j.id LIMIT share
                FOR NO KEY UPDATE SKIP LOCKED)))
            RETURNING id, rank, task, spec, state, version, attempt, lost, worker, queue_position, return_position,
                due_at, created_at, started_at, updated_at,
                CASE WHEN NOT has_no_details(job) THEN row_details(job) END AS details
        ), kept AS (
            INSERT INTO recent_claim (worker, slot, claim_id, jobs, at)
            SELECT claim.name, claim.slot, claim.worker, array_agg(id), t FROM taken HAVING count(*) > 0
            ON CONFLICT (worker, slot) DO UPDATE SET claim_id = excluded.claim_id, at = excluded.at,
                jobs = CASE WHEN recent_claim.claim_id = excluded.claim_id THEN recent_claim.jobs || excluded.jobs
                    ELSE excluded.jobs END
        ), counted AS (
            INSERT INTO count_change SELECT line, task, 'q', 'r', count(*) FROM taken GROUP BY task
        )
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.queue_position, j.return_position, j.due_at,
            j.created_at, j.started_at, j.updated_at, j.details
        FROM taken j ORDER BY j.rank DESC, j.return_position, j.id;
        GET DIAGNOSTICS got = ROW_COUNT;
        missing := missing - got;
        IF line = ANY (open_queues) THEN
            rooms[array_position(open_queues, line)] := rooms[array_position(open_queues, line)] - got;
        END IF;
    END LOOP;
    RETURN NEXT claim_summary(CASE WHEN passed AND missing = claim."limit" THEN 2 ELSE 0 END, 0,
        next_due_time(claim.queues, claim.ids, t, ruled, picked IS NOT NULL AND missing <= 0), t);
END $$;

-- Returns the ids whose jobs are in these queues. The result is never empty, because a claim without ids takes jobs
-- from the queues.
CREATE FUNCTION ids_in_reach(ids text[], reach text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT j.id FROM unnest(ids) WITH ORDINALITY AS i (id, n) JOIN job j ON j.id = i.id
        WHERE j.queue = ANY (reach) ORDER BY i.n) || ''::text;
END $$;

-- Makes the row of an outcome that was not simply applied. n: its index in the call.
CREATE FUNCTION outcome_row(n int, status text, why text) RETURNS stored_row LANGUAGE sql IMMUTABLE AS $$
    SELECT (status, -1, n, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, why)::stored_row
$$;

-- Makes the last row of a claim. again: 1 if this claim id was used before, 2 if more is left to scan (see
-- claim_with_limits) or this call has settled and gets no turn. blocked: how many jobs were blocked. due_at: the next
-- due time.
CREATE FUNCTION claim_summary(again int, blocked int, due_at float8, t float8) RETURNS stored_row
LANGUAGE sql IMMUTABLE AS $$
    SELECT (NULL, NULL, again, blocked, NULL, NULL, NULL, NULL, due_at, t, NULL, NULL, NULL)::stored_row
$$;

-- Returns the queues whose rule has slots and nothing else, and how many of their jobs may start. This is the usual
-- limit of a queue, for which no job needs to be checked; the gates of these limits are then held. checked: the jobs
-- must be checked after all (claim_with_limits.sql), because a rule has a rate or strict order, because rules are being
-- changed, or because there is less room than `wanted` and some jobs need no slot. passed: other transactions hold the
-- gates of some queues, which are left out like queues without room. Six such queues cost 115 us of the server for a
-- job when each was checked, at 100 jobs a claim; now 56.
CREATE FUNCTION queue_rooms(queues text[], wanted int, OUT open_queues text[], OUT rooms int[], OUT checked boolean,
    OUT passed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    ruled record;
    held text[];
BEGIN
    passed := false;
    open_queues := '{}';
    SELECT array_agg(q.line) AS queues, array_agg('queue:' || q.line) AS keys, array_agg(r.slots) AS slots,
        bool_or(r.slots IS NULL OR r.rate IS NOT NULL OR r.hold = 'ended') AS special INTO ruled
    FROM unnest(queues) AS q (line) CROSS JOIN LATERAL (
        SELECT slots, rate, hold FROM rule WHERE name IN ('queue', 'queue:' || q.line)
        ORDER BY name = 'queue' LIMIT 1) AS r
    WHERE EXISTS (SELECT 1 FROM job j WHERE j.queue = q.line AND j.queue_position IS NOT NULL);
    checked := coalesce(ruled.special, false) OR NOT share_rules();
    IF checked OR ruled.queues IS NULL THEN
        RETURN;
    END IF;
    PERFORM await_turn(20);
    held := try_gates(ruled.keys);
    passed := cardinality(held) < cardinality(ruled.keys);
    -- one scan of all running jobs: counting by queue would read all of them for each queue
    SELECT array_agg(f.line), array_agg(f.room), coalesce(bool_or(f.room < wanted AND EXISTS (SELECT 1 FROM job j
        WHERE j.queue = f.line AND j.queue_position IS NOT NULL
            AND (j.function_done OR j.started_at IS NOT NULL))), true)
    INTO open_queues, rooms, checked FROM (
        SELECT u.line, u.slots - coalesce(running.jobs, 0)
            - (SELECT coalesce(sum(s.cost), 0) FROM slot s WHERE s.key = u.key AND s.live) AS room
        FROM unnest(ruled.queues, ruled.keys, ruled.slots) AS u (line, key, slots)
        LEFT JOIN (SELECT queue, count(*) AS jobs FROM job
            WHERE state = 2 AND due_at IS NOT NULL AND NOT function_done GROUP BY queue) AS running
            ON running.queue = u.line
        WHERE u.key = ANY (held)
    ) AS f;
END $$;

-- Locks the first jobs of a queue that have a higher rank than the floor, or are at or behind it. NULL: too few such
-- jobs exist, so the whole queue must be scanned.
CREATE FUNCTION lock_from_floor(claim claim_request, line text, share int) RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    at_rank constant smallint := claim.floors -> line ->> 0;
    at_position constant float8 := claim.floors -> line ->> 1;
    locked tid[] := ARRAY(
        SELECT ctid FROM job j
        WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank > at_rank AND j.limits IS NULL
            AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
            AND (claim.tasks IS NULL OR j.task = ANY (claim.tasks)) AND j.id NOT IN (SELECT unnest(claim.running))
        ORDER BY j.rank DESC, j.queue_position, j.id LIMIT share FOR NO KEY UPDATE SKIP LOCKED);
BEGIN
    IF cardinality(locked) < share THEN
        locked := locked || ARRAY(
            SELECT ctid FROM job j
            WHERE j.queue = line AND j.queue_position IS NOT NULL AND j.rank = at_rank
                AND j.queue_position >= at_position AND j.limits IS NULL
                AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
                AND (claim.tasks IS NULL OR j.task = ANY (claim.tasks)) AND j.id NOT IN (SELECT unnest(claim.running))
            ORDER BY j.queue_position, j.id LIMIT share - cardinality(locked) FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    RETURN CASE WHEN cardinality(locked) = share THEN locked END;
END $$;

-- Returns the next time at which any row is due, or a rate admits the next job of one of these queues. ruled: there may
-- be rules. brief: leases are not read, because a claim that got all that it wanted does not wait.
CREATE FUNCTION next_due_time(queues text[], ids text[], t float8, ruled boolean, brief boolean) RETURNS float8
LANGUAGE plpgsql AS $$
DECLARE
    first float8 := least(
        CASE WHEN NOT brief THEN (SELECT min(due_at) FROM job WHERE state = 2) END,
        (SELECT min(due_at) FROM job WHERE due_at IS NOT NULL AND state <> 2),
        (SELECT min(opens) FROM gate WHERE opens IS NOT NULL),
        (SELECT t + 0.05 FROM recheck LIMIT 1));
    line text;
BEGIN
    IF ruled AND EXISTS (SELECT 1 FROM rule
        WHERE rate IS NOT NULL AND (name = 'queue' OR starts_with(name, 'queue:')))
    THEN
        FOR line IN
            SELECT l FROM unnest(queues) AS l WHERE cardinality(ids) = 0
            UNION SELECT queue FROM job WHERE id = ANY (ids)
        LOOP
            IF EXISTS (SELECT 1 FROM job j WHERE j.queue = line AND j.queue_position IS NOT NULL) THEN
                first := least(first, opens_at('queue:' || line, rule_of('queue:' || line), 1, t));
            END IF;
        END LOOP;
    END IF;
    RETURN first;
END $$;
