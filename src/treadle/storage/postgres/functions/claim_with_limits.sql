-- Claims from queues for which limits, or room per task, must be checked, page by page. It first reads which limits the
-- jobs of the page name, without any lock. Then it takes their gates (gates.sql), reads the page again
-- (queue_page.sql), locks the rows and checks each job (admit_page.sql). So limits admit jobs in queue order: a job
-- that was unblocked meanwhile is seen, and no other claim holds rows of these limits.
--
-- Claims take turns while turns are short. A claim without the turn takes the gates that are free, skips the jobs whose
-- gates other transactions hold, and reads a little further, in this queue and in the next. If it finds only such jobs,
-- it waits for the gates of a page, all at once; if it must not wait (it settled under gates), it reports that more is
-- left.
--
-- After `max_blocked` blocked jobs, or half a second, it ends, reports this, and is repeated. Its changes are then
-- committed, no other claim waits longer for it, and the time limit of a call never undoes it. Result: see
-- settle_and_claim.sql.
CREATE FUNCTION claim_with_limits(claim claim_request, moment float8) RETURNS SETOF stored_row LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    max_blocked constant int := 1000;
    max_incomplete constant int := 6;   -- pages of a queue with missing gates
    max_page constant int := 256;       -- jobs of a page
    -- once a task has no room left, a claim reads 1,000 rows further for its other tasks; every eighth claim reads all
    read_past constant int := CASE WHEN claim.rooms IS NOT NULL AND claim.slot < 64 AND claim.slot % 8 <> 0
        THEN 1000 END;
    scan queue_scan := start_scan(claim);
    turn record;
    page claim_page;
    result page_result;
    t float8 := instant(moment);
    claimed text[] := '{}';
    blocked int := 0;
    unfinished boolean := NOT share_rules();
    passed boolean := false;    -- jobs were skipped whose gates other transactions hold
    moving boolean := false;    -- jobs wait for slots that an open transaction frees
    done text[] := '{}';        -- queues that have nothing more for this claim
    incomplete text[] := '{}';  -- queues with missing gates: read again if nothing else is claimed
    pages int;                  -- pages that may still be read of this queue
    missing int;                -- how many jobs of this queue it still wants
    single boolean;             -- no page lies behind this one
