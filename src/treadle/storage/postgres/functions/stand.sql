-- New jobs that are stored (store.sql) wait for others, take their keys and stand in line.

-- What is stored waits, takes its keys and stands in line, in one pass for each of these; only jobs that replace the holder
-- of their key, or whose lane is placed by their age, go one by one. `ups`, `states`: endings still to be counted; they are,
-- before the first of these is let go. `origin`: the unfinished job they are born of.
CREATE FUNCTION store_all(jobs json, t float8, asked text[], answers text[], fresh text[], origin text,
    ups text[], states int[])
RETURNS void LANGUAGE plpgsql SET jit = off SET enable_hashjoin = on AS $$
DECLARE
    x record;
    r job;
    all_fresh boolean := cardinality(fresh) = cardinality(asked);   -- the usual case, in which nothing is looked up
    in_lanes boolean := mentions(jobs, 'lane');
    by_turns boolean := in_lanes AND lanes_by_turns(jobs);
    waits boolean := mentions(jobs, 'after');
BEGIN
    IF mentions(jobs, 'key') THEN
        UPDATE holder SET id = y.id FROM json_to_recordset(jobs) AS y (id text, key text, conflict text)
        CROSS JOIN LATERAL (SELECT h.ctid AS spot FROM holder h WHERE h.key = y.key OFFSET 0) AS found
        WHERE holder.ctid = found.spot AND y.conflict <> 'replace' AND (all_fresh OR y.id IN (SELECT unnest(fresh)));
    END IF;
    IF waits THEN
        IF NOT all_fresh THEN
            PERFORM wait_for_answers(jobs, asked, answers, fresh);
        END IF;
        SELECT * INTO x FROM watch_all(jobs, t, asked, answers, fresh) AS w;
        ups := ups || x.ended_ups;
        states := states || x.ended_states;
    END IF;
    PERFORM count_endings(ups, states, t);
    IF in_lanes AND NOT by_turns THEN
        PERFORM join_lanes(jobs, t, fresh, all_fresh);
    END IF;
    IF NOT (by_turns OR waits OR mentions(jobs, 'conflict')) THEN
        RETURN;
    END IF;
    FOR x IN
        SELECT y.id, y.need, y.conflict = 'replace' AS replaces
        FROM json_to_recordset(jobs) AS y (id text, need int, conflict text, lane text, after text[])
        WHERE (y.conflict = 'replace' OR (y.after IS NOT NULL AND y.need <= 0) OR (by_turns AND y.lane IS NOT NULL))
            AND (all_fresh OR y.id IN (SELECT unnest(fresh)))
    LOOP
        SELECT * INTO r FROM job WHERE id = x.id;
        IF x.replaces THEN
            PERFORM replace_holder(r, x.need, t, origin);
        ELSIF r.state = 0 AND r.pending <= 0 THEN
            PERFORM release(r, t);
        END IF;
    END LOOP;
END $$;

-- Whether jobs of the call move a lane in another way than by its stride, so that each finds another head of the line.
CREATE FUNCTION lanes_by_turns(jobs json) RETURNS boolean LANGUAGE sql AS $$
    SELECT (mentions(jobs, 'aging') OR strpos(jobs::text, '"replace"') > 0) AND EXISTS (
        SELECT FROM json_to_recordset(jobs) AS x (conflict text, lane text, words jsonb)
        WHERE x.lane IS NOT NULL AND (x.conflict = 'replace' OR x.words ? 'aging'))
$$;

-- Jobs that name others of the call in `after` which another row answered: they wait for that row.
CREATE FUNCTION wait_for_answers(jobs json, asked text[], answers text[], fresh text[]) RETURNS void LANGUAGE sql
SET jit = off SET enable_hashjoin = on AS $$
    UPDATE job SET after = m.ups, pending = least(m.need, m.awaited),
        slack = slack_of(job.slack, m.need, m.awaited)
    FROM (
        SELECT y.id, y.need, array_agg(coalesce(a.answer, u.up) ORDER BY u.n) AS ups,
            count(DISTINCT coalesce(a.answer, u.up)) AS awaited
        FROM json_to_recordset(jobs) AS y (id text, need int, after text[])
        CROSS JOIN LATERAL unnest(y.after) WITH ORDINALITY AS u (up, n)
        LEFT JOIN unnest(asked, answers) AS a (asked, answer) ON a.asked = u.up
        WHERE y.after IS NOT NULL AND y.id IN (SELECT unnest(fresh))
        GROUP BY y.id, y.need
        HAVING bool_or(a.answer <> u.up)
    ) AS m
    WHERE job.id = m.id
$$;

-- The jobs with `after` wait, all at once, but for those that replace a holder. Upstreams that have ended count at once.
-- -> the jobs that are doomed by those, and how they ended: what waits for them is still to be counted.
CREATE FUNCTION watch_all(jobs json, t float8, asked text[], answers text[], fresh text[], OUT ended_ups text[],
    OUT ended_states int[]) LANGUAGE plpgsql
