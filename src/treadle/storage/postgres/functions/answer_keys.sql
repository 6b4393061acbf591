-- The keys of new jobs (prepare_jobs.sql).

-- Finds the row to return for each job with a key; the keys are locked -> `answers` in the order of `requested`, and
-- the ids of `fresh` that stay; the other new rows are deleted. One pass handles all keys: looking up those of 20,000
-- jobs in arrays exceeded the time limit of a call. Only jobs with a key whose holder is to be replaced are handled one
-- by one. Hash joins are on, because arrays have no index.
CREATE FUNCTION answer_keys(jobs json, moment float8, t float8, leaving text, requested text[], fresh text[],
    OUT answers text[], OUT kept text[]) LANGUAGE plpgsql
SET jit = off SET enable_hashjoin = on SET enable_sort = on AS $$
DECLARE
    losers text[];
    rivals text[];                  -- for each of them: the row that is returned for it
    denied text[];                  -- the first key that is refused because it is held, and its index in the call
    later text[];
BEGIN
    WITH x AS (
        SELECT y.id, y.key, y.conflict, y.n
        FROM ROWS FROM (json_to_recordset(jobs) AS (id text, key text, conflict text))
            WITH ORDINALITY AS y (id, key, conflict, n)
        JOIN unnest(fresh) AS f (id) ON f.id = y.id
        WHERE y.key IS NOT NULL
    ), turn AS (
        SELECT x.*, first_value(x.id) OVER same AS first, row_number() OVER same AS nth,
            bool_or(x.conflict = 'replace') OVER (PARTITION BY x.key) AS replaced
        FROM x WINDOW same AS (PARTITION BY x.key ORDER BY x.n)
    ), held AS (
        SELECT turn.*, coalesce(CASE WHEN h.id IS NOT NULL THEN holder_of(turn.key, t, leaving, true, moment) END,
            CASE WHEN turn.nth > 1 THEN turn.first END) AS holder
        FROM turn LEFT JOIN LATERAL (SELECT id FROM holder WHERE key = turn.key OFFSET 0) AS h ON true
        WHERE NOT turn.replaced
    ) SELECT array_agg(held.id), array_agg(held.holder),
        (SELECT ARRAY[json_build_array('held', d.key, d.holder)::text, d.n::text] FROM held AS d
         WHERE d.holder IS NOT NULL AND d.conflict = 'raise' ORDER BY d.n LIMIT 1)
    INTO losers, rivals, denied FROM held WHERE held.holder IS NOT NULL;
    SELECT losers || r.ids, rivals || r.held, r.denied INTO losers, rivals, later
    FROM replace_keys(jobs, t, leaving, fresh) AS r (ids, held, denied);
    IF denied IS NULL OR later[2]::int < denied[2]::int THEN     -- the first of the call is reported
        denied := later;
    END IF;
    IF denied IS NOT NULL THEN
        RAISE EXCEPTION 'held' USING ERRCODE = 'TR001', DETAIL = denied[1];
    END IF;
    answers := requested;
    kept := fresh;
    IF cardinality(losers) > 0 THEN
        PERFORM delete_jobs(losers);
        answers := ARRAY(
            SELECT coalesce(l.answer, a.id) FROM unnest(requested) WITH ORDINALITY AS a (id, n)
            LEFT JOIN unnest(losers, rivals) AS l (id, answer) ON l.id = a.id ORDER BY a.n);
        kept := ARRAY(SELECT unnest(fresh) EXCEPT SELECT unnest(losers));
    END IF;
END $$;

-- Finds the same for keys whose holder one of the jobs replaces, in the order of the call.
CREATE FUNCTION replace_keys(jobs json, t float8, leaving text, fresh text[], OUT losers text[], OUT rivals text[],
    OUT denied text[]) LANGUAGE plpgsql AS $$
DECLARE
    new_job record;
    named text;
    taken jsonb := '{}';        -- key -> the last job of this call that takes it
BEGIN
    losers := '{}';
    rivals := '{}';
    FOR new_job IN
        WITH y AS (
            SELECT * FROM ROWS FROM (json_to_recordset(jobs) AS (id text, key text, conflict text))
                WITH ORDINALITY AS y (id, key, conflict, n)
        ) SELECT * FROM y
        WHERE y.key IN (SELECT z.key FROM y AS z JOIN unnest(fresh) AS f (id) ON f.id = z.id
            WHERE z.conflict = 'replace')
        ORDER BY y.n
    LOOP
        CONTINUE WHEN NOT new_job.id = ANY (fresh);
        named := taken ->> new_job.key;
        IF named IS NULL THEN
            named := holder_of(new_job.key, t, leaving);
            IF named IS NOT NULL AND new_job.conflict = 'replace' THEN
                PERFORM lock_row(named, true);
                named := holder_of(new_job.key, t, leaving);
            END IF;
        END IF;
        IF named IS NOT NULL AND new_job.conflict = 'raise' THEN
            denied := ARRAY[json_build_array('held', new_job.key, named)::text, new_job.n::text];
            RETURN;
        END IF;
        IF named IS NOT NULL AND (new_job.conflict = 'keep' OR EXISTS (SELECT 1 FROM ended WHERE id = named)) THEN
            losers := losers || new_job.id;
            rivals := rivals || named;
        ELSE
            taken := taken || jsonb_build_object(new_job.key, new_job.id);
        END IF;
    END LOOP;
END $$;
