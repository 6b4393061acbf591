-- Storing new jobs that are not plain: asked for by themselves (enqueue.sql) or born of an outcome (settle.sql).
-- Two steps: `prepare` finds which row answers each and refuses before anything is decided; `store_all` makes them wait,
-- hold their keys and stand in line. A refusal is raised as TR001 and undone by whoever called.

-- Put in the jobs whose ids are new -> these ids. Those that touch nothing beside them stand where they belong at once,
-- the others wait for store_all. Nobody sees them yet; from here on nobody else can store these ids.
CREATE FUNCTION put_in(jobs json, t float8) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    fresh text[];
    known text[];
BEGIN
    WITH x AS (
        SELECT DISTINCT ON (x.id) x.*,
            x.key IS NULL AND x.lane IS NULL AND x.after IS NULL AND NOT coalesce(x.words ? 'aging', false) AS simple,
            CASE WHEN x.ran THEN NULL ELSE t + x.deadline END AS over_at
        FROM ROWS FROM (json_to_recordset(jobs) AS (
            id text, task text, queue text, rank smallint, keep float8, keep_failed float8, lease float8, delay float8,
            deadline float8, timeout float8, ran boolean, slack int, key text, lane text, root text, parent text,
            limits text[], costs int[], after text[], words jsonb, spec text
        )) WITH ORDINALITY AS x
        ORDER BY x.id, x.ordinality
    ), put AS (
        INSERT INTO job (id, task, queue, rank, keep, keep_failed, lease, ran, slack, key, lane, root, parent, limits,
            costs, after, words, spec, created_at, updated_at, deadline_at, state, place, joined_at, due_at)
        SELECT x.id, x.task, x.queue, x.rank, coalesce(x.keep, 86400), coalesce(x.keep_failed, 2592000), x.lease,
            coalesce(x.ran, false), x.slack, x.key, x.lane, x.root, x.parent, x.limits, x.costs, x.after, x.words,
            x.spec, t, t, t + x.deadline, s.state,
            CASE WHEN s.state = 1 AND NOT s.later THEN t END,
            CASE WHEN s.state = 1 AND NOT s.later THEN t END,
            CASE WHEN s.state = 0 THEN least(x.over_at, t + x.timeout)
                WHEN s.later THEN least(x.over_at, t + x.delay)
                ELSE x.over_at END
        FROM x, LATERAL (SELECT CASE WHEN x.simple AND x.task <> '' THEN 1 ELSE 0 END AS state,
            coalesce(x.delay > 0 AND t + x.delay > t AND NOT coalesce(x.ran, false), false) AS later) AS s
        ORDER BY x.id
        ON CONFLICT DO NOTHING RETURNING job.id
    ) SELECT array_agg(put.id) INTO fresh FROM put;
    -- a statement of its own: one that has ended since the last one is seen
    SELECT array_agg(id) INTO known FROM ended WHERE id = ANY (fresh);
    IF known IS NOT NULL THEN
        DELETE FROM job WHERE id = ANY (known);
        fresh := ARRAY(SELECT unnest(fresh) EXCEPT SELECT unnest(known));
    END IF;
    RETURN coalesce(fresh, '{}');
END $$;

-- -> the ids asked for, which row answers each, and which of them are new. `leaving` gives its key up meanwhile; `ups`:
-- others somebody is about to wait for, who must be known.
CREATE FUNCTION prepare(jobs json, t float8, leaving text, self text, ups text[],
    OUT asked text[], OUT answers text[], OUT fresh text[]) LANGUAGE plpgsql AS $$
DECLARE
    x record;
    keys text[];
    named text;
    taken_keys text[] := '{}';
    taken_ids text[] := '{}';
    unknown text[];
    all_ups text[];
    all_fresh boolean;
