-- The verb enqueue for jobs that are plain except for a key and a lease; if a key is held, its holder is returned. It
-- works like `enqueue_plain`, but in the order of the call, because the first job of a key gets it.
--
-- -> the time, then for each job that was not stored: its id and the row that is returned for it. Or 'general' in
-- `details` of the first row: one of these ids is known, and enqueue_any decides.
--
-- It takes a third of the time of enqueue_any. A session plans a fifth of the statements, which is most of the cost of
-- a single job at the start of a worker.
CREATE FUNCTION enqueue_keyed(moment float8, jobs new_jobs, patience int) RETURNS SETOF returned_row LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    -- copied into variables: reading an element of a composite's field reads all elements before it
    ids constant text[] := jobs.ids;
    tasks constant text[] := jobs.tasks;
    queues constant text[] := jobs.queues;
    specs constant text[] := jobs.specs;
    limits constant text[] := jobs.limits;
    costs constant text[] := jobs.costs;
    keys constant text[] := jobs.keys;
    words constant text[] := jobs.words;
    stored bigint;              -- keys that were new
    winners int[];              -- their indexes in the call
    heirs int[];                -- the jobs whose key had a row
    losers text[];
    holders text[];             -- for each of them: the row that is returned for it
    general boolean := false;
    bounds text;                -- of queues; NULL: none has one
BEGIN
    PERFORM begin_call(NULL);
    IF patience IS NOT NULL THEN
        PERFORM set_config('lock_timeout', patience::text, true);
    END IF;
    SELECT value INTO bounds FROM meta WHERE name = 'bounds';
    BEGIN
        -- as in lock_keys, in the same order; a new key gets its holder at once. ON CONFLICT costs half as much again.
        -- So a call with more than 100 keys, none of them known, inserts them without it; a key that is stored
        -- meanwhile raises unique_violation. Looks up ten keys first, because looking up all of them sorts them
        IF cardinality(ids) > 100 AND NOT EXISTS (SELECT 1 FROM holder h WHERE h.key = ANY (keys[1:10]))
            AND NOT EXISTS (SELECT 1 FROM holder h WHERE h.key = ANY (keys))
        THEN
            INSERT INTO holder (key, id)
            SELECT DISTINCT ON (keys[n]) keys[n] AS k, ids[n] FROM generate_series(1, cardinality(ids)) AS n
            ORDER BY k, n;
        ELSE
            INSERT INTO holder (key, id)
            SELECT DISTINCT ON (keys[n]) keys[n] AS k, ids[n] FROM generate_series(1, cardinality(ids)) AS n
            ORDER BY k, n
            ON CONFLICT (key) DO UPDATE SET id = holder.id WHERE false;
        END IF;
        GET DIAGNOSTICS stored = ROW_COUNT;
        IF stored = cardinality(ids) THEN
            winners := ARRAY(SELECT generate_series(1, cardinality(ids)));
        ELSE
            -- a row of `job` that has its key holds it; an ended job may still hold it, for its window
            SELECT array_agg(x.n) FILTER (WHERE x.answer IS NULL),
                array_agg(x.n) FILTER (WHERE x.answer IS NULL AND x.named IS DISTINCT FROM x.id),
                array_agg(x.id) FILTER (WHERE x.answer IS NOT NULL),
                array_agg(x.answer) FILTER (WHERE x.answer IS NOT NULL)
            INTO winners, heirs, losers, holders
            FROM (
                SELECT y.n, y.id, y.named, coalesce(
                    CASE WHEN y.named IS NULL OR y.named = y.first THEN NULL
                        WHEN EXISTS (SELECT 1 FROM job j WHERE j.id = y.named AND j.key IS NOT NULL) THEN y.named
                        ELSE holder_of(y.key, t) END,
                    CASE WHEN y.nth > 1 THEN y.first END) AS answer
                FROM (
                    SELECT n, ids[n] AS id, keys[n] AS key, (SELECT h.id FROM holder h WHERE h.key = keys[n]) AS named,
                        first_value(ids[n]) OVER same AS first, row_number() OVER same AS nth
                    FROM generate_series(1, cardinality(ids)) AS n
                    WINDOW same AS (PARTITION BY keys[n] COLLATE "C" ORDER BY n)
                ) AS y
            ) AS x;
        END IF;
        t := instant(moment);       -- the holder of a key may have ended while this call waited
        IF cardinality(winners) > 0 THEN
            WITH put AS (
                INSERT INTO job (id, task, queue, rank, keep, keep_failed, limits, costs, key, words, lease, spec,
                    state, queue_position, return_position, created_at, updated_at)
                SELECT ids[n], tasks[n], queues[n], coalesce(jobs.ranks[n], 0), coalesce(jobs.keeps[n], ${KEEP}),
                    coalesce(jobs.keeps_failed[n], ${KEEP_FAILED}), nullif(limits[n], '')::text[],
                    nullif(costs[n], '')::int[], keys[n], nullif(words[n], '')::jsonb, jobs.leases[n], specs[n],
                    1, t, t, t, t
                FROM unnest(winners) AS n ORDER BY ids[n] COLLATE "C" RETURNING queue, task
            )
            INSERT INTO count_change SELECT queue, task, NULL, 'q', count(*) FROM put GROUP BY queue, task;
        END IF;
        general := EXISTS (SELECT 1 FROM job j WHERE j.id = ANY (losers)) OR (
            EXISTS (SELECT 1 FROM ended e
                WHERE e.id BETWEEN (SELECT min(i COLLATE "C") FROM unnest(ids) AS i)
                    AND (SELECT max(i COLLATE "C") FROM unnest(ids) AS i))
            AND EXISTS (SELECT 1 FROM ended e WHERE e.id = ANY (ids)));
        IF general OR (bounds IS NOT NULL AND NOT has_room(bounds::json, queues)) THEN
            RAISE unique_violation;     -- undoes everything above
        END IF;
        IF heirs IS NOT NULL THEN
            UPDATE holder SET id = ids[n] FROM unnest(heirs) AS n WHERE holder.key = keys[n];
        END IF;
    EXCEPTION WHEN unique_violation THEN
        general := true;
    END;
    RETURN NEXT first_row(t, CASE WHEN general THEN 'general' END);
    IF general THEN
        RETURN;
    END IF;
    IF cardinality(losers) > 0 THEN
        RETURN QUERY SELECT * FROM returned_rows(losers, holders);
    END IF;
    IF jobs.labels IS NOT NULL AND cardinality(winners) > 0 THEN
        INSERT INTO label (label, id)
        SELECT unnest(nullif(jobs.labels[n], '')::text[]), ids[n] FROM unnest(winners) AS n ON CONFLICT DO NOTHING;
    END IF;
    IF cardinality(winners) > 0 THEN
        PERFORM publish('queue:' || q) FROM (SELECT DISTINCT queues[n] FROM unnest(winners) AS n) AS touched (q);
    END IF;
END $$;
