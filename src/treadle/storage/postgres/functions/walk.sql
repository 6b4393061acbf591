-- A claim of queues where limits, or room per task, must be checked, page by page. It first reads which limits the jobs
-- of the page name, without any lock. Then it takes their gates (gates.sql), reads the page again (page.sql), locks the
-- rows and checks each job (meet.sql). So limits admit jobs in queue order: a job that was unblocked meanwhile is seen,
-- and no other claim holds rows of these limits.
--
-- Claims take turns while turns are short. A claim without the turn takes the gates that are free, skips the jobs whose
-- gates other transactions hold, and reads a little further, in this queue and in the next. If it finds only such jobs,
-- it waits for the gates of a page, all at once; if it must not wait (it settled under gates), it reports that more is
-- left.
--
-- After `most_aside` blocked jobs, or half a second, it ends, reports this, and is repeated. Its changes are then
-- committed, no other claim waits longer for it, and the time limit of a call never undoes it. Arguments and result:
-- see claim.sql.
CREATE FUNCTION walk(as_worker text, of_name text, at_slot int, lines text[], shares int[], tasks text[], leases float8[],
    rooms int[], most int, otherwise float8, ids text[], holds text[], moment float8)
RETURNS TABLE (
    spec text, state smallint, version int, attempt int, lost int, worker text, queue_position float8,
    return_position float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    most_aside constant int := 1000;
    most_passed constant int := 6;      -- pages of a queue with missing gates
    wide constant int := 256;           -- jobs of a page, at most
    near constant int := 1000;          -- rows read past for other tasks, once a task has no room left
    brief constant boolean := rooms IS NOT NULL AND at_slot < 64 AND at_slot % 8 <> 0;  -- every eighth claim reads all
    until timestamptz := clock_timestamp() + interval '500 ms';
    named constant boolean := cardinality(ids) > 0;
    t float8 := instant(moment);
    got text[] := '{}';
    aside int := 0;
    unfinished boolean := NOT share_rules();
    passed boolean := false;    -- jobs were skipped whose gates other transactions hold
    moving boolean := false;    -- jobs wait for slots that an open transaction frees
    ruled boolean := EXISTS (SELECT 1 FROM rule);
    patience int;
    turn record;
    wanted record;              -- the limits of this page: all, and those that all its jobs name
    gates record;               -- of these limits: held, and missing
    opened text[];
    page record;
    met record;
    mine text[];                -- jobs of this page that the worker still holds
    line text;
    single boolean;             -- no page lies behind this one
    own text;                   -- the limit of this queue, if it has a rule
    done text[] := '{}';        -- queues that have nothing more for this claim
    shunned text[] := '{}';     -- queues with missing gates: read again if nothing else is found
    left_over int;
    room int[] := rooms;
    asking text[] := tasks;     -- those that have room
    shut boolean;
    size int;
    far int;                    -- the bound on rows read past; NULL: none
    at_rank smallint;           -- the last job checked in this queue: rows before it are not read again
    at_position float8;
    at_id text;
    back_rank smallint;         -- the first unblocked job
    back_place float8;
    barred text[] := '{}';      -- limits of which an earlier job could not be taken
BEGIN
    IF ruled AND NOT unfinished THEN
        unfinished := NOT await_turn(patience());
        PERFORM recheck_limits(t);
    END IF;
    gates := gates_of(NULL, NULL, NULL, false);
    FOR turn IN
        (SELECT q.line AS queue, CASE WHEN half = 0 AND count(*) OVER () > 2 THEN q.share ELSE most END AS share, half = 1 AS last,
            ruled AND EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || q.line)) AS of_queue
        FROM generate_series(0, 1) AS half, unnest(lines, shares) WITH ORDINALITY AS q (line, share, n)
        WHERE NOT named AND NOT unfinished
            AND EXISTS (SELECT 1 FROM job x WHERE x.queue = q.line AND x.queue_position IS NOT NULL)
        -- all shares before the rest, however the join is planned; a single queue counts twice, and takes all at once
        ORDER BY half, q.n)
        UNION ALL (
            SELECT j.queue, most, true, ruled AND EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || j.queue))
            FROM unnest(ids) WITH ORDINALITY AS i (id, n)
            JOIN LATERAL (SELECT x.queue FROM job x WHERE x.id = i.id
                UNION ALL SELECT x.queue FROM ended x WHERE x.id = i.id OFFSET 0) AS j ON true
            WHERE NOT unfinished GROUP BY j.queue ORDER BY min(i.n))
    LOOP
        line := turn.queue;
        CONTINUE WHEN line = ANY (done) OR (cardinality(got) > 0 AND line = ANY (shunned));
        EXIT WHEN cardinality(got) >= most;
        left_over := least(turn.share, most - cardinality(got));
        own := CASE WHEN turn.of_queue THEN 'queue:' || line END;
        shut := false;
        at_id := NULL;
        patience := most_passed;
        WHILE left_over > 0 AND patience > 0 AND NOT unfinished LOOP
            IF rooms IS NOT NULL THEN
                asking := ARRAY(SELECT u.task FROM unnest(tasks, room) AS u (task, free) WHERE u.free IS NULL OR u.free > 0);
                EXIT WHEN cardinality(asking) = 0;
            END IF;
            far := CASE WHEN brief AND NOT named AND cardinality(got) > 0 AND cardinality(asking) < cardinality(tasks)
                THEN near END;
            -- if some are blocked, more than is wanted: otherwise strict order cost the server 5 % more for a job
            size := least(greatest(CASE WHEN aside > 0 THEN 2 * left_over ELSE left_over END, 8), wide);
            IF ruled THEN
                wanted := limits_of_page(line, asking, ids, shut, at_rank, at_position, at_id, size, far);
                gates := gates_of(own, wanted.names, CASE WHEN cardinality(got) = 0 THEN wanted.shared END,
                    turn.last AND cardinality(got) = 0);
                passed := passed OR gates.busy;
                EXIT WHEN gates.busy;
                IF gates.missing IS NOT NULL THEN
                    passed := true;
                    shunned := shunned || line;
                    patience := patience - 1;
                    EXIT WHEN own = ANY (gates.missing);
                END IF;
            END IF;
            FOR reading IN 1 .. 4 LOOP
                SELECT array_agg(p.id) AS ids, array_agg(p.spot) AS spots, array_agg(p.rank) AS ranks, array_agg(p.queue_position) AS positions,
                    array_agg(p.wants) AS wants INTO page
                FROM page_of(line, asking, ids, shut, at_rank, at_position, at_id, size, far) AS p;
                t := greatest(t, instant(moment));      -- no job of the page was queued later
                -- a rate that has opened since due rows were advanced admits blocked jobs before the queued ones
                EXIT WHEN reading = 4 OR NOT ruled OR NOT EXISTS (SELECT 1 FROM gate WHERE gate.opens <= t);
                opened := ARRAY(SELECT key FROM gate WHERE gate.opens <= t AND key = ANY (gates.held));
                EXIT WHEN cardinality(opened) = 0;
                PERFORM unblock_for(opened, t);
                at_id := NULL;
            END LOOP;
            EXIT WHEN page.ids IS NULL;
            single := at_id IS NULL AND far IS NULL AND cardinality(page.ids) < size;
            mine := holds;
            IF cardinality(holds) > 32 THEN
                mine := ARRAY(SELECT unnest(holds) INTERSECT SELECT unnest(page.ids));
            END IF;
            met := meet(page.ids, page.spots, page.wants, left_over, line, own, ruled, shut OR named, named, asking, tasks, room,
                mine, gates.held, gates.missing IS NULL, barred, most_aside - aside, until, moment, t);
            t := met.t;
            IF cardinality(met.noted) > 0 THEN      -- a call without a turn freed slots: blocked jobs get them first
                PERFORM unblock_noted(met.noted, t);
                at_id := NULL;
                CONTINUE;
            END IF;
            barred := met.barred;
            passed := passed OR met.passed;
            moving := moving OR met.moving;
            IF cardinality(met.taken) > 0 THEN
                -- they run now, and hold the slots they name
                RETURN QUERY WITH begun AS (
                    UPDATE job SET state = 2, version = job.version + 1, queue_position = NULL, blocked_on = NULL, worker = as_worker,
                        due_at = t + coalesce(nullif(job.lease, 0), leases[array_position(tasks, job.task)], otherwise),
                        started_at = t, updated_at = t,
                        key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL ELSE key END
                    WHERE ctid = ANY (met.spots)
                    RETURNING id, rank, queue, task, job.spec, job.state, job.version, job.attempt, job.lost, job.worker, job.queue_position,
                        job.return_position, job.due_at, job.created_at, job.started_at, job.updated_at,
                        CASE WHEN NOT is_bare(job) THEN more(job) END AS more
                ), counted AS (
                    INSERT INTO count_change SELECT queue, task, 'q', 'r', count(*) FROM begun GROUP BY queue, task
                )
                SELECT b.spec, b.state, b.version, b.attempt, b.lost, b.worker, b.queue_position, b.return_position, b.due_at,
                    b.created_at, b.started_at, b.updated_at, b.more
                FROM begun b ORDER BY b.rank DESC, b.return_position, b.id;
                IF met.again THEN       -- some of these jobs were claimed before and may already hold their slots
                    INSERT INTO slot (key, id, cost, live)
                    SELECT u.key, u.id, greatest(u.cost, 1), NOT (SELECT j.function_done FROM job j WHERE j.id = u.id)
                    FROM unnest(met.slot_keys, met.slot_ids, met.slot_costs) AS u (key, id, cost)
                    ON CONFLICT (key, id) DO UPDATE SET live = excluded.live WHERE slot.live <> excluded.live;
                ELSIF cardinality(met.slot_keys) > 0 THEN
                    INSERT INTO slot (key, id, cost, live)
                    SELECT u.key, u.id, greatest(u.cost, 1), true
                    FROM unnest(met.slot_keys, met.slot_ids, met.slot_costs) AS u (key, id, cost);
                END IF;
                got := got || met.taken;
                left_over := left_over - cardinality(met.taken);
            END IF;
            room := met.room_left;
            aside := aside + met.aside;
            EXIT WHEN single AND met.aside = 0 AND NOT met.closed;
            unfinished := aside >= most_aside OR met.late;
            shut := shut OR met.closed;
            at_rank := page.ranks[met.last];
            at_position := page.positions[met.last];
            at_id := page.ids[met.last];
            IF met.freed IS NOT NULL THEN
                PERFORM call_in_for(met.freed, t);
                -- an unblocked job may be ahead of this position; from the head, each blocked job would cost another
                -- read past all jobs that this claim cannot take
                SELECT k.rank, k.queue_position INTO back_rank, back_place FROM (
                    SELECT j.rank, j.queue_position, j.id FROM job j
                    WHERE j.blocked_on = met.freed AND j.queue = line AND j.queue_position IS NOT NULL OFFSET 0) AS k
                ORDER BY k.rank DESC, k.queue_position, k.id LIMIT 1;
                IF FOUND AND (-back_rank, back_place) <= (-at_rank, at_position) THEN
                    at_rank := back_rank;
                    at_position := back_place;
                    at_id := '';
                END IF;
            END IF;
        END LOOP;
        IF left_over > 0 AND NOT line = ANY (shunned) THEN
            done := done || line;       -- it had less than its share: nothing is left for the second half
        END IF;
    END LOOP;
    IF cardinality(got) > 0 THEN
        INSERT INTO recent_claim (worker, slot, claim_id, jobs, at) VALUES (of_name, at_slot, as_worker, got, t)
        ON CONFLICT (worker, slot) DO UPDATE
        SET claim_id = excluded.claim_id, at = excluded.at, jobs = excluded.jobs;
    END IF;
    version := CASE WHEN unfinished OR (passed AND cardinality(got) = 0) THEN 2 ELSE 0 END;
    attempt := aside;
    due_at := next_moment(lines, ids, t, true, false);
    IF moving THEN
        due_at := least(due_at, t + 0.05);
    END IF;
    created_at := t;
    RETURN NEXT;
END $$;