BEGIN
    IF scan.ruled AND NOT unfinished THEN
        unfinished := NOT await_turn(patience());
        PERFORM recheck_limits(t);
    END IF;
    FOR turn IN SELECT * FROM claim_turns(claim, scan.ruled) WHERE NOT unfinished LOOP
        CONTINUE WHEN turn.queue = ANY (done) OR (cardinality(claimed) > 0 AND turn.queue = ANY (incomplete));
        EXIT WHEN cardinality(claimed) >= claim."limit";
        missing := least(turn.share, claim."limit" - cardinality(claimed));
        pages := max_incomplete;
        scan.queue := turn.queue;
        scan.own_limit := turn.own_limit;
        scan.last := turn.last;
        scan.closed := false;
        scan.at_id := NULL;
        WHILE missing > 0 AND pages > 0 AND NOT unfinished LOOP
            IF scan.rooms IS NOT NULL THEN
                scan.open_tasks := ARRAY(
                    SELECT u.task FROM unnest(claim.tasks, scan.rooms) AS u (task, room)
                    WHERE u.room IS NULL OR u.room > 0);
                EXIT WHEN cardinality(scan.open_tasks) = 0;
            END IF;
            scan.read_past := CASE WHEN NOT scan.named AND cardinality(claimed) > 0
                AND cardinality(scan.open_tasks) < cardinality(claim.tasks) THEN read_past END;
            scan.share := missing;
            -- reads more than wanted if jobs are blocked: otherwise strict order cost the server 5 % more a job
            scan.size := least(greatest(CASE WHEN blocked > 0 THEN 2 * missing ELSE missing END, 8), max_page);
            page := read_page(scan, cardinality(claimed) = 0, moment, t);
            t := page.t;
            passed := passed OR page.busy OR NOT page.complete;
            EXIT WHEN page.busy;
            IF NOT page.complete THEN
                incomplete := incomplete || turn.queue;
                pages := pages - 1;
            END IF;
            EXIT WHEN page.ids IS NULL;
            single := page.from_head AND scan.read_past IS NULL AND cardinality(page.ids) < scan.size;
            IF cardinality(claim.running) > 32 THEN
                scan.running := ARRAY(SELECT unnest(claim.running) INTERSECT SELECT unnest(page.ids));
            END IF;
            scan.max_blocked := max_blocked - blocked;
            result := admit_page(page, scan, moment, t);
            t := result.t;
            IF cardinality(result.noted) > 0 THEN   -- a call without a turn freed slots: blocked jobs get them first
                PERFORM unblock_noted_limits(result.noted, t);
                scan.at_id := NULL;
                CONTINUE;
            END IF;
            scan.barred := result.barred;
            passed := passed OR result.passed;
            moving := moving OR result.moving;
            IF cardinality(result.taken) > 0 THEN
                RETURN QUERY WITH begun AS (
                    UPDATE job SET state = 2, version = job.version + 1, queue_position = NULL, blocked_on = NULL,
                        worker = claim.worker, started_at = t, updated_at = t, due_at = t + coalesce(
                            nullif(job.lease, 0), claim.leases[array_position(claim.tasks, job.task)], claim.lease),
                        key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL
                            ELSE key END
                    WHERE ctid = ANY (result.spots)
                    RETURNING id, rank, queue, task, limits, costs, function_done, spec, state, version, attempt, lost,
                        worker, queue_position, return_position, due_at, created_at, started_at, updated_at,
                        CASE WHEN NOT has_no_details(job) THEN row_details(job) END AS details
                ), counted AS (
                    INSERT INTO count_change SELECT queue, task, 'q', 'r', count(*) FROM begun GROUP BY queue, task
                ), held AS (    -- jobs that were claimed before may hold these slots
                    INSERT INTO slot (key, id, cost, live)
                    SELECT u.key, b.id, u.cost, NOT b.function_done
                    FROM begun b CROSS JOIN LATERAL unnest(b.limits, b.costs) AS u (key, cost)
                    ON CONFLICT (key, id) DO UPDATE SET live = excluded.live WHERE slot.live <> excluded.live
                )
                SELECT b.spec, b.state, b.version, b.attempt, b.lost, b.worker, b.queue_position, b.return_position,
                    b.due_at, b.created_at, b.started_at, b.updated_at, b.details
                FROM begun b ORDER BY b.rank DESC, b.return_position, b.id;
                claimed := claimed || result.taken;
                missing := missing - cardinality(result.taken);
            END IF;
            scan.rooms := result.rooms;
            blocked := blocked + cardinality(result.blocked_spots);
            EXIT WHEN single AND cardinality(result.blocked_spots) = 0 AND NOT result.closed;
            unfinished := blocked >= max_blocked OR result.late;
            scan.closed := scan.closed OR result.closed;
            scan.at_rank := page.ranks[result.last];
            scan.at_position := page.positions[result.last];
            scan.at_id := page.ids[result.last];
            IF result.freed IS NOT NULL THEN
                scan := return_to_unblocked(scan, result.freed, t);
            END IF;
        END LOOP;
        IF missing > 0 AND NOT turn.queue = ANY (incomplete) THEN
            done := done || turn.queue;     -- it had less than its share: nothing is left there
        END IF;
    END LOOP;
    PERFORM note_claim(claim, claimed, t);
    RETURN NEXT claim_summary(CASE WHEN unfinished OR (passed AND cardinality(claimed) = 0) THEN 2 ELSE 0 END, blocked,
        least(next_due_time(claim.queues, claim.ids, t, true, false), CASE WHEN moving THEN t + 0.05 END), t);
