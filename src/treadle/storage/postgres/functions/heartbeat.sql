-- The verb heartbeat: renews the leases of the jobs that a worker still runs. It does not wait for a row that another
-- transaction has locked. It leaves such a row unchanged and returns its job as held: the row may stay locked for
-- minutes, and the other leases must be renewed. -> for each renewal that was not written: its id, and whether the job
-- is still held.
CREATE FUNCTION heartbeat(moment float8, name text, presence text, holds json, lease float8)
RETURNS TABLE (job_id text, held boolean) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms'
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off
SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    latest float8;
    done text[];
    renewal record;
BEGIN
    PERFORM begin_call('closing');
    -- a new worker is compared with all workers: a machine whose clock was corrected is often restarted
    latest := coalesce((SELECT w.seen FROM worker w WHERE w.name = name), (SELECT max(w.seen) FROM worker w));
    IF latest > t + 1 THEN
        t := instant(moment);   -- this call may have been held up for a second, and other calls may have come meanwhile
        IF latest > t + 1 THEN
            PERFORM correct_clock(t);
        END IF;
    END IF;
    IF presence IS NULL THEN
        DELETE FROM worker w WHERE w.name = name;
    ELSE
        INSERT INTO worker AS w (name, presence, seen) VALUES (name, presence, t)
        ON CONFLICT ON CONSTRAINT worker_pkey DO UPDATE SET presence = excluded.presence, seen = excluded.seen;
    END IF;
    WITH beaten AS (
        UPDATE job j SET due_at = t + least(nullif(j.lease, 0), lease), updated_at = t
        WHERE j.ctid = ANY (ARRAY(
                SELECT k.spot FROM json_to_recordset(holds) AS x (id text, version int, quiet boolean)
                CROSS JOIN LATERAL (
                    SELECT ctid AS spot FROM job
                    WHERE id = x.id AND version = x.version AND state + 0 = 2 AND worker IS NOT NULL
                    OFFSET 0 FOR NO KEY UPDATE SKIP LOCKED) AS k
                WHERE x.quiet))
        RETURNING j.id
    ) SELECT array_agg(beaten.id) INTO done FROM beaten;
    IF coalesce(cardinality(done), 0) < json_array_length(holds) THEN
        FOR renewal IN
            SELECT * FROM json_to_recordset(holds) AS x (id text, version int, checkpoints json, note text,
                reach text[])
            ORDER BY x.id
        LOOP
            CONTINUE WHEN renewal.id = ANY (done);
            held := renew_lease(renewal.id, renewal.version, renewal.checkpoints, renewal.note, renewal.reach,
                lease, t);
            IF held IS NOT NULL THEN
                job_id := renewal.id;
                RETURN NEXT;
            END IF;
        END LOOP;
    END IF;
    IF EXISTS (SELECT 1 FROM job j WHERE j.due_at <= t AND j.state <> 2)
        OR EXISTS (SELECT 1 FROM job j WHERE j.due_at < t AND j.state = 2)
        OR EXISTS (SELECT 1 FROM gate g WHERE g.opens <= t)
        OR EXISTS (SELECT 1 FROM recheck)
    THEN
        PERFORM advance_due(t);
    END IF;
END $$;

-- Corrects rows after the clock was ahead of t: starts that it recorded count as now, and due rows keep the time that
-- they had left. Locked rows are skipped, because their transactions write them again.
CREATE FUNCTION correct_clock(t float8) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    keys text[] := ARRAY(
        SELECT s.key FROM start s WHERE s.at > t UNION SELECT g.key FROM gate g WHERE g.at > t OR g.opens > t);
BEGIN
    UPDATE worker SET seen = t WHERE name IN (
        SELECT w.name FROM worker w WHERE w.seen > t ORDER BY w.name FOR NO KEY UPDATE SKIP LOCKED);
    PERFORM lock_gates(keys);
    WITH ahead AS (DELETE FROM start s WHERE s.key = ANY (keys) AND s.at > t RETURNING s.key, s.cost)
    INSERT INTO start (key, at, cost) SELECT ahead.key, t, sum(ahead.cost) FROM ahead GROUP BY ahead.key
    ON CONFLICT (key, at) DO UPDATE SET cost = start.cost + excluded.cost;
    UPDATE gate SET at = least(at, t), since = least(since, t), opens = CASE WHEN opens > t THEN t ELSE opens END
    WHERE key = ANY (keys);
    UPDATE job SET due_at = greatest(t, due_at - (updated_at - t)), updated_at = t WHERE id IN (
        SELECT j.id FROM job j WHERE j.due_at > t AND j.updated_at > t AND j.state IN (1, 2)
            AND j.queue_position IS NULL AND j.blocked_on IS NULL
            AND NOT (j.started_at IS NULL AND coalesce(j.words ? 'run_at', false))
        ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED);
END $$;

-- Makes one renewal that has a checkpoint or a note, or whose lease has expired. Returns NULL if it was written,
-- otherwise whether the job is still held.
CREATE FUNCTION renew_lease(wanted text, of_version int, steps json, new_note text, reach text[], lease float8,
    t float8) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    job_row job;
    limited text;
    of_limit rule;
    cost int;
    keys text[];
    costs int[];
BEGIN
    SELECT * INTO job_row FROM job WHERE id = wanted FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT 1 FROM job WHERE id = wanted AND version = of_version AND state IN (1, 2)
            AND worker IS NOT NULL AND (reach IS NULL OR queue = ANY (reach)));
    END IF;
    IF job_row.version <> of_version OR job_row.worker IS NULL OR job_row.state NOT IN (1, 2)
        OR NOT coalesce(job_row.queue = ANY (reach), true)
    THEN
        RETURN false;
    END IF;
    IF job_row.state = 1 AND NOT job_row.function_done THEN   -- its lease expired, and no claim has taken it
        keys := ('queue:' || job_row.queue) || coalesce(job_row.limits, '{}');
        costs := 1 || coalesce(job_row.costs, '{}');
        IF EXISTS (SELECT 1 FROM rule) THEN
            IF cardinality(try_gates(keys)) < cardinality(keys) THEN
                RETURN true;    -- not known yet: the next heartbeat decides
            END IF;
            FOR n IN 1 .. cardinality(keys) LOOP
                of_limit := rule_of(keys[n]);
                IF of_limit.name IS NOT NULL AND NOT (of_limit.hold = 'ended' AND job_row.started_at IS NOT NULL)
                    AND NOT slots_fit(of_limit, slots_in_use(keys[n], of_limit.hold), greatest(costs[n], 1))
                THEN
                    RETURN false;
                END IF;
            END LOOP;
        END IF;
    END IF;
    IF json_array_length(steps) > 0 THEN
        PERFORM store_checkpoints(wanted, steps);
        job_row.checkpoints := true;
    END IF;
    IF new_note IS DISTINCT FROM job_row.note AND new_note IS NOT NULL THEN
        PERFORM publish('job:' || wanted);
        job_row.note := new_note;
    END IF;
    job_row.state := 2;
    job_row.queue_position := NULL;
    job_row.blocked_on := NULL;
    job_row.due_at := t + least(nullif(job_row.lease, 0), lease);
    job_row.updated_at := t;
    PERFORM update_job(job_row);
    RETURN NULL;
EXCEPTION WHEN lock_not_available THEN
    RETURN true;                -- not known yet: the gate of a limit is locked
END $$;
