-- A claim along lines where somebody has to be asked: whether its limits let it through, whether there is room for its
-- task. After `most_aside` jobs have stepped aside, or half a second, it ends and says so, to be asked again: what has been
-- moved is committed, and neither does anybody wait longer for it, nor is it ever undone because a call may not last so
-- long. What it is told, and what it answers: see claim.sql.
CREATE FUNCTION walk(as_worker text, of_name text, at_slot int, lines text[], shares int[], tasks text[], leases float8[],
    rooms int[], most int, otherwise float8, ids text[], holds text[], ruled boolean, t float8)
RETURNS TABLE (
    spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    most_aside constant int := 1000;
    wide constant int := 256;   -- of a page, at most
    until timestamptz := clock_timestamp() + interval '500 ms';
    got text[] := '{}';
    aside int := 0;
    unfinished boolean := false;
    turn record;
    met record;
    line text;
    left_over int;
    room int[] := rooms;
    own text;
    of_queue boolean;           -- there is a rule for it
    named boolean := cardinality(ids) > 0;
    shut boolean;
    page text[];
    spots tid[];
    wanted text[];              -- the limits each of them names, as text
    ranks smallint[];
    places float8[];
    at_rank smallint;           -- the last that was looked at in this line: what is before it is not walked again
    at_place float8;
    at_id text;
    back_rank smallint;         -- the first that came back
    back_place float8;
    gates text[];
    whole boolean;              -- the next of this line are tried together
BEGIN
    FOR turn IN
        SELECT q.line AS queue, CASE WHEN half = 0 THEN q.share ELSE most END AS share
        FROM generate_series(0, 1) AS half, unnest(lines, shares) AS q (line, share)
        WHERE NOT named
        UNION ALL (
            SELECT j.queue, most FROM unnest(ids) WITH ORDINALITY AS i (id, n)
            JOIN LATERAL (SELECT x.queue FROM job x WHERE x.id = i.id
                UNION ALL SELECT x.queue FROM ended x WHERE x.id = i.id OFFSET 0) AS j ON true
            GROUP BY j.queue ORDER BY min(i.n))
    LOOP
        line := turn.queue;
        left_over := least(turn.share, most - cardinality(got));
        own := 'queue:' || line;
        shut := false;
        at_id := NULL;
        whole := rooms IS NULL AND NOT named;
        WHILE left_over > 0 AND NOT unfinished LOOP
            IF whole THEN
                SELECT * INTO met FROM together(line, tasks, holds, least(left_over, wide), t);
                EXIT WHEN met.busy OR met.spots IS NULL;
                t := met.moment;
                whole := met.taken IS NOT NULL;
            END IF;
            IF NOT whole THEN
                SELECT array_agg(p.id), array_agg(p.spot), array_agg(p.rank), array_agg(p.place), array_agg(p.wants)
                INTO page, spots, ranks, places, wanted
                FROM page_of(line, tasks, CASE WHEN named THEN ids END, shut, at_rank, at_place, at_id,
                    least(greatest(left_over, 8), wide)) AS p;
                EXIT WHEN page IS NULL;
                -- rules after the page: one that was set before a job of it was sent is seen
                ruled := ruled OR EXISTS (SELECT 1 FROM rule);
                of_queue := ruled AND (rule_of(own)).name IS NOT NULL;
                -- gates before rows, all of a page and in their order: two claims do not lock each other out
                IF ruled THEN
                    BEGIN
                        gates := ARRAY(
                            SELECT own WHERE of_queue
                            UNION SELECT unnest(w.limits::text[]) FROM (SELECT DISTINCT unnest(wanted)) AS w (limits));
                        PERFORM lock_gates(gates);
                        t := start_after(gates, t);
                    EXCEPTION WHEN lock_not_available THEN
                        EXIT;       -- somebody counts for long: the rest of this line has to wait
                    END;
                END IF;
                SELECT * INTO met FROM meet(page, spots, left_over, CASE WHEN of_queue THEN own END, ruled, shut OR named,
                    tasks, room, ARRAY(SELECT unnest(holds) INTERSECT SELECT unnest(page)), most_aside - aside, until, t);
            END IF;
            IF cardinality(met.taken) > 0 THEN
                -- they run now, and hold the slots they name
                RETURN QUERY WITH begun AS (
                    UPDATE job SET state = 2, version = job.version + 1, place = NULL, parked = NULL, worker = as_worker,
                        due_at = t + coalesce(nullif(job.lease, 0), leases[array_position(tasks, job.task)], otherwise),
                        started_at = t, updated_at = t,
                        key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL ELSE key END
                    WHERE ctid = ANY (met.spots)
                    RETURNING id, rank, ran, limits, costs, job.spec, job.state, job.version, job.attempt, job.lost,
                        job.worker, job.place, job.joined_at, job.due_at, job.created_at, job.started_at, job.updated_at,
                        CASE WHEN NOT is_bare(job) THEN more(job) END AS more
                ), held AS (
                    INSERT INTO slot (key, id, cost, live)
                    SELECT unnest(b.limits), b.id, unnest(b.costs), true FROM begun b
                    WHERE whole AND b.limits IS NOT NULL
                ), kept AS (        -- who has begun before may hold them already
                    INSERT INTO slot (key, id, cost, live)
                    SELECT unnest(b.limits), b.id, unnest(b.costs), NOT b.ran FROM begun b
                    WHERE NOT whole AND b.limits IS NOT NULL
                    ON CONFLICT (key, id) DO UPDATE SET live = excluded.live WHERE slot.live <> excluded.live
                )
                SELECT b.spec, b.state, b.version, b.attempt, b.lost, b.worker, b.place, b.joined_at, b.due_at,
                    b.created_at, b.started_at, b.updated_at, b.more
                FROM begun b ORDER BY b.rank DESC, b.joined_at, b.id;
                got := got || met.taken;
                left_over := left_over - cardinality(met.taken);
            END IF;
            -- the rest is locked by others: to ask for their gates, with these held, would be to wait for each other
            EXIT WHEN whole AND cardinality(met.taken) < wide;
            room := met.room_left;
            aside := aside + met.aside;
            unfinished := aside >= most_aside OR met.late;
            shut := shut OR met.closed;
            at_rank := ranks[met.last];
            at_place := places[met.last];
            at_id := page[met.last];
            IF met.freed IS NOT NULL THEN
                PERFORM call_in_for(met.freed, t);
                -- who came back may stand before this spot; from the head, all who are not wanted would be walked past
                -- again for each who steps aside
                SELECT j.rank, j.place INTO back_rank, back_place FROM job j
                WHERE j.parked = met.freed AND j.queue = line AND j.place IS NOT NULL
                ORDER BY j.rank DESC, j.place, j.id LIMIT 1;
                IF FOUND AND (-back_rank, back_place) <= (-at_rank, at_place) THEN
                    at_rank := back_rank;
                    at_place := back_place;
                    at_id := '';
                END IF;
            END IF;
        END LOOP;
    END LOOP;
    IF cardinality(got) > 0 THEN
        INSERT INTO ticket (worker, slot, ticket, jobs, at) VALUES (of_name, at_slot, as_worker, got, t)
        ON CONFLICT (worker, slot) DO UPDATE
        SET ticket = excluded.ticket, at = excluded.at, jobs = excluded.jobs;
    END IF;
    version := CASE WHEN unfinished THEN 2 ELSE 0 END;
    attempt := aside;
    due_at := next_moment(lines, ids, t, true, false);
    created_at := t;
    RETURN NEXT;
END $$;

-- The first of a line, if all of them may start: then nobody has to be asked by himself. What each limit has left is held
-- against what they cost together, and they are locked as they are read, as in a line without limits: 316,000 instructions
-- for a job that is drained instead of 344,000. Otherwise `taken` is NULL, and they are asked in turn: one who has had a
-- turn before, or was let back in line, goes by other rules. `spots` is NULL if there is nobody.
-- -> as `meet` answers, but `last`: what is left of the line is looked at from its head; the moment they start; whether
-- somebody counts for so long that this line has to wait.
CREATE FUNCTION together(line text, tasks text[], holds text[], share int, t float8, OUT taken text[], OUT spots tid[],
    OUT room_left int[], OUT aside int, OUT last int, OUT closed boolean, OUT freed text, OUT late boolean,
    OUT moment float8, OUT busy boolean)
LANGUAGE plpgsql AS $$
DECLARE
    special boolean;
    keys text[];                -- the limits they name, what for, and how many of them so
    costs int[];
    counts int[];
    limited text;
    state record;
    asked bigint;               -- what they cost together, and what of it the rate is charged
    starts bigint;
    rated text[] := '{}';
    due bigint[] := '{}';
BEGIN
    moment := t;
    busy := false;
    aside := 0;
    closed := false;
    late := false;
    WITH page AS (
        SELECT j.ctid AS spot, j.id, j.limits, j.costs, j.ran OR j.started_at IS NOT NULL OR j.parked IS NOT NULL AS special
        FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND (tasks IS NULL OR j.task = ANY (tasks))
            AND j.id NOT IN (SELECT unnest(holds))
        ORDER BY j.rank DESC, j.place, j.id LIMIT share
        FOR NO KEY UPDATE SKIP LOCKED
    ), alike AS (
        SELECT p.limits, p.costs, count(*) AS n FROM page p WHERE p.limits IS NOT NULL GROUP BY p.limits, p.costs
    )
    SELECT p.ids, p.spots, p.special, a.keys, a.costs, a.counts INTO taken, spots, special, keys, costs, counts
    FROM (SELECT array_agg(id) AS ids, array_agg(spot) AS spots, bool_or(page.special) AS special FROM page) AS p,
        (SELECT array_agg(u.key) AS keys, array_agg(u.cost) AS costs, array_agg(n) AS counts
            FROM alike, unnest(alike.limits, alike.costs) AS u (key, cost)) AS a;
    -- rules after the page: one that was set before a job of it was sent is seen
    IF special OR (rule_of('queue:' || line)).name IS NOT NULL THEN
        taken := NULL;
    END IF;
    IF taken IS NULL OR keys IS NULL OR NOT EXISTS (SELECT 1 FROM rule) THEN
        RETURN;
    END IF;
    BEGIN
        PERFORM lock_gates(keys);
        moment := start_after(keys, t);
        FOR limited IN SELECT DISTINCT k FROM unnest(keys) AS k LOOP
            SELECT * INTO state FROM state_of(limited, moment);
            SELECT sum(p.cost * p.n), sum(least(p.cost, state.cap) * p.n) INTO asked, starts
            FROM unnest(keys, costs, counts) AS p (key, cost, n) WHERE p.key = limited;
            IF state.level < starts - 1e-9 OR (state.slots IS NOT NULL AND state.used + asked > state.slots) THEN
                RAISE SQLSTATE 'TR002';
            END IF;
            IF state.cap IS NOT NULL THEN
                rated := rated || limited;
                due := due || starts;
            END IF;
        END LOOP;
    EXCEPTION
        WHEN SQLSTATE 'TR002' THEN
            -- and lets go of the gates: those who are asked in turn may stand before these, and theirs come first
            taken := NULL;
            moment := t;
            RETURN;
        WHEN lock_not_available THEN
            busy := true;
            RETURN;
    END;
    FOR n IN 1 .. cardinality(rated) LOOP
        PERFORM spend(rated[n], rule_of(rated[n]), due[n]::int, moment);
    END LOOP;
    PERFORM set_opening(k, moment) FROM unnest(looked_for(rated)) AS k;
END $$;

-- Ask the jobs of a page in turn, whose gates are held: each is let through, steps aside, or is passed over. What was
-- decided is written at the end, in a few statements for all of them: a statement for each, and the rate's one row
-- written again for each, made 100 jobs behind one limit cost 19 times as much. Those let through `walk` starts.
-- page, spots: their ids, and where their rows are; own: the limit of their queue, if it has one; past: who is held back by
-- that is passed over (it is known to be shut, or ids are named), and does not end the page.
-- Rows are locked only as far as they may be taken: another claim would pass them by, and find nobody.
-- -> who is let through, and where their rows are; what is left of `rooms`; how many stepped aside; the last that was
-- looked at; whether the queue is shut, and nobody moves but those who need nothing of it; a limit somebody let go of, for
-- another one shut him out; whether it is `until`.
CREATE FUNCTION meet(page text[], places tid[], share int, own text, ruled boolean, past boolean, tasks text[],
    rooms int[], holds text[], most_aside int, until timestamptz, t float8, OUT taken text[], OUT spots tid[],
    OUT room_left int[], OUT aside int, OUT last int, OUT closed boolean, OUT freed text, OUT late boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    goal int := share;
    chunk tid[];
    r record;
    task_at int;
    blocked text;
    limited text;
    cost int;
    pos int;
    own_at constant int := CASE WHEN own IS NULL THEN 1 ELSE 0 END;
    known text[];               -- the limits of the one before: mostly they are the same
    asked int[];                -- where these stand below
    -- limits looked at: their rules, and what is left of them now; counted once, then added to
    seen text[] := '{}';
    state record;
    slots int[];
    used_up bigint[];
    caps int[];
    levels float8[];
    keeps boolean[];
    full_levels float8[];       -- as they were counted
    moved text[] := '{}';       -- those whose next opening may be another one now
    aside_ids text[] := '{}';
    aside_at text[] := '{}';
BEGIN
    taken := '{}';
    spots := '{}';
    room_left := rooms;
    last := 0;
    closed := false;
    late := false;
    WHILE last < cardinality(page) AND cardinality(taken) < goal AND NOT (closed OR late) AND freed IS NULL
        AND cardinality(aside_ids) < most_aside
    LOOP
        chunk := places[last + 1 : last + goal - cardinality(taken)];
        FOR r IN
            SELECT j.ctid AS spot, j.id, j.task, j.limits, j.costs, j.ran, j.started_at IS NOT NULL AS begun, j.parked
            FROM job j WHERE j.ctid = ANY (chunk) AND j.place + 0 IS NOT NULL
            ORDER BY j.rank DESC, j.place, j.id FOR NO KEY UPDATE SKIP LOCKED
        LOOP
            task_at := array_position(tasks, r.task);
            CONTINUE WHEN (tasks IS NOT NULL AND task_at IS NULL) OR room_left[task_at] <= 0 OR r.id = ANY (holds);
            blocked := NULL;
            IF ruled AND (asked IS NULL OR r.limits IS DISTINCT FROM known) THEN
                known := r.limits;
                asked := '{}';
                FOR m IN own_at .. coalesce(cardinality(known), 0) LOOP
                    limited := CASE m WHEN 0 THEN own ELSE known[m] END;
                    pos := array_position(seen, limited);
                    IF pos IS NULL THEN
                        pos := cardinality(seen) + 1;
                        SELECT * INTO state FROM state_of(limited, t);
                        seen[pos] := limited;
                        slots[pos] := state.slots;
                        used_up[pos] := state.used;
                        caps[pos] := state.cap;
                        levels[pos] := state.level;
                        full_levels[pos] := state.level;
                        keeps[pos] := state.keeps;
                    END IF;
                    asked[m] := pos;
                END LOOP;
            END IF;
            IF NOT r.ran THEN                   -- who ran asks nobody
                FOR m IN own_at .. coalesce(array_upper(asked, 1), -1) LOOP
                    pos := asked[m];
                    cost := CASE m WHEN 0 THEN 1 ELSE r.costs[m] END;
                    IF levels[pos] < least(cost, caps[pos]) - 1e-9 OR NOT coalesce((r.begun AND keeps[pos])
                        OR (slots[pos] > 0 AND used_up[pos] + least(cost, slots[pos]) <= slots[pos]), true)
                    THEN
                        blocked := seen[pos];
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
                aside_ids := aside_ids || r.id;
                aside_at := aside_at || blocked;
                late := clock_timestamp() > until;
                freed := CASE WHEN r.parked <> blocked THEN r.parked END;
                IF late OR freed IS NOT NULL OR cardinality(aside_ids) >= most_aside THEN
                    last := array_position(page, r.id);
                    EXIT;
                END IF;
                CONTINUE;
            END IF;
            FOR m IN own_at .. coalesce(array_upper(asked, 1), -1) LOOP
                pos := asked[m];
                cost := CASE m WHEN 0 THEN 1 ELSE r.costs[m] END;
                -- of limits that keep slots who ran takes his own all the same
                IF (CASE WHEN keeps[pos] THEN NOT r.begun ELSE NOT r.ran END) THEN
                    used_up[pos] := used_up[pos] + cost;
                END IF;
                IF NOT r.ran AND caps[pos] IS NOT NULL THEN
                    levels[pos] := levels[pos] - least(cost, caps[pos]);
                END IF;
            END LOOP;
            taken := taken || r.id;
            spots := spots || r.spot;
            IF room_left[task_at] IS NOT NULL THEN
                room_left[task_at] := room_left[task_at] - 1;
            END IF;
        END LOOP;
        EXIT WHEN closed OR late OR freed IS NOT NULL OR cardinality(aside_ids) >= most_aside;
        last := last + cardinality(chunk);
    END LOOP;
    aside := cardinality(aside_ids);
    FOR n IN 1 .. cardinality(seen) LOOP
        IF levels[n] < full_levels[n] THEN
            PERFORM spend(seen[n], rule_of(seen[n]), round(full_levels[n] - levels[n])::int, t);
            moved := moved || seen[n];
        END IF;
    END LOOP;
    IF aside > 0 THEN
        UPDATE job SET place = NULL, parked = x.limited, due_at = deadline_at
        FROM unnest(aside_ids, aside_at) AS x (id, limited)
        CROSS JOIN LATERAL (SELECT j.ctid AS spot FROM job j WHERE j.id = x.id OFFSET 0) AS k
        WHERE job.ctid = k.spot;
        moved := moved || aside_at;
    END IF;
    PERFORM set_opening(k, t) FROM unnest(looked_for(moved)) AS k;
END $$;

-- What a limit still lets through now: a rule's absence as nothing but NULLs, a rate of nothing as less than nothing.
CREATE FUNCTION state_of(limited text, t float8, OUT slots int, OUT used bigint, OUT cap int, OUT level float8,
    OUT keeps boolean) LANGUAGE plpgsql AS $$
DECLARE
    r rule := rule_of(limited);
BEGIN
    IF r.name IS NOT NULL THEN
        slots := r.slots;
        keeps := r.hold = 'ended';
        IF slots IS NOT NULL THEN
            used := used(limited, r.hold);
        END IF;
        IF r.rate IS NOT NULL THEN
            cap := capacity(r);
            level := CASE WHEN r.rate = 0 THEN '-infinity' ELSE level(limited, r, t) END;
        END IF;
    END IF;
END $$;

-- The next of a line behind a spot: of these tasks, of these ids, or (it is shut) of those who may be exempt.
-- wants: the limits they name, as text.
CREATE FUNCTION page_of(line text, tasks text[], wanted text[], shut boolean, at_rank smallint, at_place float8,
    at_id text, wide int) RETURNS TABLE (id text, spot tid, rank smallint, place float8, wants text) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF wanted IS NOT NULL THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.place, j.limits::text FROM job j
        WHERE j.id = ANY (wanted) AND j.queue = line AND j.place + 0 IS NOT NULL
            AND (at_id IS NULL OR (-j.rank, j.place, j.id) > (-at_rank, at_place, at_id))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
        RETURN;
    END IF;
    IF at_id IS NOT NULL THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.place, j.limits::text FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND j.rank = at_rank AND (j.place, j.id) > (at_place, at_id)
            AND (tasks IS NULL OR j.task = ANY (tasks)) AND (NOT shut OR j.ran OR j.started_at IS NOT NULL)
        ORDER BY j.place, j.id LIMIT wide;
        IF FOUND THEN
            RETURN;     -- a short page is no end: the next one begins behind it
        END IF;
    END IF;
    IF shut THEN
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.place, j.limits::text FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND (j.ran OR j.started_at IS NOT NULL)
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
    ELSE
        RETURN QUERY SELECT j.id, j.ctid, j.rank, j.place, j.limits::text FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
    END IF;
END $$;
