-- The present state at a bounded cost. Only reads, takes no lock of ours, and sees one snapshot.

-- The verb -> [the time, queues, other kinds of jobs, workers, the facts of limits, their slots, blocked jobs, rates].
-- queries.py reads it. most: the bound of each count.
CREATE FUNCTION glance(moment float8, most int) RETURNS json LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
BEGIN
    RETURN json_build_array(t, queued_by_queue(most), kinds_by_queue(most),
        (SELECT coalesce(json_agg(json_build_array(w.presence, w.seen) ORDER BY w.num), '[]') FROM worker w),
        (SELECT coalesce(json_agg(json_build_array(f.name, f.kind, f.slots, f.rate, f.per, f.how, f.burst, f.hold, f.until)), '[]')
            FROM limit_fact f),
        used_by_limit(), blocked_by_limit(most), (SELECT coalesce(json_agg(json_build_array(r.key, r.left_now, r.next_start)), '[]')
            FROM rates(moment) AS r WHERE EXISTS (SELECT 1 FROM rule)));
END $$;

-- [queue, queued jobs up to most + 1, the earliest position] of each queue that has any. One look-up finds the next
-- queue, and beyond the bound one the first job of the next rank.
CREATE FUNCTION queued_by_queue(most int) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    told json[] := '{}';
    line text := '';
    jobs bigint;
    earliest float8;
    at_rank int;
    head float8;
BEGIN
    LOOP
        SELECT queue INTO line FROM job WHERE queue_position IS NOT NULL AND queue > line ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT count(*), min(k.queue_position) INTO jobs, earliest FROM (
            SELECT queue_position FROM job WHERE queue = line AND queue_position IS NOT NULL
            ORDER BY rank DESC, queue_position, id LIMIT most + 1) AS k;
        IF jobs > most THEN
            earliest := NULL;
            at_rank := 32768;   -- above every rank
            LOOP
                SELECT rank, queue_position INTO at_rank, head FROM job
                WHERE queue = line AND queue_position IS NOT NULL AND rank < at_rank
                ORDER BY rank DESC, queue_position, id LIMIT 1;
                EXIT WHEN NOT FOUND;
                earliest := least(earliest, head);
            END LOOP;
        END IF;
        told := told || json_build_array(line, jobs, earliest);
    END LOOP;
    RETURN array_to_json(told);
END $$;

-- [kind, queue, jobs, whether there are more than `most` of this kind] for each kind with one bound over all queues.
CREATE FUNCTION kinds_by_queue(most int) RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_array(c.kind, c.queue, c.jobs, c.capped)), '[]') FROM (
        SELECT k.kind, k.queue, count(*) FILTER (WHERE k.n <= most) AS jobs, bool_or(k.n > most) AS capped FROM (
            (SELECT 'running' AS kind, queue, row_number() OVER () AS n FROM job WHERE state = 2 LIMIT most + 1)
            UNION ALL (SELECT 'scheduled', queue, row_number() OVER () FROM job
                WHERE state = 1 AND queue_position IS NULL AND blocked_on IS NULL LIMIT most + 1)
            UNION ALL (SELECT 'blocked', queue, row_number() OVER () FROM job
                WHERE blocked_on IS NOT NULL AND queue_position IS NULL AND state = 1 LIMIT most + 1)
            UNION ALL (SELECT 'waiting', queue, row_number() OVER () FROM job
                WHERE state = 0 AND queue_position IS NULL AND blocked_on IS NULL LIMIT most + 1)
            UNION ALL (SELECT 'failed', queue, row_number() OVER () FROM ended WHERE state = 4 LIMIT most + 1)
        ) AS k GROUP BY k.kind, k.queue
    ) AS c
$$;

-- [limit, slots of running jobs, slots of all that hold one]. A queue's own limit has no rows in `slot`: its jobs are
-- counted, those that began and do not run only for hold="ended".
CREATE FUNCTION used_by_limit() RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_array(u.key, u.live, u.held)), '[]') FROM (
        SELECT key, coalesce(sum(cost) FILTER (WHERE live), 0) AS live, sum(cost) AS held FROM slot
        WHERE EXISTS (SELECT 1 FROM rule) GROUP BY key
        UNION ALL
        SELECT 'queue:' || queue, count(*) FILTER (WHERE NOT function_done), count(*) FROM job
        WHERE state = 2 AND EXISTS (SELECT 1 FROM rule WHERE name = 'queue' OR starts_with(name, 'queue:')) GROUP BY queue
        UNION ALL
        SELECT 'queue:' || queue, 0, count(*) FROM job WHERE started_at IS NOT NULL AND state < 2
            AND EXISTS (SELECT 1 FROM rule WHERE hold = 'ended' AND (name = 'queue' OR starts_with(name, 'queue:'))) GROUP BY queue
    ) AS u
$$;

-- [limit, blocked jobs], counted up to `most` over all limits; beyond that each limit counts one job.
CREATE FUNCTION blocked_by_limit(most int) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    told json[] := '{}';
    limited text := '';
    jobs bigint;
    rest bigint := most;
BEGIN
    LOOP
        SELECT blocked_on INTO limited FROM job WHERE blocked_on IS NOT NULL AND queue_position IS NULL AND blocked_on > limited
        ORDER BY blocked_on LIMIT 1;
        EXIT WHEN NOT FOUND;
        SELECT count(*) INTO jobs FROM (
            SELECT 1 FROM job WHERE blocked_on = limited AND queue_position IS NULL LIMIT greatest(rest, 1)) AS k;
        rest := rest - jobs;
        told := told || json_build_array(limited, jobs);
    END LOOP;
    RETURN array_to_json(told);
END $$;
