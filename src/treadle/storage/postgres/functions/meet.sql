-- Check the jobs of a page in queue order: each is admitted, blocked by a limit, or skipped. The decisions are written
-- at the end, in a few statements for all jobs. With a statement for each job, each of which also rewrote the row of
-- the rate, 100 jobs behind one limit cost 19 times as much. `walk` starts the admitted jobs.
--
-- page, positions, wants: their ids, the ctids of their rows, and the limits they name, as text. own: the limit of
-- their queue, if it has a rule. past: a job that its queue's rule blocks is skipped (the queue is known to be shut, or
-- ids are named), and does not end the page. asking: those of the tasks that have room. gates: those that are held; a
-- job with another one is skipped. whole: these are all gates that the page names. bars: limits of which an earlier job
-- could not be taken, which matters for limits in strict order.
--
-- Rows are locked only as far as they may be taken: another claim would skip them, and find nothing.
--
-- -> t: when they start, not before starts recorded meanwhile, and not before the slots that count as free were freed
-- (`moment`: the time of the test's clock, or NULL). taken, spots: the admitted jobs and the ctids of their
-- rows. slot_keys, slot_ids, slot_costs: the slots they take (again: some may have theirs already). room_left: the rest
-- of `rooms`. aside: how many were blocked. last: the last job checked. closed: the queue is shut, and only jobs that
-- need nothing of it can start. freed: a limit that a job is no longer blocked by, because another one blocks it. late:
-- it is past `until`. passed: jobs were skipped because of gates, locks or strict order. moving: open
-- transactions are freeing slots. barred: `bars`, extended. noted: limits of which a slot that counts as free
-- belongs to a job that is still to be unblocked (`recheck`); if there are any, nothing was decided.
CREATE FUNCTION meet(page text[], positions tid[], wants text[], share int, line text, own text, ruled boolean, past boolean,
    named boolean, asking text[], tasks text[], rooms int[], holds text[], gates text[], whole boolean, bars text[], most_aside int,
    until timestamptz, moment float8, INOUT t float8, OUT taken text[], OUT spots tid[], OUT slot_keys text[], OUT slot_ids text[],
    OUT slot_costs int[], OUT again boolean, OUT room_left int[], OUT aside int, OUT last int, OUT closed boolean, OUT freed text,
    OUT late boolean, OUT passed boolean, OUT moving boolean, OUT barred text[], OUT noted text[])
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    goal constant int := share;
    by_task constant boolean := tasks IS NOT NULL AND (named OR rooms IS NOT NULL);
    own_at constant int := CASE WHEN own IS NULL THEN 1 ELSE 0 END;
    own_pos constant int := array_position(gates, own);
    chunk tid[];
    r record;
    task_at int;
    blocked text;
    cost int;
    pos int;
    at int := 1;                -- the index in the page of the first job not read yet
    known text[];               -- the limits of the job before: usually they are the same
    asked int[];                -- their indexes in `gates`
    absent boolean;             -- one of them is missing there
    -- what is left of the limits whose gates are held; counted once, then charged
    s record;
    slots int[];
    used_up bigint[];
    caps int[];
    levels float8[];
    first record;               -- of the limits that are partly used: the first blocked job of this queue
    keeps boolean[];
    counted_at float8 := t;     -- when the levels of the rates were counted
    free_soon text[];           -- blocking limits whose slots open transactions are freeing
    rated text[] := '{}';       -- limits whose next opening may have changed
    aside_spots tid[] := '{}';
    aside_at text[] := '{}';
BEGIN
    taken := '{}';
    spots := '{}';
    slot_keys := '{}';
    slot_ids := '{}';
    slot_costs := '{}';
    again := false;
    room_left := rooms;
    last := 0;
    closed := false;
    late := false;
    passed := false;
    moving := false;
    noted := '{}';
    barred := bars;
    asked[0] := own_pos;
    IF cardinality(gates) > 0 THEN
        s := states_of(gates, line, t);
        IF s.last_start > t THEN
            t := s.last_start;
            s := states_of(gates, line, t);
        END IF;
        -- a new statement: the call that freed a slot has noted its limit in the same transaction
        noted := ARRAY(SELECT DISTINCT key FROM recheck WHERE key = ANY (gates));
        IF cardinality(noted) > 0 THEN
            RETURN;
        END IF;
        counted_at := t;
        t := greatest(t, instant(moment));
        slots := s.slots;
        used_up := s.taken;
        caps := s.caps;
        levels := s.levels;
        keeps := s.keeps;
        first := first_blocked(gates, line, slots, used_up, caps, levels, keeps);
    END IF;
    WHILE last < cardinality(page) AND cardinality(taken) < goal AND NOT (closed OR late) AND freed IS NULL
        AND cardinality(aside_spots) < most_aside
    LOOP
        chunk := positions[last + 1 : last + goal - cardinality(taken)];
        FOR r IN
            SELECT j.ctid AS spot, j.id, j.rank, j.queue_position, j.task, j.limits, j.costs, j.function_done, j.started_at IS NOT NULL AS begun,
                j.blocked_on
            FROM job j WHERE j.ctid = ANY (chunk) AND j.queue_position + 0 IS NOT NULL
                -- leave the rows whose gates other transactions hold to these
                AND (whole OR NOT ruled OR named OR j.limits IS NULL OR j.limits <@ gates)
            ORDER BY j.rank DESC, j.queue_position, j.id FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            IF page[at] = r.id THEN
                at := at + 1;
            ELSIF ruled AND NOT named AND array_position(page, r.id, at) > at THEN  -- those before it are locked, or gone
                barred := barred || limits_in(wants[at : array_position(page, r.id, at) - 1]) || own;
                passed := true;
                at := array_position(page, r.id, at) + 1;
            END IF;
            IF by_task THEN
                task_at := array_position(tasks, r.task);
                CONTINUE WHEN task_at IS NULL OR room_left[task_at] <= 0;
            END IF;
            CONTINUE WHEN r.id = ANY (holds);
            blocked := NULL;
            IF ruled AND r.limits IS DISTINCT FROM known THEN
                known := r.limits;
                absent := false;
                FOR m IN 1 .. coalesce(cardinality(known), 0) LOOP
                    asked[m] := array_position(gates, known[m]);
                    absent := absent OR asked[m] IS NULL;
                END LOOP;
            END IF;
            IF absent THEN
                passed := true;
                barred := barred || known;
                CONTINUE;
            END IF;
            IF ruled AND NOT r.function_done THEN         -- a job whose function is done passes all limits
                FOR m IN own_at .. coalesce(cardinality(known), 0) LOOP
                    pos := asked[m];
                    cost := CASE m WHEN 0 THEN 1 ELSE greatest(r.costs[m], 1) END;
                    IF levels[pos] < least(cost, caps[pos]) - 1e-9 OR NOT coalesce((r.begun AND keeps[pos])
                        OR (slots[pos] > 0 AND used_up[pos] + least(cost, slots[pos]) <= slots[pos]), true)
                    THEN
                        blocked := gates[pos];
                        EXIT;
                    END IF;
                END LOOP;
                -- cheap jobs would starve an earlier one that needs more room than there is
                FOR m IN 1 .. CASE WHEN blocked IS NULL THEN coalesce(cardinality(known), 0) ELSE 0 END LOOP
                    pos := asked[m];
                    cost := first.costs[pos];
                    IF cost > 1 AND NOT (r.begun AND keeps[pos])
                        AND (first.ranks[pos], first.positions[pos], first.ids[pos]) < (-r.rank, r.queue_position, r.id)
                        AND (levels[pos] < least(cost, caps[pos]) - 1e-9 OR NOT (first.kept[pos]
                            OR coalesce(used_up[pos] + least(cost, slots[pos]) <= slots[pos], true)))
                    THEN
                        blocked := gates[pos];
                        EXIT;
                    END IF;
                END LOOP;
            END IF;
            IF blocked = own THEN
                CONTINUE WHEN past;
                closed := true;
                last := array_position(page, r.id);
                EXIT;
            ELSIF blocked IS NOT NULL THEN
                aside_spots := aside_spots || r.spot;
                aside_at := aside_at || blocked;
                IF first.costs[pos] IS NULL
                    OR (-r.rank, r.queue_position, r.id) < (first.ranks[pos], first.positions[pos], first.ids[pos])
                THEN
                    first.costs[pos] := cost;
                    first.ranks[pos] := -r.rank;
                    first.positions[pos] := r.queue_position;
                    first.ids[pos] := r.id;
                    first.kept[pos] := r.begun AND keeps[pos];
                END IF;
                late := clock_timestamp() > until;
                freed := CASE WHEN r.blocked_on <> blocked THEN r.blocked_on END;
                IF late OR freed IS NOT NULL OR cardinality(aside_spots) >= most_aside THEN
                    last := array_position(page, r.id);
                    EXIT;
                END IF;
                CONTINUE;
            END IF;
            IF ruled AND NOT (r.function_done OR r.begun OR named) THEN
                -- strict order: an earlier job of this limit that this claim cannot take starts first all the same
                FOR m IN own_at .. coalesce(cardinality(known), 0) LOOP
                    pos := asked[m];
                    IF keeps[pos] AND slots[pos] = 1 AND (gates[pos] = ANY (barred) OR (s.contested[pos]
                        AND waits_before(gates[pos], line, r.rank, r.queue_position, r.id, asking, holds, t)))
                    THEN
                        blocked := gates[pos];
                        EXIT;
                    END IF;
                END LOOP;
                IF blocked IS NOT NULL THEN
                    passed := true;
                    barred := barred || known;
                    CONTINUE;
                END IF;
            END IF;
            IF ruled THEN
                FOR m IN own_at .. coalesce(cardinality(known), 0) LOOP
                    pos := asked[m];
                    cost := CASE m WHEN 0 THEN 1 ELSE greatest(r.costs[m], 1) END;
                    -- where slots are held until the end, a job whose function is done takes one too
                    IF (CASE WHEN keeps[pos] THEN NOT r.begun ELSE NOT r.function_done END) THEN
                        used_up[pos] := used_up[pos] + cost;
                    END IF;
                    IF NOT r.function_done AND caps[pos] IS NOT NULL THEN
                        levels[pos] := levels[pos] - least(cost, caps[pos]);
                    END IF;
                END LOOP;
            END IF;
            IF r.limits IS NOT NULL THEN
                slot_keys := slot_keys || r.limits;
                slot_costs := slot_costs || r.costs;
                slot_ids := slot_ids || array_fill(r.id, ARRAY[cardinality(r.limits)]);
                again := again OR r.begun OR r.function_done;
            END IF;
            taken := taken || r.id;
            spots := spots || r.spot;
            IF room_left[task_at] IS NOT NULL THEN
                room_left[task_at] := room_left[task_at] - 1;
            END IF;
        END LOOP;
        EXIT WHEN closed OR late OR freed IS NOT NULL OR cardinality(aside_spots) >= most_aside;
        last := last + cardinality(chunk);
        IF ruled AND NOT named AND at <= last THEN
            barred := barred || limits_in(wants[at : last]) || own;
            passed := true;
            at := last + 1;
        END IF;
    END LOOP;
    IF levels IS NOT NULL THEN
        rated := charge(gates, s.levels, levels, s.pers, s.gone, counted_at, t);
    END IF;
    IF cardinality(aside_spots) > 0 THEN
        free_soon := freed_soon(gates, s.taken, keeps, aside_at);
        WITH blocked AS (
            UPDATE job SET queue_position = NULL, blocked_on = x.limited, due_at = deadline_at
            FROM unnest(aside_spots, aside_at) AS x (spot, limited) WHERE job.ctid = x.spot AND NOT x.limited = ANY (free_soon)
            RETURNING job.queue, job.task, job.blocked_on
        )
        INSERT INTO count_change SELECT b.queue, b.task, 'q', 'b' || b.blocked_on, count(*) FROM blocked b
        GROUP BY b.queue, b.task, b.blocked_on;
        moving := cardinality(free_soon) > 0;
        barred := barred || free_soon;          -- it may be free for the next page, which counts it again
        freed := CASE WHEN NOT aside_at[cardinality(aside_at)] = ANY (free_soon) THEN freed END;
        rated := rated || ARRAY(SELECT k.key FROM unnest(gates, caps) AS k (key, cap)
            WHERE k.cap IS NOT NULL AND k.key = ANY (aside_at));
    END IF;
    aside := cardinality(aside_spots);
    IF cardinality(rated) > 0 THEN
        -- as of the count: a rate that has opened since opens for the blocked jobs first
        PERFORM set_opening(k, counted_at, taken) FROM unnest(looked_for(rated)) AS k;
    END IF;
END $$;

-- By index: the first job of this queue that each of these limits blocks, if the limit is partly used: where nothing is
-- used any job starts, and where nothing is left none does. ranks: negative, for comparison with the turn of others.
-- kept: it holds its slot, so only the rate blocks it.
CREATE FUNCTION first_blocked(keys text[], line text, slots int[], used_up bigint[], caps int[], levels float8[], keeps boolean[],
    OUT costs int[], OUT ranks int[], OUT positions float8[], OUT ids text[], OUT kept boolean[]) LANGUAGE plpgsql AS $$
BEGIN
    SELECT array_agg(b.cost ORDER BY k.n), array_agg(b.rank ORDER BY k.n), array_agg(b.return_position ORDER BY k.n),
        array_agg(b.id ORDER BY k.n), array_agg(b.begun AND k.keeps ORDER BY k.n)
    INTO costs, ranks, positions, ids, kept
    FROM unnest(keys, slots, used_up, caps, levels, keeps) WITH ORDINALITY AS k (key, slots, used, cap, level, keeps, n)
    LEFT JOIN LATERAL (
        SELECT greatest(j.costs[array_position(j.limits, k.key)], 1) AS cost, -j.rank AS rank, j.return_position, j.id,
            j.started_at IS NOT NULL AS begun
        FROM job j WHERE j.blocked_on = k.key AND j.queue = line AND j.queue_position IS NULL
            AND ((k.used > 0 AND k.used < k.slots) OR (k.level > 0 AND k.level < k.cap))
        ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1) AS b ON true;
END $$;

-- The limits that these texts name.
CREATE FUNCTION limits_in(wants text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    found text[] := '{}';
    each text;
BEGIN
    FOREACH each IN ARRAY wants LOOP
        found := found || each::text[];
    END LOOP;
    RETURN found;
END $$;

-- Record what the rates were charged by jobs that start at t, from their levels before, at `counted_at`, and now -> these
-- limits.
CREATE FUNCTION charge(keys text[], before float8[], levels float8[], pers float8[], gone int[], counted_at float8,
    t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    x record;
BEGIN
    IF before = levels THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(k.key) AS keys, array_agg(round(k.before - k.level)::int) AS costs, array_agg(k.per) AS pers,
        array_agg(k.gone) AS gone, array_agg(k.level) AS levels INTO x
    FROM unnest(keys, before, levels, pers, gone) AS k (key, before, level, per, gone) WHERE k.level < k.before;
    PERFORM spend(x.keys, x.costs, x.pers, x.gone, x.levels, counted_at, t);
    RETURN x.keys;
END $$;

-- Those of the limits `wanted` of which counted slots are being freed by an open transaction, or were freed since the
-- count. That transaction may have looked for blocked jobs already, and would not see those that this claim is about to
-- block. The remaining rows are locked: a transaction that frees one of them looks after this claim has committed.
CREATE FUNCTION freed_soon(keys text[], counted bigint[], keeps boolean[], wanted text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT k.key FROM unnest(keys, counted, keeps) AS k (key, counted, keeps)
        CROSS JOIN LATERAL (SELECT coalesce(sum(s.cost), 0) AS held FROM (
            SELECT slot.cost FROM slot WHERE slot.key = k.key AND (slot.live OR k.keeps) FOR SHARE SKIP LOCKED) AS s) AS h
        WHERE k.key = ANY (wanted) AND k.counted > 0 AND NOT starts_with(k.key, 'queue:') AND k.counted > h.held);
END $$;

-- Whether a job that this limit blocks, or that was unblocked, is ahead of this one. If something was freed and no job
-- was unblocked yet, that happens now.
CREATE FUNCTION waits_before(limited text, line text, at_rank smallint, at_position float8, at_id text, tasks text[],
    holds text[], t float8) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT (-j.rank, j.return_position, j.id) < (-at_rank, at_position, at_id) FROM job j
        WHERE j.blocked_on = limited AND j.queue = line AND j.queue_position IS NULL ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1)
    THEN
        PERFORM call_in_for(limited, t);
    END IF;
    RETURN EXISTS (SELECT 1 FROM job j WHERE j.blocked_on = limited AND j.queue = line AND j.queue_position IS NOT NULL
        AND (-j.rank, j.queue_position, j.id) < (-at_rank, at_position, at_id)
        AND (tasks IS NULL OR j.task = ANY (tasks)) AND NOT j.id = ANY (holds));
END $$;
