-- The mark of a move that this storage takes part in, which controls what is allowed during the move; and the import of
-- rows.

-- Every verb calls this first. A call that sets a mark waits for the transactions that have passed here, even for a
-- user's long one: otherwise a job that it has stored would be left behind. Raises TR002 with the mark, unless the mark
-- has the role `but`.
CREATE FUNCTION begin_call(but text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    mark text;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(hashtextextended(current_schema() || ' move', 0));
    SELECT value INTO mark FROM meta WHERE name = 'move';
    IF FOUND AND is_closed(mark) AND mark::json ->> 'role' IS DISTINCT FROM but THEN
        RAISE EXCEPTION USING ERRCODE = 'TR002', MESSAGE = mark;
    END IF;
    IF random() < 0.005 THEN    -- 200 calls that each store jobs of 20 tasks append 4,000 changes: 3 ms for `stats`
        PERFORM fold_counts();
    END IF;
END $$;

CREATE FUNCTION is_closed(mark text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT mark::json ->> 'role' IN ('closing', 'gone', 'filling', 'partial')
$$;

-- Returns the stored mark if it refuses the new one, else NULL. If the new mark opens the storage, all workers are
-- woken, and jobs are unblocked as far as their limits have room.
CREATE FUNCTION set_mark(moment float8, mark text) RETURNS text LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    refused_by text;
BEGIN
    refused_by := write_mark(mark);
    IF refused_by IS NULL AND NOT is_closed(mark) THEN
        PERFORM unblock_all_limits(t);
        PERFORM publish('queue:*');
    END IF;
    RETURN refused_by;
END $$;

-- Waits for the verbs in progress, but for 200 ms at most: all other calls queue behind this one meanwhile. Returns
-- NULL, or the stored mark if that refuses the new one, or {"waits": the transaction in the way}: then the call is
-- repeated after a pause.
CREATE FUNCTION write_mark(mark text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
    stored text;
BEGIN
    BEGIN
        PERFORM set_config('lock_timeout', '200ms', true);
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' move', 0));
        PERFORM set_config('lock_timeout', before, true);
    EXCEPTION WHEN lock_not_available THEN
        RETURN json_build_object('waits', blocking_transaction());
    END;
    SELECT value INTO stored FROM meta WHERE name = 'move';
    IF stored IS NOT NULL AND NOT mark_replaces(stored::json, mark::json) THEN
        RETURN stored;
    END IF;
    INSERT INTO meta (name, value) VALUES ('move', mark) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
    RETURN NULL;
END $$;

-- Describes the longest transaction that holds the lock of `begin_call`.
CREATE FUNCTION blocking_transaction() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    lock constant bigint := hashtextextended(current_schema() || ' move', 0);
BEGIN
    RETURN coalesce((
        SELECT format('the open transaction of server process %s (%s), begun at %s', a.pid,
            concat_ws(', ', 'role ' || a.usename, nullif(a.application_name, ''), host(a.client_addr)),
            to_char(a.xact_start, 'HH24:MI:SS'))
        FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid <> pg_backend_pid()
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND ((l.classid::bigint << 32) | l.objid::bigint) = lock
        ORDER BY a.xact_start LIMIT 1), 'an open transaction');
END $$;

-- The age in seconds of the oldest transaction that holds the lock of `begin_call`; 0 if there is none. Infinity if
-- that cannot be seen: a prepared transaction has no process, and a role without pg_read_all_stats cannot see the times
-- of other roles.
CREATE FUNCTION oldest_open() RETURNS float8 LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    lock constant bigint := hashtextextended(current_schema() || ' move', 0);
BEGIN
    RETURN coalesce((
        SELECT max(coalesce(extract(epoch FROM clock_timestamp() - a.xact_start)::float8, 'infinity'))
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.pid IS DISTINCT FROM pg_backend_pid()
            AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND ((l.classid::bigint << 32) | l.objid::bigint) = lock), 0);
END $$;

-- The rule is `replaces` in storage/transfer.py.
CREATE FUNCTION mark_replaces(stored json, mark json) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN coalesce(stored ->> 'run', '') = mark ->> 'run'
            THEN (mark ->> 'step')::int >= coalesce((stored ->> 'step')::int, 0)
        WHEN stored ->> 'move' = mark ->> 'move' AND stored ->> 'role' IN ('arrived', 'aborted', 'partial') THEN false
        ELSE (mark ->> 'turn')::int > coalesce((stored ->> 'turn')::int, 0)
    END
$$;

-- Import rules, the state of rates, rows of metrics, and jobs: each of these an object with the columns of `job`, and
-- steps, labels, holds, first and edges. Known ids are left unchanged, so the call may be repeated. No topics are
-- noted.
CREATE FUNCTION import_rows(rules json, rates json, measured json, jobs json, mark text) RETURNS text LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off AS $$
DECLARE
    fresh text[];
    refused_by text := write_mark(mark);
BEGIN
    IF refused_by IS NOT NULL THEN
        RETURN refused_by;
    END IF;
    DELETE FROM limit_fact f USING json_to_recordset(rules) AS x (name text) WHERE f.name = x.name;
    INSERT INTO limit_fact SELECT * FROM json_populate_recordset(NULL::limit_fact, rules);
    PERFORM derive_rule(x.name) FROM (SELECT DISTINCT name FROM json_to_recordset(rules) AS r (name text)) AS x;
    PERFORM derive_bounds();
    INSERT INTO start (key, at, cost)
    SELECT x.key, (s.value ->> 0)::float8 AS at, sum((s.value ->> 1)::bigint)
    FROM json_to_recordset(rates) AS x (key text, starts json), json_array_elements(x.starts) AS s
    GROUP BY x.key, (s.value ->> 0)::float8
    ON CONFLICT (key, at) DO UPDATE SET cost = excluded.cost;
    INSERT INTO gate (key, spent, tokens, at, since)
    SELECT x.key, coalesce((SELECT sum((s.value ->> 1)::bigint) FROM json_array_elements(x.starts) AS s), 0),
        x.tokens, x.at, x.since
    FROM json_to_recordset(rates) AS x (key text, starts json, tokens float8, at float8, since float8)
    ON CONFLICT (key) DO UPDATE
    SET spent = excluded.spent, tokens = excluded.tokens, at = excluded.at, since = excluded.since;
    INSERT INTO metrics (span, at, source, data)
    SELECT x.span, x.at, x.source, decode(x.data, 'hex')
    FROM json_to_recordset(measured) AS x (at float8, span float8, source text, data text)
    ON CONFLICT (span, at, source) DO UPDATE SET data = excluded.data;
    SELECT array_agg(x.id) INTO fresh FROM json_to_recordset(jobs) AS x (id text)
    WHERE NOT EXISTS (SELECT 1 FROM job j WHERE j.id = x.id) AND NOT EXISTS (SELECT 1 FROM ended d WHERE d.id = x.id);
    WITH put AS (
        INSERT INTO job
        SELECT * FROM json_populate_recordset(NULL::job, jobs) AS r WHERE r.state < 3 AND r.id = ANY (fresh)
        RETURNING queue, task, kind_of(state, queue_position, blocked_on) AS kind
    ), over AS (
        INSERT INTO ended
        SELECT * FROM json_populate_recordset(NULL::ended, jobs) AS r WHERE r.state > 2 AND r.id = ANY (fresh)
        RETURNING queue, task, kind_of(state, NULL, NULL) AS kind
    )
    INSERT INTO count_change SELECT a.queue, a.task, NULL, a.kind, count(*)
    FROM (SELECT * FROM put UNION ALL SELECT * FROM over) AS a GROUP BY a.queue, a.task, a.kind;
    INSERT INTO checkpoints (id, name, value)
    SELECT x.id, s.step ->> 0, s.step ->> 1
    FROM json_to_recordset(jobs) AS x (id text, steps json), json_array_elements(x.steps)
        WITH ORDINALITY AS s (step, at)
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
    FROM json_to_recordset(jobs) AS x (id text, edges json), json_array_elements(x.edges)
        WITH ORDINALITY AS e (edge, at)
    WHERE x.id = ANY (fresh) ORDER BY x.id, e.at ON CONFLICT DO NOTHING;
    INSERT INTO slot (key, id, cost, live)
    SELECT u.key, j.id, u.cost, j.state = 2 AND NOT j.function_done
    FROM job j, unnest(j.limits, j.costs) AS u (key, cost)
    WHERE j.id = ANY (fresh) AND j.started_at IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
