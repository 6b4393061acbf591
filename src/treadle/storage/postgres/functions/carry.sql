-- The mark of a move that this storage is part of: who may do what meanwhile. And rows taken in as they were elsewhere.

-- Every verb passes here first. What has begun is waited for by whoever sets a mark: also a user's long transaction,
-- or a job stored in it would be left behind. TR002 carries the mark; under the role `but` the verb goes on as ever.
CREATE FUNCTION enter(but text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mark text;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(current_schema() || ' move', 0));
    SELECT value INTO mark FROM meta WHERE name = 'move';
    IF FOUND AND is_shut(mark) AND mark::json ->> 'role' IS DISTINCT FROM but THEN
        RAISE EXCEPTION USING ERRCODE = 'TR002', MESSAGE = mark;
    END IF;
END $$;

CREATE FUNCTION is_shut(mark text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT mark::json ->> 'role' IN ('closing', 'gone', 'filling')
$$;

-- NULL: none. Where the storage is open (again), everybody is woken, and who stands aside with room for him comes back.
CREATE FUNCTION set_mark(moment float8, mark text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    limited text;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' move', 0));
    PERFORM write_mark(mark);
    IF mark IS NULL OR NOT is_shut(mark) THEN
        FOR limited IN SELECT DISTINCT parked FROM job WHERE parked IS NOT NULL AND place IS NULL ORDER BY parked LOOP
            PERFORM call_in_for(limited, t);
        END LOOP;
        PERFORM speak('queue:*');
    END IF;
END $$;

CREATE FUNCTION write_mark(mark text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF mark IS NULL THEN
        DELETE FROM meta WHERE name = 'move';
    ELSE
        INSERT INTO meta (name, value) VALUES ('move', mark) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    END IF;
END $$;

-- Rules and what rates remember, and jobs: each an object with the columns of `job`, and steps, labels, holds, first and
-- edges beside them. Ids that are known are left as they are, so it may be repeated. Nobody is told.
CREATE FUNCTION take_in(rules json, rates json, jobs json, mark text) RETURNS void LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    fresh text[];
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' move', 0));
    INSERT INTO rule SELECT * FROM json_populate_recordset(NULL::rule, rules)
    ON CONFLICT (name) DO UPDATE SET slots = excluded.slots, rate = excluded.rate, per = excluded.per,
        how = excluded.how, burst = excluded.burst, hold = excluded.hold;
    INSERT INTO start (key, at, cost)
    SELECT x.key, (s.value ->> 0)::float8 AS at, sum((s.value ->> 1)::int)
    FROM json_to_recordset(rates) AS x (key text, starts json), json_array_elements(x.starts) AS s
    GROUP BY x.key, (s.value ->> 0)::float8
    ON CONFLICT (key, at) DO UPDATE SET cost = excluded.cost;
    INSERT INTO gate (key, spent, tokens, at)
    SELECT x.key, coalesce((SELECT sum((s.value ->> 1)::int) FROM json_array_elements(x.starts) AS s), 0), x.tokens, x.at
    FROM json_to_recordset(rates) AS x (key text, starts json, tokens float8, at float8)
    ON CONFLICT (key) DO UPDATE SET spent = excluded.spent, tokens = excluded.tokens, at = excluded.at;
    SELECT array_agg(x.id) INTO fresh FROM json_to_recordset(jobs) AS x (id text)
    WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = x.id) AND NOT EXISTS (SELECT 1 FROM ended d WHERE d.id = x.id);
    INSERT INTO job SELECT * FROM json_populate_recordset(NULL::job, jobs) AS r WHERE r.state < 3 AND r.id = ANY (fresh);
    INSERT INTO ended SELECT * FROM json_populate_recordset(NULL::ended, jobs) AS r
    WHERE r.state > 2 AND r.id = ANY (fresh);
    INSERT INTO memo (id, name, value)
    SELECT x.id, s.step ->> 0, s.step ->> 1
    FROM json_to_recordset(jobs) AS x (id text, steps json), json_array_elements(x.steps) WITH ORDINALITY AS s (step, at)
    WHERE x.id = ANY (fresh) ORDER BY x.id, s.at;
    INSERT INTO label (label, id)
    SELECT l.label, x.id FROM json_to_recordset(jobs) AS x (id text, labels text[]), unnest(x.labels) AS l (label)
    WHERE x.id = ANY (fresh) ON CONFLICT DO NOTHING;
    INSERT INTO holder (key, id)
    SELECT x.key, x.id FROM json_to_recordset(jobs) AS x (id text, key text, holds boolean)
    WHERE x.holds AND x.id = ANY (fresh) ON CONFLICT (key) DO UPDATE SET id = excluded.id;
    INSERT INTO behind (id, first)
    SELECT x.id, x.first FROM json_to_recordset(jobs) AS x (id text, first text)
    WHERE x.first IS NOT NULL AND x.id = ANY (fresh) ON CONFLICT DO NOTHING;
    INSERT INTO edge (up, down, version, open, soft)
    SELECT e.edge ->> 0, x.id, (e.edge ->> 1)::int, (e.edge ->> 2)::boolean, (e.edge ->> 3)::boolean
    FROM json_to_recordset(jobs) AS x (id text, edges json), json_array_elements(x.edges) WITH ORDINALITY AS e (edge, at)
    WHERE x.id = ANY (fresh) ORDER BY x.id, e.at ON CONFLICT DO NOTHING;
    INSERT INTO slot (key, id, cost, live)
    SELECT u.key, j.id, u.cost, j.state = 2 AND NOT j.ran
    FROM job j, unnest(j.limits, j.costs) AS u (key, cost)
    WHERE j.id = ANY (fresh) AND j.started_at IS NOT NULL ON CONFLICT DO NOTHING;
    PERFORM write_mark(mark);
END $$;
