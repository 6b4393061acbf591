-- Ask the jobs of a page in turn: each is let through, blocked by a limit, or passed over. What was decided is written at
-- the end, in a few statements for all of them: a statement for each, and the rate's one row written again for each, made
-- 100 jobs behind one limit cost 19 times as much. `walk` starts those that are let through.
-- page, places, wants: their ids, where their rows are, and which limits they name, as text; own: the limit of their queue,
-- if it has a rule; past: a job that its queue's rule blocks is passed over (the queue is known to be shut, or ids are named),
-- and does not end the page; asking: of the tasks those that there is room for; gates: those that are held, and a job with
-- another is passed by; whole: these are all that the page names; bars: limits of which an earlier job could not be taken,
-- which counts where they are in strict order.
-- Rows are locked only as far as they may be taken: another claim would pass them by, and find nobody.
-- -> t: when they start, not before starts that were written down meanwhile; who is let through, where their rows are, and the
-- slots they take (again: some may have theirs already); what is left of `rooms`; how many were blocked; the last that was
-- looked at; whether the queue is shut, and only jobs that need nothing of it move; a limit that a job let go of, for
-- another one blocked it; whether it is `until`; whether gates were missing; whether open transactions free something.
CREATE FUNCTION meet(page text[], places tid[], wants text[], share int, line text, own text, ruled boolean, past boolean,
    named boolean, asking text[], tasks text[], rooms int[], holds text[], gates text[], whole boolean, bars text[], most_aside int,
    until timestamptz, INOUT t float8, OUT taken text[], OUT spots tid[], OUT slot_keys text[], OUT slot_ids text[],
    OUT slot_costs int[], OUT again boolean, OUT room_left int[], OUT aside int, OUT last int, OUT closed boolean, OUT freed text,
    OUT late boolean, OUT passed boolean, OUT moving boolean, OUT barred text[])
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
    at int := 1;                -- of the page, the first that has not come yet
    known text[];               -- the limits of the one before: mostly they are the same
    asked int[];                -- where these stand among the gates
    absent boolean;             -- one of them does not
    -- what is left of the limits whose gates are held; counted once, then charged
    s record;
    slots int[];
    used_up bigint[];
    caps int[];
    levels float8[];
    keeps boolean[];
    free_soon text[];           -- of those that block somebody, the ones that open transactions free slots of
    rated text[] := '{}';       -- those whose next opening may be another one now
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
    barred := bars;
    asked[0] := own_pos;
    IF cardinality(gates) > 0 THEN
        s := states_of(gates, line, t);
        IF s.last_start > t THEN
            t := s.last_start;
            s := states_of(gates, line, t);
        END IF;
        slots := s.slots;
        used_up := s.taken;
        caps := s.caps;
        levels := s.levels;
        keeps := s.keeps;
    END IF;
    WHILE last < cardinality(page) AND cardinality(taken) < goal AND NOT (closed OR late) AND freed IS NULL
        AND cardinality(aside_spots) < most_aside
    LOOP
        chunk := places[last + 1 : last + goal - cardinality(taken)];
        FOR r IN
            SELECT j.ctid AS spot, j.id, j.rank, j.place, j.task, j.limits, j.costs, j.ran, j.started_at IS NOT NULL AS begun,
                j.parked
            FROM job j WHERE j.ctid = ANY (chunk) AND j.place + 0 IS NOT NULL
                -- rows whose gates other transactions hold are theirs to lock
                AND (whole OR NOT ruled OR named OR j.limits IS NULL OR j.limits <@ gates)
            ORDER BY j.rank DESC, j.place, j.id FOR NO KEY UPDATE SKIP LOCKED
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
            IF ruled AND NOT r.ran THEN         -- who ran asks nobody
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
            END IF;
            IF blocked = own THEN
                CONTINUE WHEN past;
                closed := true;
                last := array_position(page, r.id);
                EXIT;
            ELSIF blocked IS NOT NULL THEN
                aside_spots := aside_spots || r.spot;
                aside_at := aside_at || blocked;
                late := clock_timestamp() > until;
                freed := CASE WHEN r.parked <> blocked THEN r.parked END;
                IF late OR freed IS NOT NULL OR cardinality(aside_spots) >= most_aside THEN
                    last := array_position(page, r.id);
                    EXIT;
                END IF;
                CONTINUE;
            END IF;
            IF ruled AND NOT (r.ran OR r.begun OR named) THEN
                -- strict order: an earlier job of this limit that this claim cannot take goes first all the same
                FOR m IN own_at .. coalesce(cardinality(known), 0) LOOP
                    pos := asked[m];
                    IF keeps[pos] AND slots[pos] = 1 AND (gates[pos] = ANY (barred) OR (s.contested[pos]
                        AND waits_before(gates[pos], line, r.rank, r.place, r.id, asking, holds, t)))
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
                    -- of limits that keep slots who ran takes his own all the same
                    IF (CASE WHEN keeps[pos] THEN NOT r.begun ELSE NOT r.ran END) THEN
                        used_up[pos] := used_up[pos] + cost;
                    END IF;
                    IF NOT r.ran AND caps[pos] IS NOT NULL THEN
                        levels[pos] := levels[pos] - least(cost, caps[pos]);
                    END IF;
                END LOOP;
            END IF;
            IF r.limits IS NOT NULL THEN
                slot_keys := slot_keys || r.limits;
                slot_costs := slot_costs || r.costs;
                slot_ids := slot_ids || array_fill(r.id, ARRAY[cardinality(r.limits)]);
                again := again OR r.begun OR r.ran;
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
        rated := charge(gates, s.levels, levels, s.pers, s.gone, t);
    END IF;
    IF cardinality(aside_spots) > 0 THEN
        free_soon := freed_soon(gates, s.taken, keeps, aside_at);
        UPDATE job SET place = NULL, parked = x.limited, due_at = deadline_at
        FROM unnest(aside_spots, aside_at) AS x (spot, limited) WHERE job.ctid = x.spot AND NOT x.limited = ANY (free_soon);
        moving := cardinality(free_soon) > 0;
        barred := barred || free_soon;          -- counted anew for the next page, it may be free
        freed := CASE WHEN NOT aside_at[cardinality(aside_at)] = ANY (free_soon) THEN freed END;
        rated := rated || ARRAY(SELECT k.key FROM unnest(gates, caps) AS k (key, cap)
            WHERE k.cap IS NOT NULL AND k.key = ANY (aside_at));
    END IF;
    aside := cardinality(aside_spots);
    IF cardinality(rated) > 0 THEN
        PERFORM set_opening(k, t, taken) FROM unnest(looked_for(rated)) AS k;
    END IF;
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

