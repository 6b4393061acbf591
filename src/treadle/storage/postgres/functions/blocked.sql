-- Unblocks jobs when a slot is freed or a rate opens. The caller holds the gate of the limit.

-- Returns the limits among `keys` that block a job, or that must be checked when their rate opens.
CREATE FUNCTION blocking_limits(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT k FROM unnest(keys) AS k
        WHERE EXISTS (SELECT 1 FROM job WHERE blocked_on = k AND queue_position IS NULL)
            OR EXISTS (SELECT 1 FROM gate WHERE key = k AND opens IS NOT NULL) ORDER BY k);
END $$;

-- Returns the cost of a job for a limit: 1 for the limit of its queue, which the job does not name.
CREATE FUNCTION cost_of(job_row job, limited text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(job_row.costs[array_position(job_row.limits, limited)], 1)
$$;

-- Stores when the rate will admit the first blocked job of any queue. With hold = 'ended', this is the first job that
-- holds a slot, or the first that holds none. starting: jobs that were charged already, but whose rows are not written
-- yet.
CREATE FUNCTION set_opening(limited text, t float8, starting text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limit_rule rule := rule_of(limited);
    moment float8;
    line text;
    first job;
    ahead int;
BEGIN
    IF limit_rule.rate IS NOT NULL THEN
        LOOP
            SELECT queue INTO line FROM job
            WHERE blocked_on = limited AND queue_position IS NULL AND queue > coalesce(line, '') ORDER BY queue LIMIT 1;
            EXIT WHEN NOT FOUND;
            FOR first IN
                (SELECT j.* FROM job j WHERE j.blocked_on = limited AND j.queue = line AND j.queue_position IS NULL
                    ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1)
                UNION ALL (SELECT j.* FROM job j WHERE j.blocked_on = limited AND j.queue = line
                    AND j.queue_position IS NULL
                    AND j.started_at IS NOT NULL AND limit_rule.hold = 'ended'
                    ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1)
                UNION ALL (SELECT j.* FROM job j WHERE j.blocked_on = limited AND j.queue = line
                    AND j.queue_position IS NULL
                    AND j.started_at IS NULL AND limit_rule.hold = 'ended'
                    ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1)
            LOOP
                -- jobs that were unblocked and not claimed yet start before it
                SELECT coalesce(sum(least(cost_of(b, limited), capacity(limit_rule))), 0) INTO ahead FROM job b
                WHERE b.blocked_on = limited AND b.queue = line AND b.queue_position IS NOT NULL
                    AND NOT b.id = ANY (starting)
                    AND (-b.rank, b.return_position, b.id) < (-first.rank, first.return_position, first.id);
                moment := least(moment, opens_at(limited, limit_rule, cost_of(first, limited) + ahead, t));
            END LOOP;
        END LOOP;
    END IF;
    UPDATE gate SET opens = moment WHERE key = limited AND opens IS DISTINCT FROM moment;
END $$;

-- Unblocks jobs of these limits while there is room; the caller holds their gates.
CREATE FUNCTION unblock_limits(keys text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limited text;
BEGIN
    IF cardinality(keys) > 1 THEN
        keys := unblock_slot_limits(keys);
    END IF;
    FOREACH limited IN ARRAY keys LOOP
        PERFORM unblock_limit(limited, t);
    END LOOP;
END $$;

-- Does the same as `unblock_limit` for all limits of the common kind, in a few statements instead of a dozen for each.
-- Such a limit has slots and no rate, and its blocked jobs belong to one queue, cost 1 and hold no slot yet. Returns
-- the limits of other kinds, which it leaves unchanged.
CREATE FUNCTION unblock_slot_limits(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    alike record;
    spots tid[];
    unlike text[];
    lines text[];
BEGIN
    SELECT array_agg(a.key) AS keys, array_agg(a.line) AS lines, array_agg(a.keeps) AS keeps, array_agg(a.free) AS free
    INTO alike
    FROM (
        SELECT k.key, f.queue AS line, r.keeps, r.slots - (
                SELECT coalesce(sum(s.cost), 0) FROM slot s WHERE s.key = k.key AND (s.live OR r.keeps)) AS free
        FROM unnest(keys) AS k (key)
        CROSS JOIN LATERAL (
            SELECT r.slots, r.rate, r.hold = 'ended' AS keeps FROM rule r
            WHERE r.name IN (k.key, split_part(k.key, ':', 1)) ORDER BY r.name = k.key DESC LIMIT 1) AS r
        CROSS JOIN LATERAL (
            SELECT j.queue FROM job j WHERE j.blocked_on = k.key AND j.queue_position IS NULL ORDER BY j.queue LIMIT 1
        ) AS f
        WHERE r.slots IS NOT NULL AND r.rate IS NULL AND NOT starts_with(k.key, 'queue:')
            AND NOT EXISTS (SELECT 1 FROM job j WHERE j.blocked_on = k.key AND j.queue > f.queue
                AND j.queue_position IS NULL)
            AND NOT (r.keeps AND EXISTS (SELECT 1 FROM job j
                WHERE j.blocked_on = k.key AND j.queue = f.queue AND j.queue_position IS NULL
                    AND j.started_at IS NOT NULL))
    ) AS a;
    IF alike.keys IS NULL THEN
        RETURN keys;
    END IF;
    -- jobs that were unblocked and not claimed yet take room from those behind them
    SELECT array_agg(w.key) FILTER (WHERE w.costly),
        array_agg(w.spot) FILTER (WHERE w.blocked AND w.turn <= w.free AND NOT w.costly)
    INTO unlike, spots
    FROM (
        SELECT a.key, a.free, j.spot, j.blocked, bool_or(j.cost > 1) OVER (PARTITION BY a.key) AS costly,
            row_number() OVER (PARTITION BY a.key ORDER BY j.rank DESC, j.return_position, j.id) AS turn
        FROM unnest(alike.keys, alike.lines, alike.keeps, alike.free) AS a (key, line, keeps, free)
        CROSS JOIN LATERAL (
            SELECT * FROM (
                SELECT x.ctid AS spot, x.rank, x.return_position, x.id, cost_of(x, a.key) AS cost, true AS blocked
                FROM job x
                WHERE x.blocked_on = a.key AND x.queue = a.line AND x.queue_position IS NULL
                ORDER BY x.rank DESC, x.return_position, x.id LIMIT greatest(a.free, 0)
                FOR NO KEY UPDATE SKIP LOCKED) AS waiting
            UNION ALL
            SELECT x.ctid, x.rank, x.return_position, x.id, cost_of(x, a.key), false FROM job x
            WHERE x.blocked_on = a.key AND x.queue = a.line AND x.queue_position IS NOT NULL
                AND NOT (a.keeps AND x.started_at IS NOT NULL)
        ) AS j
    ) AS w;
    unlike := coalesce(unlike, '{}');
    WITH back AS (
        UPDATE job SET queue_position = return_position WHERE ctid = ANY (spots) RETURNING queue, task, blocked_on
    ), counted AS (
        INSERT INTO count_change SELECT queue, task, 'b' || blocked_on, 'q', count(*) FROM back
            GROUP BY queue, task, blocked_on
    ) SELECT array_agg(DISTINCT queue) INTO lines FROM back;
    PERFORM publish('queue:' || line) FROM unnest(lines) AS line;
    UPDATE gate SET opens = NULL
    WHERE key = ANY (alike.keys) AND NOT key = ANY (unlike) AND opens IS NOT NULL;
    RETURN ARRAY(SELECT unnest(keys) EXCEPT SELECT unnest(alike.keys)) || ARRAY(SELECT DISTINCT unnest(unlike));
END $$;

-- Unblocks jobs while there is room; the caller holds the gate. It goes queue by queue, so that an unblocked job of a
-- queue that is paused, or that no worker serves, holds up no other queue. Within a queue it goes in queue order: an
-- unblocked job that is not claimed yet takes room only from the jobs behind it. Locked rows are skipped: the
-- transaction that changes them checks the limit itself.
CREATE FUNCTION unblock_limit(limited text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limit_rule rule := rule_of(limited);
    line text;
BEGIN
    LOOP
        SELECT queue INTO line FROM job
        WHERE blocked_on = limited AND queue_position IS NULL AND queue > coalesce(line, '') ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF limit_rule.name IS NULL THEN
            WITH back AS (
                UPDATE job SET queue_position = return_position WHERE ctid = ANY (ARRAY(
                    SELECT ctid FROM job WHERE blocked_on = limited AND queue = line AND queue_position IS NULL
                        FOR NO KEY UPDATE SKIP LOCKED))
                RETURNING task
            )
            INSERT INTO count_change SELECT line, task, 'b' || limited, 'q', count(*) FROM back GROUP BY task;
            PERFORM publish('queue:' || line);
        ELSE
            PERFORM unblock_queue(limited, limit_rule, line, t);
        END IF;
    END LOOP;
    PERFORM set_opening(limited, t, '{}');
END $$;

-- Unblocks the jobs of one queue. Behind the first job without a free slot, only jobs that already hold their slot are
-- unblocked; otherwise expensive jobs would be starved. Behind the first job that the rate does not admit, no job is
-- unblocked. It reads the index no further than there is room: sorting all blocked jobs costs more the more there are.
CREATE FUNCTION unblock_queue(limited text, limit_rule rule, line text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    -- OFFSET 0: otherwise the planner reads the whole queue to avoid a sort (149 blocks for 6,000 jobs)
    back job[] := ARRAY(SELECT k.j FROM (
            SELECT j, j.rank, j.return_position, j.id FROM job j
            WHERE j.blocked_on = limited AND j.queue = line AND j.queue_position IS NOT NULL OFFSET 0) AS k
        ORDER BY k.rank DESC, k.return_position, k.id);
    keepers constant boolean := limit_rule.hold = 'ended' AND EXISTS (SELECT 1 FROM job
        WHERE blocked_on = limited AND queue = line AND queue_position IS NULL AND started_at IS NOT NULL);
    room record;
    candidate job;
    barred job;                 -- the first job without a free slot
    fitting bigint;             -- how many jobs fit if each has the lowest cost; NULL: any number
    unblocked text[] := '{}';
BEGIN
    SELECT 1 AS next, false AS slots_barred, NULL::text AS answer,
        CASE WHEN limit_rule.slots IS NOT NULL THEN slots_in_use(limited, limit_rule.hold) END AS taken,
        CASE WHEN limit_rule.rate IS NOT NULL THEN rate_level(limited, limit_rule, t) END AS rate
    INTO room;
    fitting := least(CASE WHEN NOT keepers THEN limit_rule.slots - room.taken END, floor(room.rate + 1e-9));
    FOR candidate IN
        SELECT * FROM job WHERE blocked_on = limited AND queue = line AND queue_position IS NULL
        ORDER BY rank DESC, return_position, id LIMIT CASE WHEN fitting < 0 THEN 0 ELSE fitting END
        FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        room := check_room(limited, limit_rule, candidate, back, room.next, room.taken, room.rate, room.slots_barred);
        EXIT WHEN room.answer = 'rate';
        IF room.answer = 'slots' THEN
            barred := candidate;
            EXIT;
        END IF;
        unblocked := unblocked || candidate.id;
    END LOOP;
    IF keepers AND barred.id IS NOT NULL THEN
        FOR candidate IN
            SELECT * FROM job WHERE blocked_on = limited AND queue = line AND queue_position IS NULL
                AND started_at IS NOT NULL
                AND (-rank, return_position, id) > (-barred.rank, barred.return_position, barred.id)
            ORDER BY rank DESC, return_position, id FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            room := check_room(limited, limit_rule, candidate, back, room.next, room.taken, room.rate, true);
            EXIT WHEN room.answer = 'rate';
            IF room.answer = 'in' THEN
                unblocked := unblocked || candidate.id;
            END IF;
        END LOOP;
    END IF;
    IF cardinality(unblocked) > 0 THEN
        WITH back AS (
            UPDATE job SET queue_position = return_position WHERE id = ANY (unblocked) RETURNING task
        )
        INSERT INTO count_change SELECT line, task, 'b' || limited, 'q', count(*) FROM back GROUP BY task;
        PERFORM publish('queue:' || line);
    END IF;
END $$;

-- Decides whether there is room for one job ('in') besides the unblocked jobs ahead of it, which are in `back` from
-- `next` on. Otherwise it returns what is used up ('slots', 'rate'). slots_barred: no job that needs a slot gets one.
CREATE FUNCTION check_room(limited text, limit_rule rule, candidate job, back job[], INOUT next int, INOUT taken bigint,
    INOUT rate float8, INOUT slots_barred boolean, OUT answer text) LANGUAGE plpgsql AS $$
DECLARE
    next_job job;
    keeps boolean;
    fit record;
BEGIN
    LOOP
        next_job := CASE WHEN next <= cardinality(back)
            AND (-back[next].rank, back[next].return_position, back[next].id)
                < (-candidate.rank, candidate.return_position, candidate.id)
            THEN back[next] ELSE candidate END;
        keeps := limit_rule.hold = 'ended' AND next_job.started_at IS NOT NULL;
        answer := 'slots';
        IF keeps OR NOT slots_barred THEN
            fit := take_room(limit_rule, taken, rate, cost_of(next_job, limited), keeps);
            answer := fit.answer;
            taken := fit.taken;
            rate := fit.rate;
        END IF;
        slots_barred := slots_barred OR answer = 'slots';
        EXIT WHEN next_job.id = candidate.id OR answer = 'rate';
        next := next + 1;
    END LOOP;
END $$;

-- Decides whether one more job fits ('in') or what is used up, and updates the slots taken and the rest of the rate.
CREATE FUNCTION take_room(limit_rule rule, INOUT taken bigint, INOUT rate float8, cost int, keeps boolean,
    OUT answer text)
LANGUAGE plpgsql AS $$
BEGIN
    IF limit_rule.slots IS NOT NULL AND NOT keeps AND NOT slots_fit(limit_rule, taken, cost) THEN
        answer := 'slots';
        RETURN;
    END IF;
    IF limit_rule.rate IS NOT NULL THEN
        IF limit_rule.rate = 0 OR rate < least(cost, capacity(limit_rule)) - 1e-9 THEN
            answer := 'rate';
            RETURN;
        END IF;
        rate := rate - least(cost, capacity(limit_rule));
    END IF;
    IF limit_rule.slots IS NOT NULL AND NOT keeps THEN
        taken := taken + least(cost, limit_rule.slots);
    END IF;
    answer := 'in';
END $$;

-- Notes that a job with these limits may have freed a slot, or has left the queue after it was unblocked. Other jobs
-- may be unblocked instead. unblock_freed_limits does so at the end of the call, because gates are the last locks of a
-- call. Rolling back to a savepoint also drops the note.
CREATE FUNCTION note_freed(limits text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF limits IS NOT NULL THEN
        PERFORM set_config('treadle.freed',
            (coalesce(nullif(current_setting('treadle.freed', true), ''), '{}')::text[] || limits)::text, true);
    END IF;
END $$;

-- Frees the slots of ended jobs, all at once. named: the limits of each job, as text; gates: all these limits. Two
-- arrays take half the time for few limits; for many, older servers would compare each id with each limit.
CREATE FUNCTION free_slots(ids text[], named text[], gates text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF cardinality(gates) <= 4 THEN
        DELETE FROM slot WHERE key = ANY (gates) AND id = ANY (ids);
    ELSE
        DELETE FROM slot
        USING (SELECT n.id, unnest(n.limits::text[]) AS key FROM unnest(ids, named) AS n (id, limits)) AS h
        CROSS JOIN LATERAL (SELECT s.ctid AS spot FROM slot s WHERE s.key = h.key AND s.id = h.id OFFSET 0) AS k
        WHERE slot.ctid = k.spot;
    END IF;
END $$;

-- Unblocks jobs of the limits that this call has freed: the ones that it noted, and `also`. It notes in `recheck` the
-- limits whose gates other transactions hold for long, and all limits if this call gets no turn. The next call that
-- advances due rows checks them again.
CREATE FUNCTION unblock_freed_limits(also text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    noted text := coalesce(nullif(current_setting('treadle.freed', true), ''), '{}');
    wanted text[] := noted::text[] || also;
    held text[] := '{}';
    changed text[];             -- limits that have to count what runs have spent
BEGIN
    IF cardinality(wanted) = 0 THEN
        RETURN;
    END IF;
    IF noted <> '{}' THEN
        PERFORM set_config('treadle.freed', '', true);
    END IF;
    IF noted <> '{}' THEN
        changed := ARRAY(SELECT DISTINCT key FROM recheck WHERE key = ANY (wanted) AND at IS NOT NULL);
    END IF;
    wanted := ARRAY(SELECT unnest(blocking_limits(wanted)) UNION SELECT unnest(changed));
    IF cardinality(wanted) = 0 THEN
        RETURN;
    END IF;
    IF may_wait_for_gates() THEN
        IF await_turn(patience()) THEN
            held := wait_for_gates(wanted);
        END IF;
    ELSIF current_setting('treadle.gates', true) = 'held' THEN
        held := try_gates(wanted);
    END IF;
    IF cardinality(changed) > 0 THEN
        PERFORM settle_noted_costs(held, t);
    END IF;
    PERFORM unblock_limits(held, t);
    wanted := ARRAY(SELECT unnest(wanted) EXCEPT SELECT unnest(held));
    INSERT INTO recheck (key) SELECT unnest(wanted);
    PERFORM publish('queue:' || (SELECT queue FROM job WHERE blocked_on = k AND queue_position IS NULL LIMIT 1))
        FROM unnest(wanted) AS k;
END $$;

-- Checks the limits that got room while other transactions held their gates. A limit may be noted twice. A note stays
-- until the call that wrote it has committed. This function waits for no gate: limits whose gates are taken are left to
-- the next call that gets the turn.
CREATE FUNCTION recheck_limits(t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    held text[];
BEGIN
    IF EXISTS (SELECT 1 FROM recheck) AND pg_try_advisory_xact_lock_shared(rules_lock()) AND try_turn() THEN
        held := try_gates(ARRAY(SELECT DISTINCT key FROM recheck LIMIT 1000));
        PERFORM unblock_noted_limits(held, t);
    END IF;
END $$;

-- Acts on the notes of these limits, whose gates the caller holds, deletes them, and unblocks their jobs.
CREATE FUNCTION unblock_noted_limits(keys text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM settle_noted_costs(keys, t);
    PERFORM unblock_limits(keys, t);
END $$;

-- Checks all limits that block a job.
CREATE FUNCTION unblock_all_limits(t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limited text := '';
    keys text[] := '{}';
BEGIN
    LOOP
        SELECT blocked_on INTO limited FROM job
        WHERE blocked_on IS NOT NULL AND queue_position IS NULL AND blocked_on > limited ORDER BY blocked_on LIMIT 1;
        EXIT WHEN NOT FOUND;
        keys := keys || limited;
    END LOOP;
    PERFORM lock_gates(keys);
    PERFORM unblock_limits(keys, t);
END $$;
