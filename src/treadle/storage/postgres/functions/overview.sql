-- The present state, at a cost that does not depend on the number of jobs. Only reads, takes no lock of ours, and sees
-- one snapshot.

-- For `stats` and `glance` -> [the time, kept counts, heads of queues, workers, the facts of limits, their slots,
-- rates]. queries.py reads it.
CREATE FUNCTION overview(moment float8) RETURNS json LANGUAGE plpgsql STABLE
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
BEGIN
    RETURN json_build_array(t,
        (SELECT coalesce(json_agg(json_build_array(c.queue, c.task, c.kind, c.jobs)), '[]') FROM kept_counts() AS c),
        queue_heads(),
        (SELECT coalesce(json_agg(json_build_array(w.presence, w.seen) ORDER BY w.num), '[]') FROM worker w),
        (SELECT coalesce(json_agg(json_build_array(f.name, f.kind, f.slots, f.rate, f.per, f.how, f.burst, f.hold,
                f.max_waiting, f.when_full, f.until)), '[]')
            FROM limit_fact f),
        used_by_limit(),
        (SELECT coalesce(json_agg(json_build_array(r.key, r.left_now, r.next_start, r.opens)), '[]')
            FROM rates(moment) AS r WHERE EXISTS (SELECT 1 FROM rule)));
END $$;

-- [queue, the earliest position] of each queue that has queued jobs: one look-up for each queue and each rank in it.
CREATE FUNCTION queue_heads() RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    heads json[] := '{}';
    line text := '';
    earliest float8;
    at_rank int;
    head float8;
BEGIN
    LOOP
        SELECT queue INTO line FROM job WHERE queue_position IS NOT NULL AND queue > line ORDER BY queue LIMIT 1;
        EXIT WHEN NOT FOUND;
        earliest := NULL;
        at_rank := 32768;   -- above every rank
        LOOP
            SELECT rank, queue_position INTO at_rank, head FROM job
            WHERE queue = line AND queue_position IS NOT NULL AND rank < at_rank
            ORDER BY rank DESC, queue_position, id LIMIT 1;
            EXIT WHEN NOT FOUND;
            earliest := least(earliest, head);
        END LOOP;
        heads := heads || json_build_array(line, earliest);
    END LOOP;
    RETURN array_to_json(heads);
END $$;

-- [limit, slots of running jobs, slots of all that hold one]. A queue's own limit has no rows in `slot`: its jobs are
-- counted, those that began and do not run only for hold="ended".
CREATE FUNCTION used_by_limit() RETURNS json LANGUAGE sql STABLE AS $$
    SELECT coalesce(json_agg(json_build_array(u.key, u.live, u.held)), '[]') FROM (
        SELECT key, coalesce(sum(cost) FILTER (WHERE live), 0) AS live, sum(cost) AS held FROM slot
        WHERE EXISTS (SELECT 1 FROM rule) GROUP BY key
        UNION ALL
        SELECT 'queue:' || queue, count(*) FILTER (WHERE NOT function_done), count(*) FROM job
        WHERE state = 2 AND EXISTS (SELECT 1 FROM rule WHERE name = 'queue' OR starts_with(name, 'queue:'))
            GROUP BY queue
        UNION ALL
        SELECT 'queue:' || queue, 0, count(*) FROM job WHERE started_at IS NOT NULL AND state < 2
            AND EXISTS (SELECT 1 FROM rule WHERE hold = 'ended' AND (name = 'queue' OR starts_with(name, 'queue:')))
                GROUP BY queue
    ) AS u
$$;