SET jit = off SET enable_hashjoin = on AS $$
DECLARE
    all_fresh boolean := cardinality(fresh) = cardinality(asked);
    others text[] := CASE WHEN NOT all_fresh THEN asked END;
    their_answers text[] := CASE WHEN NOT all_fresh THEN answers END;
    awaited text[];
    waiting text[];             -- for each of these
BEGIN
    WITH put AS (
        INSERT INTO edge (up, down, version)
        SELECT coalesce(a.answer, u.up), y.id, 0
        FROM ROWS FROM (json_to_recordset(jobs) AS (id text, conflict text, after text[]))
            WITH ORDINALITY AS y (id, conflict, after, n)
        CROSS JOIN LATERAL unnest(y.after) WITH ORDINALITY AS u (up, n)
        LEFT JOIN unnest(others, their_answers) AS a (asked, answer) ON a.asked = u.up
        WHERE y.after IS NOT NULL AND y.conflict IS DISTINCT FROM 'replace'
            AND (all_fresh OR y.id IN (SELECT unnest(fresh)))
        GROUP BY coalesce(a.answer, u.up), y.id ORDER BY min(y.n), min(u.n)
        ON CONFLICT (up, down) DO UPDATE SET version = 0, open = true, soft = false
        RETURNING num, up, down
    ) SELECT array_agg(up ORDER BY num), array_agg(down ORDER BY num) INTO awaited, waiting FROM put;
    SELECT * INTO ended_ups, ended_states FROM count_ended(awaited, waiting, t);
END $$;

-- The jobs of the call in lanes, which wait for nothing, are placed by the order of the call: as place_of for each.
CREATE FUNCTION join_lanes(jobs json, t float8, fresh text[], all_fresh boolean) RETURNS void LANGUAGE sql
SET jit = off SET enable_hashjoin = on AS $$
    WITH y AS MATERIALIZED (
        SELECT z.*, sum(stride) OVER lanes AS behind, first_value(stride) OVER lanes AS first
        FROM (
            SELECT x.id, x.queue, x.rank, x.lane, (x.words ->> 'stride')::float8 AS stride, x.n
            FROM ROWS FROM (json_to_recordset(jobs) AS (id text, task text, queue text, rank smallint, delay float8,
                ran boolean, conflict text, lane text, after text[], words jsonb))
                WITH ORDINALITY AS x (id, task, queue, rank, delay, ran, conflict, lane, after, words, n)
            WHERE x.lane IS NOT NULL AND x.after IS NULL AND x.conflict IS DISTINCT FROM 'replace' AND x.task <> ''
                AND (coalesce(x.ran, false) OR NOT coalesce(x.delay > 0 AND t + x.delay > t, false))
                AND (all_fresh OR x.id IN (SELECT unnest(fresh)))
        ) AS z
        WINDOW lanes AS (PARTITION BY queue, rank, lane ORDER BY n)
    ), begins AS MATERIALIZED (
        SELECT l.*,
            (SELECT place FROM job WHERE queue = l.queue AND rank = l.rank AND lane = l.lane AND place IS NOT NULL
                ORDER BY place DESC LIMIT 1) AS last,
            (SELECT place FROM job WHERE queue = l.queue AND rank = l.rank AND place IS NOT NULL
                ORDER BY place LIMIT 1) AS head
        FROM (SELECT DISTINCT queue, rank, lane FROM y) AS l
    ), places AS MATERIALIZED (
        SELECT y.id, CASE WHEN b.last IS NOT NULL THEN b.last + y.behind
            ELSE least(t, b.head) + (y.behind - y.first) END AS place
        FROM y JOIN begins b USING (queue, rank, lane)
    )
    UPDATE job SET state = 1, place = p.place, joined_at = p.place, due_at = CASE WHEN NOT ran THEN deadline_at END
    FROM places AS p WHERE job.id = p.id
$$;

-- A job takes the key of its holder, and waits for it where that has begun.
CREATE FUNCTION replace_holder(r job, need int, t float8, origin text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    awaited bigint := (SELECT count(DISTINCT up) FROM unnest(r.after) AS a (up));
    soft text := take_key(r, t, origin, '{}', '{}');
BEGIN
    IF soft = ANY (r.after) THEN
        soft := NULL;   -- it waits for the holder by name, and with what it asked of that ending
    END IF;
    r.pending := least(need, awaited) + CASE WHEN soft IS NULL THEN 0 ELSE 1 END;
    UPDATE job SET pending = r.pending WHERE id = r.id;
    IF soft IS NOT NULL THEN
        INSERT INTO edge (up, down, version, soft) VALUES (soft, r.id, 0, true)
        ON CONFLICT (up, down) DO UPDATE SET version = 0, open = true, soft = true;
    END IF;
    PERFORM watch_ups(r, t, '{}', '{}');
END $$;
