-- May a job start now? The arithmetic of storage/admit.py once more. Whoever counts a limit holds its gate until his
-- transaction is over, so what he counted still holds when he commits.

CREATE FUNCTION lock_gates(keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO gate (key) SELECT DISTINCT k FROM unnest(keys) AS k
    WHERE NOT EXISTS (SELECT 1 FROM gate WHERE key = k) ORDER BY k ON CONFLICT DO NOTHING;
    PERFORM 1 FROM (SELECT 1 FROM gate WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE) AS locked;
END $$;

-- The rule a limit obeys: its own, else that of the name before the colon.
CREATE FUNCTION rule_of(limited text) RETURNS rule LANGUAGE plpgsql STABLE AS $$
DECLARE
    found_rule rule;
BEGIN
    SELECT * INTO found_rule FROM rule WHERE name = limited;
    IF NOT FOUND THEN
        SELECT * INTO found_rule FROM rule WHERE name = split_part(limited, ':', 1);
    END IF;
    RETURN found_rule;
END $$;

-- Slots taken. Those of a queue are counted from its rows: to keep them for every job would slow down the many queues
-- that have no limit.
CREATE FUNCTION used(limited text, hold text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    of_jobs bigint;
    of_queue bigint := 0;
    line text := substr(limited, 7);
BEGIN
    SELECT coalesce(sum(cost), 0) INTO of_jobs FROM slot WHERE key = limited AND (live OR hold = 'ended');
    IF starts_with(limited, 'queue:') THEN
        SELECT count(*) INTO of_queue FROM job WHERE state = 2 AND due_at IS NOT NULL AND queue = line
            AND (hold = 'ended' OR NOT ran);
        IF hold = 'ended' THEN
            of_queue := of_queue
                + (SELECT count(*) FROM job WHERE queue = line AND started_at IS NOT NULL AND state < 2);
        END IF;
    END IF;
    RETURN of_jobs + of_queue;
END $$;

CREATE FUNCTION slots_fit(r rule, taken bigint, cost int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT r.slots IS NULL OR (r.slots > 0 AND taken + least(cost, r.slots) <= r.slots)
$$;

CREATE FUNCTION capacity(r rule) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN r.how = 'bucket' THEN coalesce(nullif(r.burst, 0), r.rate, 0) ELSE coalesce(r.rate, 0) END
$$;

-- How much may start now by the rate. `at + per <= t`, and never `at <= t - per`: the same sum as in opens_at, or the
-- last bit would differ; the wider comparison beside it is for the index.
CREATE FUNCTION level(limited text, r rule, t float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    g gate;
    gone int;
BEGIN
    SELECT * INTO g FROM gate WHERE key = limited;
    IF r.how = 'bucket' THEN
        RETURN least(capacity(r)::float8,
            coalesce(g.tokens + greatest(0, t - g.at) * coalesce(r.rate, 0) / r.per, capacity(r)));
    END IF;
    SELECT coalesce(sum(cost), 0) INTO gone FROM start
    WHERE key = limited AND at <= t - r.per + 0.001 AND at + r.per <= t;
    RETURN coalesce(r.rate, 0) - (coalesce(g.spent, 0) - gone);
END $$;

CREATE FUNCTION rate_fits(limited text, r rule, cost int, t float8) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN r.rate IS NULL OR (r.rate > 0 AND level(limited, r, t) >= least(cost, capacity(r)) - 1e-9);
END $$;

-- When the rate will let `cost` through; NULL if it does now, or never will by itself.
CREATE FUNCTION opens_at(limited text, r rule, cost int, t float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    missing float8;
    s record;
BEGIN
    IF coalesce(r.rate, 0) = 0 OR rate_fits(limited, r, cost, t) THEN
        RETURN NULL;
    END IF;
    missing := least(cost, capacity(r)) - level(limited, r, t);
    IF r.how = 'bucket' THEN
        RETURN t + missing * r.per / r.rate;
    END IF;
    FOR s IN SELECT start.at, start.cost FROM start
        WHERE key = limited AND start.at > t - r.per - 0.001 AND start.at + r.per > t ORDER BY start.at
    LOOP
        missing := missing - s.cost;
        IF missing <= 0 THEN
            RETURN s.at + r.per;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Write starts down, whose costs (none more than the rate's capacity) come to `taken`.
CREATE FUNCTION spend(limited text, r rule, taken int, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    gone int;
BEGIN
    IF r.how = 'bucket' THEN
        UPDATE gate SET tokens = level(limited, r, t) - taken, at = t WHERE key = limited;
        RETURN;
    END IF;
    WITH swept AS (
        DELETE FROM start WHERE key = limited AND start.at <= t - r.per + 0.001 AND start.at + r.per <= t
        RETURNING start.cost
    ) SELECT coalesce(sum(swept.cost), 0) INTO gone FROM swept;
    INSERT INTO start (key, at, cost) VALUES (limited, t, taken)
    ON CONFLICT (key, at) DO UPDATE SET cost = start.cost + excluded.cost;
    UPDATE gate SET spent = spent - gone + taken WHERE key = limited;
END $$;

-- Who waited for these gates, since t, starts no earlier than who was let through meanwhile, and swept the log.
CREATE FUNCTION start_after(gates text[], t float8) RETURNS float8 LANGUAGE plpgsql AS $$
BEGIN
    RETURN greatest(t, (SELECT max(m.at) FROM unnest(gates) AS k,
        LATERAL (SELECT s.at FROM start s WHERE s.key = k ORDER BY s.at DESC LIMIT 1) AS m));
END $$;

-- --- those aside

-- Of these limits those that somebody stands aside for, or that are to be looked at when their rate opens.
CREATE FUNCTION looked_for(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT DISTINCT k FROM unnest(keys) AS k
        WHERE EXISTS (SELECT 1 FROM job WHERE parked = k AND place IS NULL)
            OR EXISTS (SELECT 1 FROM gate WHERE key = k AND opens IS NOT NULL) ORDER BY k);
END $$;

-- What a job pays for a limit it names.
CREATE FUNCTION price(j job, limited text) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT j.costs[array_position(j.limits, limited)]
$$;

-- Note when the rate will let in the first of some queue who stands aside: first those who have kept their slot.
CREATE FUNCTION set_opening(limited text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r rule := rule_of(limited);
    moment float8;
    line text;
    first job;
BEGIN
    IF r.rate IS NOT NULL THEN
        LOOP
            SELECT queue INTO line FROM job
            WHERE parked = limited AND place IS NULL AND queue > coalesce(line, '') ORDER BY queue LIMIT 1;
            EXIT WHEN NOT FOUND;
            first := NULL;
            IF r.hold = 'ended' THEN
                SELECT j.* INTO first FROM job j
                WHERE j.parked = limited AND j.queue = line AND j.place IS NULL AND j.started_at IS NOT NULL
                ORDER BY j.rank DESC, j.joined_at, j.id LIMIT 1;
            END IF;
            IF first.id IS NULL THEN
                SELECT j.* INTO first FROM job j WHERE j.parked = limited AND j.queue = line AND j.place IS NULL
                ORDER BY j.rank DESC, j.joined_at, j.id LIMIT 1;
            END IF;
            moment := least(moment, opens_at(limited, r, price(first, limited), t));
        END LOOP;
    END IF;
    UPDATE gate SET opens = moment WHERE key = limited AND opens IS DISTINCT FROM moment;
END $$;

-- Let as many back in line as there is room for, beside those let back already. By queue: one who is back in a line that
-- is paused, or that nobody serves, keeps no other line waiting. The first for whom there is no room bars those behind
-- him, or a costly one would never come. Whoever is locked is being changed: who does that calls in himself.
CREATE FUNCTION call_in_for(limited text, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    r rule;
    line text;
    taken bigint;
    room float8;
    each job;
    came boolean;
BEGIN
    PERFORM lock_gates(ARRAY[limited]);
    r := rule_of(limited);
    LOOP
        SELECT queue INTO line FROM job
        WHERE parked = limited AND place IS NULL AND queue > coalesce(line, '') ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        IF r.name IS NOT NULL THEN
            taken := used(limited, r.hold);
            room := CASE WHEN r.rate IS NOT NULL THEN level(limited, r, t) END;
        END IF;
        came := true;
        FOR each IN SELECT * FROM job WHERE parked = limited AND queue = line AND place IS NOT NULL LOOP
            EXIT WHEN r.name IS NULL;
            SELECT f.fits, f.taken, f.room INTO came, taken, room FROM fitting(r, taken, room,
                price(each, limited), r.hold = 'ended' AND each.started_at IS NOT NULL) AS f;
            EXIT WHEN NOT came;
        END LOOP;
        -- by the index, and no further than there is room: to sort all who stand aside would cost more the more they are
        IF came AND r.hold = 'ended' THEN
            FOR each IN
                SELECT * FROM job WHERE parked = limited AND queue = line AND place IS NULL AND started_at IS NOT NULL
                ORDER BY rank DESC, joined_at, id FOR NO KEY UPDATE SKIP LOCKED
            LOOP
                SELECT f.fits, f.taken, f.room INTO came, taken, room
                FROM fitting(r, taken, room, price(each, limited), true) AS f;
                EXIT WHEN NOT came;
                each.place := each.joined_at;
                PERFORM put(each);
            END LOOP;
        END IF;
        IF came THEN
            FOR each IN
                SELECT * FROM job WHERE parked = limited AND queue = line AND place IS NULL
                ORDER BY rank DESC, joined_at, id FOR NO KEY UPDATE SKIP LOCKED
            LOOP
                IF r.name IS NOT NULL THEN
                    SELECT f.fits, f.taken, f.room INTO came, taken, room
                    FROM fitting(r, taken, room, price(each, limited), false) AS f;
                    EXIT WHEN NOT came;
                END IF;
                each.place := each.joined_at;
                PERFORM put(each);
            END LOOP;
        END IF;
    END LOOP;
    PERFORM set_opening(limited, t);
END $$;

-- Whether one more fits, and what is taken and left then.
CREATE FUNCTION fitting(r rule, INOUT taken bigint, INOUT room float8, cost int, keeps boolean, OUT fits boolean)
LANGUAGE plpgsql AS $$
BEGIN
    fits := false;
    IF r.slots IS NOT NULL AND NOT keeps THEN
        IF NOT slots_fit(r, taken, cost) THEN
            RETURN;
        END IF;
        taken := taken + least(cost, r.slots);
    END IF;
    IF r.rate IS NOT NULL THEN
        IF r.rate = 0 OR room < least(cost, capacity(r)) - 1e-9 THEN
            RETURN;
        END IF;
        room := room - least(cost, capacity(r));
    END IF;
    fits := true;
END $$;

-- A slot this job had may be free, or it was let back in line and went away: let others back instead.
CREATE FUNCTION call_in(r job, t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limited text;
BEGIN
    IF r.limits IS NOT NULL THEN
        PERFORM lock_gates(r.limits);
        FOREACH limited IN ARRAY r.limits LOOP
            PERFORM call_in_for(limited, t);
        END LOOP;
    END IF;
END $$;

-- The slots of jobs that have ended, all at once: each with the limits it names, as text, and these limits. Few limits are
-- looked up by two arrays, in half the time; older servers try each id with each of them, so not many.
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

-- What was freed of these limits, whose gates are held, lets others back.
CREATE FUNCTION call_in_all(gates text[], t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    limited text;
BEGIN
    FOREACH limited IN ARRAY looked_for(gates) LOOP
        PERFORM call_in_for(limited, t);
    END LOOP;
END $$;

-- The verb: add, replace or remove rules; all who stand aside are looked at.
CREATE FUNCTION set_limits(moment float8, rules json) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    limited text;
    line text;
BEGIN
    PERFORM enter(NULL);
    DELETE FROM rule USING json_to_recordset(rules) AS x (name text, slots int, rate int)
    WHERE rule.name = x.name AND x.slots IS NULL AND x.rate IS NULL;
    INSERT INTO rule (name, slots, rate, per, how, burst, hold)
    SELECT DISTINCT ON (x.name) x.name, x.slots, x.rate, x.per, x.how, x.burst, x.hold
    FROM ROWS FROM (json_to_recordset(rules) AS
        (name text, slots int, rate int, per float8, how text, burst int, hold text)) WITH ORDINALITY AS x
    WHERE x.slots IS NOT NULL OR x.rate IS NOT NULL
    ORDER BY x.name, x.ordinality DESC
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, rate = excluded.rate, per = excluded.per,
        how = excluded.how, burst = excluded.burst, hold = excluded.hold;
    LOOP
        SELECT parked INTO limited FROM job
        WHERE parked IS NOT NULL AND place IS NULL AND parked > coalesce(limited, '') ORDER BY parked LIMIT 1;
        EXIT WHEN NOT FOUND;
        PERFORM call_in_for(limited, t);
    END LOOP;
    LOOP
        SELECT queue INTO line FROM job WHERE place IS NOT NULL AND queue > coalesce(line, '')
        ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        PERFORM speak('queue:' || line);
    END LOOP;
END $$;
