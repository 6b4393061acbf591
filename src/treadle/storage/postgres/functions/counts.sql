-- The kept counts. A call appends what it changes to `count_change`: a row for each queue, task and change of kind, in
-- the statement that changes the rows. No call updates a row that another one counts in, so none waits for another. The
-- count of a group is the number in `job_count` and the sum of its changes. `fold_counts` adds the changes up now and
-- then. An error that undoes the rows undoes the change with them, and a user's transaction counts when it commits.

-- The kind under which a job is counted: w(aiting) q(ueued) s(cheduled) b(locked) r(unning) d(one) f(ailed)
-- c(ancelled); `b` is followed by the limit.
CREATE FUNCTION kind_of(state smallint, queue_position float8, blocked_on text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE state WHEN 2 THEN 'r' WHEN 3 THEN 'd'
        WHEN 1 THEN CASE WHEN queue_position IS NOT NULL THEN 'q'
            WHEN blocked_on IS NOT NULL THEN 'b' || blocked_on ELSE 's' END
        WHEN 0 THEN 'w' WHEN 4 THEN 'f' ELSE 'c' END
$$;

-- Notes the change of one job; `was` NULL: the job is new, `became` NULL: it is deleted.
CREATE FUNCTION note_count(queue text, task text, was text, became text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF was IS DISTINCT FROM became THEN
        INSERT INTO count_change VALUES (queue, task, was, became, 1);
    END IF;
END $$;

-- Deletes unfinished rows that this call has inserted but must not store.
CREATE FUNCTION delete_jobs(ids text[]) RETURNS void LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM job WHERE id = ANY (ids) RETURNING queue, task, kind_of(state, queue_position, blocked_on) AS was
    )
    INSERT INTO count_change SELECT queue, task, was, NULL, count(*) FROM gone GROUP BY queue, task, was
$$;

-- Adds up the changes, one call at a time and never in a user's transaction, which may last for minutes. No call waits
-- for this one: only a call that has this lock writes `job_count` or deletes changes.
CREATE FUNCTION fold_counts() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('treadle.gates', true) = 'never'
        OR NOT pg_try_advisory_xact_lock(hashtextextended(current_schema() || ' counts', 0))
    THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM count_change RETURNING queue, task, was, became, jobs
    )
    INSERT INTO job_count AS c (queue, task, kind, jobs)
    SELECT g.queue, g.task, k.kind, sum(k.jobs)
    FROM gone g CROSS JOIN LATERAL (VALUES (g.was, -g.jobs), (g.became, g.jobs)) AS k (kind, jobs)
    WHERE k.kind IS NOT NULL GROUP BY g.queue, g.task, k.kind HAVING sum(k.jobs) <> 0
    ON CONFLICT (queue, task, kind) DO UPDATE SET jobs = c.jobs + excluded.jobs;
END $$;

-- Deletes the numbers of groups without jobs, for example of a limit's partitions.
CREATE FUNCTION drop_empty_counts() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(hashtextextended(current_schema() || ' counts', 0)) THEN
        DELETE FROM job_count WHERE jobs = 0;
    END IF;
END $$;

CREATE FUNCTION kept_counts() RETURNS TABLE (queue text, task text, kind text, jobs bigint) LANGUAGE sql STABLE AS $$
    SELECT a.queue, a.task, a.kind, sum(a.jobs)::bigint FROM (
        SELECT c.queue, c.task, c.kind, c.jobs FROM job_count c
        UNION ALL
        SELECT g.queue, g.task, k.kind, k.jobs
        FROM count_change g CROSS JOIN LATERAL (VALUES (g.was, -g.jobs), (g.became, g.jobs)) AS k (kind, jobs)
        WHERE k.kind IS NOT NULL
    ) AS a GROUP BY a.queue, a.task, a.kind HAVING sum(a.jobs) <> 0
$$;

-- The verb recount: returns the groups whose kept count differs from their rows, in one snapshot. `mend`: also correct
-- them, by a change as large as the difference, which is right whatever other calls change meanwhile. Two such calls
-- take turns, or both would correct the same difference; no other call takes this lock.
CREATE FUNCTION recount(mend boolean) RETURNS TABLE (queue text, task text, kind text, kept bigint, counted bigint)
LANGUAGE plpgsql SET search_path FROM CURRENT SET jit = off AS $$
BEGIN
    IF mend THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' recount', 0));
        RETURN QUERY WITH drift AS MATERIALIZED (
            SELECT * FROM count_drift()
        ), mended AS (
            INSERT INTO count_change SELECT f.queue, f.task, NULL, f.kind, f.counted - f.kept FROM drift f
        ) SELECT * FROM drift;
    ELSE
        RETURN QUERY SELECT * FROM count_drift();
    END IF;
END $$;

CREATE FUNCTION count_drift() RETURNS TABLE (queue text, task text, kind text, kept bigint, counted bigint)
LANGUAGE sql STABLE AS $$
    SELECT a.queue, a.task, a.kind, sum(a.kept)::bigint, sum(a.counted)::bigint FROM (
        SELECT k.queue, k.task, k.kind, k.jobs AS kept, 0 AS counted FROM kept_counts() AS k
        UNION ALL
        SELECT j.queue, j.task, kind_of(j.state, j.queue_position, j.blocked_on), 0, count(*) FROM job j
            GROUP BY 1, 2, 3
        UNION ALL
        SELECT e.queue, e.task, kind_of(e.state, NULL, NULL), 0, count(*) FROM ended e GROUP BY 1, 2, 3
    ) AS a GROUP BY a.queue, a.task, a.kind HAVING sum(a.kept) <> sum(a.counted)
$$;