-- Write down what the rates were charged: what they had before, and have now -> these limits.
CREATE FUNCTION charge(keys text[], before float8[], levels float8[], pers float8[], gone int[], t float8) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    x record;
BEGIN
    IF before = levels THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(k.key) AS keys, array_agg(round(k.before - k.level)::int) AS costs, array_agg(k.per) AS pers,
        array_agg(k.gone) AS gone, array_agg(k.level) AS levels INTO x
    FROM unnest(keys, before, levels, pers, gone) AS k (key, before, level, per, gone) WHERE k.level < k.before;
    PERFORM spend(x.keys, x.costs, x.pers, x.gone, x.levels, t);
    RETURN x.keys;
END $$;

-- Of the limits `keys` those among `wanted` of which slots that were counted are being freed by a transaction that is not over, or
-- were since they were counted. It may have looked for blocked jobs already, and would not see those that this claim is about to
-- block. The rows that are still there are locked: a transaction that frees one of them looks after this claim is over.
CREATE FUNCTION freed_soon(keys text[], counted bigint[], keeps boolean[], wanted text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT k.key FROM unnest(keys, counted, keeps) AS k (key, counted, keeps)
        CROSS JOIN LATERAL (SELECT coalesce(sum(s.cost), 0) AS held FROM (
            SELECT slot.cost FROM slot WHERE slot.key = k.key AND (slot.live OR k.keeps) FOR SHARE SKIP LOCKED) AS s) AS h
        WHERE k.key = ANY (wanted) AND k.counted > 0 AND NOT starts_with(k.key, 'queue:') AND k.counted > h.held);
END $$;

-- Whether a job of this limit that is blocked by it, or came back, stands before this one. If something was freed and
-- nobody has come back yet, that happens now.
CREATE FUNCTION waits_before(limited text, line text, at_rank smallint, at_place float8, at_id text, tasks text[],
    holds text[], t float8) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT (-j.rank, j.joined_at, j.id) < (-at_rank, at_place, at_id) FROM job j
        WHERE j.parked = limited AND j.queue = line AND j.place IS NULL ORDER BY j.rank DESC, j.joined_at, j.id LIMIT 1)
    THEN
        PERFORM call_in_for(limited, t);
    END IF;
    RETURN EXISTS (SELECT 1 FROM job j WHERE j.parked = limited AND j.queue = line AND j.place IS NOT NULL
        AND (-j.rank, j.place, j.id) < (-at_rank, at_place, at_id)
        AND (tasks IS NULL OR j.task = ANY (tasks)) AND NOT j.id = ANY (holds));
END $$;