BEGIN
    asked := '{}';
    answers := '{}';
    SELECT array_agg(k.key) INTO keys FROM json_to_recordset(jobs) AS k (key text) WHERE k.key IS NOT NULL;
    IF keys IS NOT NULL THEN
        PERFORM lock_keys(keys);
    END IF;
    fresh := put_in(jobs, t);
    SELECT coalesce(array_agg(DISTINCT y.id), '{}') INTO asked FROM json_to_recordset(jobs) AS y (id text);
    answers := asked;
    IF keys IS NOT NULL THEN
        FOR x IN SELECT * FROM json_to_recordset(jobs) AS y (id text, key text, conflict text)
            WHERE y.key IS NOT NULL
        LOOP
            CONTINUE WHEN NOT x.id = ANY (fresh) OR x.id = ANY (taken_ids);
            named := taken_ids[array_position(taken_keys, x.key)];
            IF named IS NULL THEN
                named := holder_of(x.key, t, leaving);
                IF named IS NOT NULL AND x.conflict = 'replace' THEN
                    PERFORM row_of(named, true);
                    named := holder_of(x.key, t, leaving);
                END IF;
            END IF;
            IF named IS NOT NULL AND x.conflict = 'raise' THEN
                RAISE EXCEPTION 'held' USING ERRCODE = 'TR001', DETAIL = json_build_array('held', x.key, named);
            END IF;
            IF named IS NOT NULL AND (x.conflict = 'keep' OR EXISTS (SELECT 1 FROM ended WHERE id = named)) THEN
                answers[array_position(asked, x.id)] := named;
                fresh := array_remove(fresh, x.id);
                DELETE FROM job WHERE id = x.id;
                CONTINUE;
            END IF;
            taken_keys := array_prepend(x.key, taken_keys);
            taken_ids := array_prepend(x.id, taken_ids);
        END LOOP;
    END IF;
    all_fresh := cardinality(fresh) = cardinality(asked);
    -- whoever they wait for is held, and known
    SELECT array_agg(DISTINCT CASE WHEN all_fresh THEN u.up
        ELSE coalesce(answers[array_position(asked, u.up)], u.up) END) INTO all_ups
    FROM json_to_recordset(jobs) AS y (id text, after text[]), unnest(y.after) AS u (up)
    WHERE y.after IS NOT NULL AND (all_fresh OR y.id = ANY (fresh));
    ups := ARRAY(SELECT unnest(ups) EXCEPT SELECT unnest(asked));  -- theirs is not a wait for somebody else
    all_ups := ARRAY(SELECT unnest(all_ups) UNION SELECT unnest(ups) EXCEPT SELECT unnest(fresh)
        EXCEPT SELECT self);
    IF cardinality(all_ups) > 0 THEN
        unknown := hold_ups(all_ups);
        IF cardinality(unknown) > 0 THEN
            FOR x IN
                SELECT y.id, u.up FROM json_to_recordset(jobs) AS y (id text, after text[], timeout float8),
                    unnest(y.after) AS u (up)
                WHERE y.id = ANY (fresh) AND y.timeout IS NULL AND u.up = ANY (unknown)
                UNION ALL SELECT self, u.up FROM unnest(ups) AS u (up) WHERE u.up = ANY (unknown)
                LIMIT 1
            LOOP
                RAISE EXCEPTION 'unknown' USING ERRCODE = 'TR001', DETAIL = json_build_array('unknown', x.up, x.id);
            END LOOP;
        END IF;
    END IF;
    INSERT INTO label (label, id)
    SELECT l.label, y.id FROM json_to_recordset(jobs) AS y (id text, labels text[]), unnest(y.labels) AS l (label)
    WHERE y.labels IS NOT NULL AND (all_fresh OR y.id = ANY (fresh)) ON CONFLICT DO NOTHING;
    PERFORM speak('queue:' || q.queue) FROM (
        SELECT DISTINCT y.queue FROM json_to_recordset(jobs) AS y (id text, queue text)
        WHERE all_fresh OR y.id = ANY (fresh)
    ) AS q;
END $$;

-- `ups`, `states`: endings still to be counted; they are, before the first of these is let go. `origin`: the unfinished
-- job they are born of.
CREATE FUNCTION store_all(jobs json, t float8, asked text[], answers text[], fresh text[], origin text,
    ups text[], states int[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    x record;
    r job;
    soft text;
    all_fresh boolean := cardinality(fresh) = cardinality(asked);   -- the usual case, in which nothing is looked up
BEGIN
    FOR x IN
        SELECT y.id, y.need, y.key IS NOT NULL OR y.lane IS NOT NULL OR y.after IS NOT NULL
            OR coalesce(y.words ? 'aging', false) AS asks
        FROM json_to_recordset(jobs) AS y (id text, need int, key text, lane text, after text[], words jsonb)
        WHERE all_fresh OR y.id = ANY (fresh)
    LOOP
        CONTINUE WHEN NOT x.asks;
        SELECT * INTO r FROM job WHERE id = x.id;
        soft := NULL;
        IF r.after IS NOT NULL THEN
            SELECT array_agg(m.up ORDER BY m.n) INTO r.after FROM (
                SELECT CASE WHEN all_fresh THEN a.up ELSE coalesce(answers[array_position(asked, a.up)], a.up) END AS up,
                    min(a.n) AS n
                FROM unnest(r.after) WITH ORDINALITY AS a (up, n) GROUP BY 1
            ) AS m;
        END IF;
        IF r.key IS NOT NULL THEN
            soft := take_key(r, t, origin, ups, states);    -- may have counted them; below they are counted again
            IF soft = ANY (r.after) THEN
                soft := NULL;   -- it waits for the holder by name, and with what it asked of that ending
            END IF;
        END IF;
        r.pending := least(x.need, coalesce(cardinality(r.after), 0)) + CASE WHEN soft IS NULL THEN 0 ELSE 1 END;
        UPDATE job SET pending = r.pending, after = r.after WHERE id = r.id;
        IF soft IS NOT NULL THEN
            INSERT INTO edge (up, down, version, soft) VALUES (soft, r.id, 0, true)
            ON CONFLICT (up, down) DO UPDATE SET version = 0, open = true, soft = true;
        END IF;
        PERFORM watch_ups(r, t, ups, states);
        ups := '{}';
        states := '{}';
    END LOOP;
    PERFORM count_endings(ups, states, t);
END $$;
