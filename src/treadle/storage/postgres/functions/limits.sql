-- Whether a job may start now: the arithmetic of storage/admission.py in SQL.

-- The current time, of the test's clock or of the server's. After a wait for locks it is later than that of the call.
CREATE FUNCTION instant(moment float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(moment, extract(epoch FROM clock_timestamp())::float8)
$$;

-- Returns the rule of a limit: its own, otherwise the rule of the name before the colon.
CREATE FUNCTION rule_of(limited text) RETURNS rule LANGUAGE plpgsql STABLE AS $$
DECLARE
    limit_rule rule;
BEGIN
    SELECT * INTO limit_rule FROM rule WHERE name IN (limited, split_part(limited, ':', 1))
    ORDER BY name = limited DESC LIMIT 1;
    RETURN limit_rule;
END $$;

-- Returns the slots in use. For a queue, its jobs are counted: a slot row for every job would slow down the many queues
-- that have no limit.
CREATE FUNCTION slots_in_use(limited text, hold text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    of_jobs bigint;
    of_queue bigint := 0;
    line text := substr(limited, 7);
BEGIN
    SELECT coalesce(sum(cost), 0) INTO of_jobs FROM slot WHERE key = limited AND (live OR hold = 'ended');
    IF starts_with(limited, 'queue:') THEN
        SELECT count(*) INTO of_queue FROM job WHERE state = 2 AND due_at IS NOT NULL AND queue = line
            AND (hold = 'ended' OR NOT function_done);
        IF hold = 'ended' THEN
            of_queue := of_queue
                + (SELECT count(*) FROM job WHERE queue = line AND started_at IS NOT NULL AND state < 2);
        END IF;
    END IF;
    RETURN of_jobs + of_queue;
END $$;

-- Whether a job of this cost gets its slots.
CREATE FUNCTION slots_fit(limit_rule rule, taken bigint, cost int) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT limit_rule.slots IS NULL
        OR (limit_rule.slots > 0 AND taken + least(cost, limit_rule.slots) <= limit_rule.slots)
$$;

-- Returns the most that a rate admits at once.
CREATE FUNCTION capacity(limit_rule rule) RETURNS int LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN limit_rule.how = 'bucket' THEN coalesce(nullif(limit_rule.burst, 0), limit_rule.rate, 0)
        ELSE coalesce(limit_rule.rate, 0) END
$$;

-- Returns how much the rate admits now. It tests `at + per <= t`, never `at <= t - per`: it must compute the same sum
-- as opens_at, or the last bit would differ. The second, wider comparison lets the planner use the index.
CREATE FUNCTION rate_level(limited text, limit_rule rule, t float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    gate_row gate;
    gone bigint;
BEGIN
    SELECT * INTO gate_row FROM gate WHERE key = limited;
    IF limit_rule.how = 'bucket' THEN
        RETURN least(capacity(limit_rule)::float8,
            coalesce(gate_row.tokens + greatest(0, t - gate_row.at) * coalesce(limit_rule.rate, 0) / limit_rule.per,
                capacity(limit_rule)));
    END IF;
    SELECT coalesce(sum(cost), 0) INTO gone FROM start
    WHERE key = limited AND at <= t - limit_rule.per + 0.001 AND at + limit_rule.per <= t;
    RETURN coalesce(limit_rule.rate, 0) - (coalesce(gate_row.spent, 0) - gone);
END $$;

CREATE FUNCTION rate_fits(limited text, limit_rule rule, cost int, t float8) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN limit_rule.rate IS NULL
        OR (limit_rule.rate > 0 AND rate_level(limited, limit_rule, t) >= least(cost, capacity(limit_rule)) - 1e-9);
END $$;

-- Returns when the rate will admit `cost`, or NULL if it does now, or never will by itself.
CREATE FUNCTION opens_at(limited text, limit_rule rule, cost int, t float8) RETURNS float8 LANGUAGE plpgsql AS $$
DECLARE
    missing float8;
    started record;
BEGIN
    IF coalesce(limit_rule.rate, 0) = 0 OR rate_fits(limited, limit_rule, cost, t) THEN
        RETURN NULL;
    END IF;
    missing := least(cost, capacity(limit_rule)) - rate_level(limited, limit_rule, t);
    IF limit_rule.how = 'bucket' THEN
        RETURN t + missing * limit_rule.per / limit_rule.rate;
    END IF;
    FOR started IN SELECT start.at, start.cost FROM start
        WHERE key = limited AND start.at > t - limit_rule.per - 0.001 AND start.at + limit_rule.per > t
        ORDER BY start.at
    LOOP
        missing := missing - started.cost;
        IF missing <= 0 THEN
            RETURN started.at + limit_rule.per;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Returns how much each limit with a rate admits now, when it admits one job (NULL: now, or never by itself), and when
-- the first job that it blocks. Limits that have started no jobs are left out. One statement: Every `stats` reads this;
-- calling `rate_level` and `opens_at` for each limit took four times as long.
CREATE FUNCTION rates(moment float8) RETURNS TABLE (key text, left_now float8, next_start float8, opens float8)
LANGUAGE sql
SET search_path FROM CURRENT SET jit = off AS $$
    WITH clock AS MATERIALIZED (SELECT instant(moment) AS t),
    known AS MATERIALIZED (
        SELECT g.key, g.spent, g.tokens, g.at, g.opens, clock.t,
            CASE WHEN own.name IS NULL THEN family ELSE own END AS r
        FROM clock CROSS JOIN gate g LEFT JOIN rule own ON own.name = g.key
        LEFT JOIN rule family ON family.name = split_part(g.key, ':', 1)
        WHERE (g.spent > 0 OR g.tokens IS NOT NULL)
            AND CASE WHEN own.name IS NULL THEN family.rate ELSE own.rate END IS NOT NULL
    ), counted AS MATERIALIZED (
        SELECT k.key, k.r, k.t, k.opens, capacity(k.r) AS cap, CASE
            WHEN (k.r).how = 'bucket' THEN least(capacity(k.r)::float8,
                coalesce(k.tokens + greatest(0, k.t - k.at) * (k.r).rate / (k.r).per, capacity(k.r)))
            ELSE (k.r).rate - (k.spent - (SELECT coalesce(sum(s.cost), 0) FROM start s
                WHERE s.key = k.key AND s.at <= k.t - (k.r).per + 0.001 AND s.at + (k.r).per <= k.t)) END AS level
        FROM known k
    )
    SELECT c.key, c.level, CASE WHEN c.level >= least(1, c.cap) - 1e-9 OR c.cap = 0 OR (c.r).rate = 0 THEN NULL
        WHEN (c.r).how = 'bucket' THEN c.t + (1 - c.level) * (c.r).per / (c.r).rate
        ELSE opens_at(c.key, c.r, 1, c.t) END, c.opens
    FROM counted c
$$;

-- Counts the state of these limits at t. line: the queue that jobs are claimed from.
CREATE FUNCTION limit_states(keys text[], line text, t float8) RETURNS limit_counts LANGUAGE plpgsql AS $$
DECLARE
    counts limit_counts;
BEGIN
    SELECT array_agg(f.key), array_agg(f.slots), array_agg(f.cap), array_agg(CASE WHEN f.per IS NULL THEN f.cap END),
        array_agg(f.per), array_agg(f.keeps),
        max(f.last_start), array_agg(f.gone), coalesce(bool_or(f.keeps AND f.slots = 1), false),
        array_agg(CASE
            WHEN f.slots IS NULL THEN NULL
            WHEN starts_with(f.key, 'queue:') THEN slots_in_use(f.key, f.hold)
            ELSE (SELECT coalesce(sum(s.cost), 0) FROM slot s WHERE s.key = f.key AND (s.live OR f.keeps)) END),
        array_agg(CASE
            WHEN f.rate = 0 THEN '-infinity'
            WHEN f.per IS NOT NULL
                THEN f.rate - (coalesce((SELECT g.spent FROM gate g WHERE g.key = f.key), 0) - f.gone)
            WHEN f.rate IS NOT NULL THEN rate_level(f.key, f.r, t) END),
        array_agg(f.keeps AND f.slots = 1 AND (
            EXISTS (SELECT 1 FROM job j WHERE j.blocked_on = f.key AND j.queue = line AND j.queue_position IS NULL)
            OR EXISTS (
                SELECT 1 FROM job j WHERE j.blocked_on = f.key AND j.queue = line AND j.queue_position IS NOT NULL)))
    INTO counts.keys, counts.slots, counts.caps, counts.bursts, counts.pers, counts.keeps, counts.last_start,
        counts.gone, counts.ordered, counts.taken, counts.levels, counts.contested
    FROM (
        SELECT k.key, r.slots, r.rate, r.hold, r.hold = 'ended' AS keeps, w.per,
            CASE WHEN r.rate IS NOT NULL THEN capacity(r.r) END AS cap, CASE WHEN r.how = 'bucket' THEN r.r END AS r,
            CASE WHEN w.per IS NOT NULL THEN (
                SELECT coalesce(sum(s.cost), 0)::bigint FROM start s
                WHERE s.key = k.key AND s.at <= t - w.per + 0.001 AND s.at + w.per <= t) END AS gone,
            CASE WHEN w.per IS NOT NULL THEN (
                SELECT s.at FROM start s WHERE s.key = k.key ORDER BY s.at DESC LIMIT 1) END AS last_start
        FROM unnest(keys) AS k (key)
        LEFT JOIN LATERAL (
            SELECT r, r.slots, r.rate, r.per, r.how, r.hold FROM rule r
            WHERE r.name IN (k.key, split_part(k.key, ':', 1)) ORDER BY r.name = k.key DESC LIMIT 1) AS r ON true
        CROSS JOIN LATERAL (SELECT CASE WHEN r.rate > 0 AND r.how <> 'bucket' THEN r.per END AS per) AS w
    ) AS f;
    RETURN counts;
END $$;

-- Records starts: the costs that were charged to these limits at t. pers, gone: as limit_states counted them at
-- `counted_at`; levels: what the rates admit after these starts; filled: whether a bucket was full before.
CREATE FUNCTION record_starts(keys text[], costs int[], pers float8[], gone bigint[], levels float8[], filled boolean[],
    counted_at float8, t float8)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF 0 < ANY (gone) THEN
        DELETE FROM start USING unnest(keys, pers, gone) AS w (key, per, gone)
        CROSS JOIN LATERAL (SELECT s.ctid AS spot FROM start s
            WHERE w.gone > 0 AND s.key = w.key AND s.at <= counted_at - w.per + 0.001 AND s.at + w.per <= counted_at
            OFFSET 0) AS old
        WHERE start.ctid = old.spot;
    END IF;
    INSERT INTO start (key, at, cost) SELECT w.key, t, w.cost FROM unnest(keys, costs, pers) AS w (key, cost, per)
    WHERE w.per IS NOT NULL ON CONFLICT (key, at) DO UPDATE SET cost = start.cost + excluded.cost;
    UPDATE gate SET spent = CASE WHEN w.per IS NOT NULL THEN spent - w.gone + w.cost ELSE spent END,
        tokens = CASE WHEN w.per IS NULL THEN w.level ELSE tokens END,
        at = CASE WHEN w.per IS NULL THEN counted_at ELSE gate.at END,
        since = CASE WHEN w.per IS NULL AND w.filled THEN counted_at ELSE since END
    FROM unnest(keys, costs, pers, gone, levels, filled)
        AS w (key, cost, per, gone, level, filled)
    CROSS JOIN LATERAL (SELECT g.ctid AS spot FROM gate g WHERE g.key = w.key OFFSET 0) AS g
    WHERE gate.ctid = g.spot;
END $$;