END $$;

-- Makes the scan of a claim that has read nothing yet.
CREATE FUNCTION start_scan(claim claim_request) RETURNS queue_scan LANGUAGE plpgsql AS $$
DECLARE
    scan queue_scan;
BEGIN
    scan.ruled := EXISTS (SELECT 1 FROM rule);
    scan.named := cardinality(claim.ids) > 0;
    scan.ids := claim.ids;
    scan.running := claim.running;
    scan.tasks := claim.tasks;
    scan.open_tasks := claim.tasks;
    scan.rooms := claim.rooms;
    scan.barred := '{}';
    scan.until := clock_timestamp() + interval '500 ms';
    RETURN scan;
END $$;

-- Returns the queues to read, in order: each up to its share, then each as far as there is room. A single queue takes
-- all at once. If the claim names ids, these are the queues of those jobs.
CREATE FUNCTION claim_turns(claim claim_request, ruled boolean)
RETURNS TABLE (queue text, share int, last boolean, own_limit text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF cardinality(claim.ids) > 0 THEN
        RETURN QUERY SELECT j.queue, claim."limit", true, own_limit_of(j.queue, ruled)
        FROM unnest(claim.ids) WITH ORDINALITY AS i (id, n)
        JOIN LATERAL (SELECT x.queue FROM job x WHERE x.id = i.id
            UNION ALL SELECT x.queue FROM ended x WHERE x.id = i.id OFFSET 0) AS j ON true
        GROUP BY j.queue ORDER BY min(i.n);
    ELSE
        -- all shares come before the rest, whatever plan the join has
        RETURN QUERY SELECT q.line, CASE WHEN half = 0 AND count(*) OVER () > 2 THEN q.share ELSE claim."limit" END,
            half = 1, own_limit_of(q.line, ruled)
        FROM generate_series(0, 1) AS half, unnest(claim.queues, claim.shares) WITH ORDINALITY AS q (line, share, n)
        WHERE EXISTS (SELECT 1 FROM job x WHERE x.queue = q.line AND x.queue_position IS NOT NULL)
        ORDER BY half, q.n;
    END IF;
END $$;

-- The limit of a queue, if it has a rule; ruled: there are rules.
CREATE FUNCTION own_limit_of(line text, ruled boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN CASE WHEN ruled AND EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
        THEN 'queue:' || line END;
END $$;

-- Unblocks jobs of a limit, and lets the scan read the queue again from the first of them, if that is before the last
-- job checked. Reading from the head again would read all jobs that this claim cannot take, once for each blocked job.
CREATE FUNCTION return_to_unblocked(scan queue_scan, freed text, t float8) RETURNS queue_scan LANGUAGE plpgsql AS $$
DECLARE
    first record;
BEGIN
    PERFORM unblock_limit(freed, t);
    SELECT k.rank, k.queue_position INTO first FROM (
        SELECT j.rank, j.queue_position, j.id FROM job j
        WHERE j.blocked_on = freed AND j.queue = scan.queue AND j.queue_position IS NOT NULL OFFSET 0) AS k
    ORDER BY k.rank DESC, k.queue_position, k.id LIMIT 1;
    IF FOUND AND (-first.rank, first.queue_position) <= (-scan.at_rank, scan.at_position) THEN
        scan.at_rank := first.rank;
        scan.at_position := first.queue_position;
        scan.at_id := '';
    END IF;
    RETURN scan;
END $$;

-- Stores which jobs a claim id has claimed.
CREATE FUNCTION note_claim(claim claim_request, claimed text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(claimed) > 0 THEN
        INSERT INTO recent_claim (worker, slot, claim_id, jobs, at)
        VALUES (claim.name, claim.slot, claim.worker, claimed, t)
        ON CONFLICT (worker, slot) DO UPDATE
        SET claim_id = excluded.claim_id, at = excluded.at, jobs = excluded.jobs;
    END IF;
END $$;
