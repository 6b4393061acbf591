-- The verb: a worker says that it lives, and which jobs it still runs. Rows that somebody else has locked at this moment
-- are neither lengthened nor lost: who waits for a running job inside his own long transaction must not cost its lease.
-- -> the ids held no longer.
CREATE FUNCTION heartbeat(moment float8, name text, presence text, holds json, lease float8) RETURNS SETOF text
LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '500ms'
SET enable_sort = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_variable
DECLARE
    t float8 := coalesce(moment, extract(epoch FROM clock_timestamp())::float8);
    done text[];
    h record;
BEGIN
    PERFORM enter('closing');
    IF presence IS NULL THEN
        DELETE FROM worker w WHERE w.name = name;
    ELSE
        INSERT INTO worker AS w (name, presence, seen) VALUES (name, presence, t)
        ON CONFLICT ON CONSTRAINT worker_pkey DO UPDATE SET presence = excluded.presence, seen = excluded.seen;
    END IF;
    WITH beaten AS (
        UPDATE job j SET due_at = t + coalesce(nullif(j.lease, 0), lease), updated_at = t
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
        FOR h IN
            SELECT * FROM json_to_recordset(holds) AS x (id text, version int, memo json, note text) ORDER BY x.id
        LOOP
            CONTINUE WHEN h.id = ANY (done);
            IF NOT beat(h.id, h.version, h.memo, h.note, lease, t) THEN
                RETURN NEXT h.id;
            END IF;
        END LOOP;
    END IF;
    IF EXISTS (SELECT 1 FROM job j WHERE j.due_at <= t AND j.state <> 2)
        OR EXISTS (SELECT 1 FROM job j WHERE j.due_at < t AND j.state = 2)
        OR EXISTS (SELECT 1 FROM gate g WHERE g.opens <= t)
    THEN
        PERFORM tend(t);
    END IF;
END $$;

-- One hold that says more, or whose lease ran out -> whether it is held still.
CREATE FUNCTION beat(wanted text, of_version int, steps json, said text, lease float8, t float8) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    r job;
    limited text;
    of_limit rule;
    cost int;
    keys text[];
    costs int[];
BEGIN
    SELECT * INTO r FROM job WHERE id = wanted FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN EXISTS (SELECT 1 FROM job WHERE id = wanted AND version = of_version AND state IN (1, 2)
            AND worker IS NOT NULL);
    END IF;
    IF r.version <> of_version OR r.worker IS NULL OR r.state NOT IN (1, 2) THEN
        RETURN false;
    END IF;
    IF r.state = 1 AND NOT r.ran THEN   -- its lease ran out, and nobody has claimed it since
        keys := ('queue:' || r.queue) || coalesce(r.limits, '{}');
        costs := 1 || coalesce(r.costs, '{}');
        IF EXISTS (SELECT 1 FROM rule) THEN
            PERFORM lock_gates(keys);
            FOR n IN 1 .. cardinality(keys) LOOP
                of_limit := rule_of(keys[n]);
                IF of_limit.name IS NOT NULL AND NOT (of_limit.hold = 'ended' AND r.started_at IS NOT NULL)
                    AND NOT slots_fit(of_limit, used(keys[n], of_limit.hold), costs[n])
                THEN
                    RETURN false;
                END IF;
            END LOOP;
        END IF;
    END IF;
    IF json_array_length(steps) > 0 THEN
        PERFORM remember(wanted, steps);
        r.memo := true;
    END IF;
    IF said IS DISTINCT FROM r.note AND said IS NOT NULL THEN
        PERFORM speak('job:' || wanted);
        r.note := said;
    END IF;
    r.state := 2;
    r.place := NULL;
    r.parked := NULL;
    r.due_at := t + coalesce(nullif(r.lease, 0), lease);
    r.updated_at := t;
    PERFORM put(r);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN true;                -- not known: the next heartbeat will tell
END $$;
