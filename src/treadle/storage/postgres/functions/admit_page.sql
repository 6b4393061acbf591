-- Admit the jobs of a page in queue order: each is admitted, blocked by a limit, or skipped. The decisions are written
-- at the end, in a few statements for all jobs. One statement for each job, which also rewrites the row of the rate,
-- cost 19 times as much with 100 jobs behind one limit. `claim_with_limits` starts the admitted jobs.
--
-- Their start time is not earlier than any start that was recorded meanwhile, or than the moment at which the counted
-- slots were freed. moment: the time of the test's clock, or NULL.
CREATE FUNCTION admit_page(page claim_page, scan queue_scan, moment float8, t float8) RETURNS page_result
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    counts limit_counts;
    counted_at float8 := t;     -- when the levels of the rates were counted
    result page_result;
    rated text[] := '{}';       -- limits whose next opening may have changed
    being_freed text[];
BEGIN
    IF cardinality(page.held) > 0 THEN
        counts := limit_states(page.held, scan.queue, t);
        IF counts.last_start > t THEN
            t := counts.last_start;
            counts := limit_states(page.held, scan.queue, t);
        END IF;
        -- a new statement: the call that freed a slot has noted its limit in the same transaction
        result.noted := ARRAY(SELECT DISTINCT key FROM recheck WHERE key = ANY (page.held));
        result.t := t;
        IF cardinality(result.noted) > 0 THEN
            RETURN result;
        END IF;
        counted_at := t;
        t := greatest(t, instant(moment));
        result.heads := first_blocked(counts, scan.queue);
    END IF;
    result := (t, NULL, '{}', '{}', scan.rooms, 0, 1, false, false, NULL, false, false, false, scan.barred,
        counts.levels, counts.taken, result.heads, '{}', '{}')::page_result;
    WHILE result.last < cardinality(page.ids) AND cardinality(result.taken) < scan.share AND NOT result.stop LOOP
        result := check_jobs(result, page, scan, counts);
    END LOOP;
    IF result.levels IS NOT NULL THEN
        rated := charge_rates(counts, result.levels, counted_at, t);
    END IF;
    IF cardinality(result.blocked_spots) > 0 THEN
        being_freed := limits_being_freed(counts, result.blocked_on);
        WITH blocked AS (
            UPDATE job SET queue_position = NULL, blocked_on = x.limited, due_at = deadline_at
            FROM unnest(result.blocked_spots, result.blocked_on) AS x (spot, limited)
            WHERE job.ctid = x.spot AND NOT x.limited = ANY (being_freed)
            RETURNING job.queue, job.task, job.blocked_on
        )
        INSERT INTO count_change SELECT b.queue, b.task, 'q', 'b' || b.blocked_on, count(*) FROM blocked b
        GROUP BY b.queue, b.task, b.blocked_on;
        result.moving := cardinality(being_freed) > 0;
        result.barred := result.barred || being_freed;  -- the slot may be free for the next page, which counts again
        IF result.blocked_on[cardinality(result.blocked_on)] = ANY (being_freed) THEN
            result.freed := NULL;
        END IF;
        rated := rated || ARRAY(SELECT k.key FROM unnest(counts.keys, counts.caps) AS k (key, cap)
            WHERE k.cap IS NOT NULL AND k.key = ANY (result.blocked_on));
    END IF;
    IF cardinality(rated) > 0 THEN
        -- counted before: if a rate has opened since, the blocked jobs come first
        PERFORM set_opening(k, counted_at, result.taken) FROM unnest(blocking_limits(rated)) AS k;
    END IF;
    RETURN result;
END $$;

-- Decides which of the next jobs of a page start. It looks at as many as are still wanted, and locks only these:
-- another claim would skip locked rows and find nothing. A job that names a gate which is not held is skipped.
-- result: the decisions so far.
CREATE FUNCTION check_jobs(result page_result, page claim_page, scan queue_scan, counts limit_counts)
RETURNS page_result LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    by_task constant boolean := scan.tasks IS NOT NULL AND (scan.named OR scan.rooms IS NOT NULL);
    in_order constant boolean := scan.ruled AND NOT scan.named;
    strict_order constant boolean := in_order AND counts.ordered;
    ids constant text[] := page.ids;
    chunk constant tid[] := page.spots[result.last + 1 : result.last + scan.share - cardinality(result.taken)];
    -- variables for arrays that are read or changed for each job: a field of a record would be copied each time
    slots constant int[] := counts.slots;
    caps constant int[] := counts.caps;
    bursts constant int[] := counts.bursts;     -- NULL: a window
    keeps constant boolean[] := counts.keeps;
    used_up bigint[] := result.used_up;
    levels float8[] := result.levels;
    taken text[] := result.taken;
    spots tid[] := result.spots;
    blocked_spots tid[] := result.blocked_spots;
    blocked_on text[] := result.blocked_on;
    candidate record;
    task_index int;
    known text[];               -- the limits of the previous job, which are usually the same
    gates int[];                -- their indexes in `counts`; 0: that of the queue
    absent boolean := false;    -- the gate of one of these limits is not held
    full_gate int;
    cost int;
BEGIN
    gates[0] := array_position(counts.keys, scan.own_limit);
    FOR candidate IN
        SELECT job.ctid AS spot, job.id, rank, queue_position, task, limits, costs, function_done,
            started_at IS NOT NULL AS begun, job.blocked_on AS was_blocked_on
        FROM job WHERE job.ctid = ANY (chunk) AND queue_position + 0 IS NOT NULL
            -- leave a row to the transaction that holds its gate
            AND (page.complete OR NOT in_order OR limits IS NULL OR limits <@ page.held)
        ORDER BY rank DESC, queue_position, job.id FOR NO KEY UPDATE SKIP LOCKED
    LOOP
        IF ids[result.next] = candidate.id THEN
            result.next := result.next + 1;
        ELSIF in_order AND array_position(ids, candidate.id, result.next) > result.next THEN   -- others are locked
            result := skipped_until(result, page, array_position(ids, candidate.id, result.next), scan.own_limit);
            result.next := result.next + 1;
        END IF;
        IF by_task THEN
            task_index := array_position(scan.tasks, candidate.task);
            CONTINUE WHEN task_index IS NULL OR result.rooms[task_index] <= 0;
        END IF;
        CONTINUE WHEN candidate.id = ANY (scan.running);
        IF scan.ruled AND candidate.limits IS DISTINCT FROM known THEN
            known := candidate.limits;
            absent := false;
            FOR m IN 1 .. coalesce(cardinality(known), 0) LOOP
                gates[m] := array_position(counts.keys, known[m]);
                absent := absent OR gates[m] IS NULL;
            END LOOP;
        END IF;
        full_gate := NULL;
        IF scan.ruled AND NOT absent AND NOT candidate.function_done THEN   -- a done function passes all limits
            full_gate := first_full_gate(gates, candidate.costs, candidate.begun, slots, used_up, caps, levels, keeps);
            IF full_gate IS NULL AND 1 < ANY ((result.heads).costs) THEN
                full_gate := gate_for_earlier(gates, candidate, result.heads, slots, used_up, caps, levels, keeps);
            END IF;
        END IF;
        IF absent OR (strict_order AND full_gate IS NULL AND NOT (candidate.function_done OR candidate.begun)
            AND must_yield(gates, candidate, result.barred, scan, counts, result.t))
        THEN
            result.passed := true;
            result.barred := result.barred || known;
            CONTINUE;
        END IF;
        IF full_gate IS NOT NULL THEN
            CONTINUE WHEN full_gate = gates[0] AND (scan.closed OR scan.named);
            result.closed := full_gate IS NOT DISTINCT FROM gates[0];
            IF NOT result.closed THEN
                blocked_spots := blocked_spots || candidate.spot;
                blocked_on := blocked_on || counts.keys[full_gate];
                result.heads := with_blocked_job(result.heads, candidate, full_gate,
                    candidate.costs[array_position(gates, full_gate)], candidate.begun AND keeps[full_gate]);
                result.late := clock_timestamp() > scan.until;
                result.freed := CASE WHEN candidate.was_blocked_on <> counts.keys[full_gate]
                    THEN candidate.was_blocked_on END;
            END IF;
            result.stop := result.closed OR result.late OR result.freed IS NOT NULL
                OR cardinality(blocked_spots) >= scan.max_blocked;
            IF result.stop THEN
                result.last := array_position(ids, candidate.id);
                EXIT;
            END IF;
            CONTINUE;
        END IF;
        FOR m IN CASE WHEN gates[0] IS NULL THEN 1 ELSE 0 END .. coalesce(cardinality(known), 0) LOOP
            cost := CASE m WHEN 0 THEN 1 ELSE candidate.costs[m] END;
            -- where slots are held until the end, a job whose function is done takes one too
            IF (CASE WHEN keeps[gates[m]] THEN NOT candidate.begun ELSE NOT candidate.function_done END) THEN
                used_up[gates[m]] := used_up[gates[m]] + cost;
            END IF;
            IF NOT candidate.function_done AND caps[gates[m]] IS NOT NULL THEN
                levels[gates[m]] := levels[gates[m]] - least(cost, bursts[gates[m]]);
            END IF;
        END LOOP;
        taken := taken || candidate.id;
        spots := spots || candidate.spot;
        IF result.rooms[task_index] IS NOT NULL THEN
            result.rooms[task_index] := result.rooms[task_index] - 1;
        END IF;
    END LOOP;
    IF NOT result.stop THEN
        result.last := result.last + cardinality(chunk);
        IF in_order AND result.next <= result.last THEN
            result := skipped_until(result, page, result.last + 1, scan.own_limit);
        END IF;
    END IF;
    result.used_up := used_up;
    result.levels := levels;
    result.taken := taken;
    result.spots := spots;
    result.blocked_spots := blocked_spots;
    result.blocked_on := blocked_on;
    RETURN result;
END $$;

-- Skips the jobs of a page up to this index, which are locked or gone. In strict order, later jobs of their limits are
-- barred.
CREATE FUNCTION skipped_until(result page_result, page claim_page, here int, own_limit text) RETURNS page_result
LANGUAGE plpgsql AS $$
BEGIN
    result.barred := result.barred || named_limits(page.wants[result.next : here - 1]) || own_limit;
    result.passed := true;
    result.next := here;
    RETURN result;
END $$;

-- Returns the first of these gates that has no room for a job, or NULL.
CREATE FUNCTION first_full_gate(gates int[], costs int[], begun boolean, slots int[], used_up bigint[], caps int[],
    levels float8[], keeps boolean[]) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    gate int;
    cost int;
BEGIN
    FOR m IN CASE WHEN gates[0] IS NULL THEN 1 ELSE 0 END .. coalesce(cardinality(costs), 0) LOOP
        gate := gates[m];
        cost := CASE m WHEN 0 THEN 1 ELSE costs[m] END;
        IF levels[gate] < least(cost, caps[gate]) - 1e-9 OR NOT coalesce((begun AND keeps[gate])
            OR (slots[gate] > 0 AND used_up[gate] + least(cost, slots[gate]) <= slots[gate]), true)
        THEN
            RETURN gate;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Returns the first of these gates that blocks an earlier, more expensive job, or NULL. Otherwise cheap jobs would
-- starve it.
CREATE FUNCTION gate_for_earlier(gates int[], candidate record, heads blocked_heads, slots int[], used_up bigint[],
    caps int[], levels float8[], keeps boolean[]) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    gate int;
    cost int;
BEGIN
    FOR m IN 1 .. coalesce(cardinality(candidate.costs), 0) LOOP
        gate := gates[m];
        cost := heads.costs[gate];
        IF cost > 1 AND NOT (candidate.begun AND keeps[gate])
            AND (heads.ranks[gate], heads.positions[gate], heads.ids[gate])
                < (-candidate.rank, candidate.queue_position, candidate.id)
            AND (levels[gate] < least(cost, caps[gate]) - 1e-9 OR NOT (heads.kept[gate]
                OR coalesce(used_up[gate] + least(cost, slots[gate]) <= slots[gate], true)))
        THEN
            RETURN gate;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Whether a limit in strict order has an earlier job that must start first, although this claim cannot take it.
CREATE FUNCTION must_yield(gates int[], candidate record, barred text[], scan queue_scan, counts limit_counts, t float8)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    gate int;
BEGIN
    FOR m IN CASE WHEN gates[0] IS NULL THEN 1 ELSE 0 END .. coalesce(cardinality(candidate.costs), 0) LOOP
        gate := gates[m];
        IF counts.keeps[gate] AND counts.slots[gate] = 1 AND (counts.keys[gate] = ANY (barred)
            OR (counts.contested[gate] AND has_earlier_job(counts.keys[gate], candidate, scan, t)))
        THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Returns the first blocked job of a queue for each limit, in the order of `counts`. A job that holds its slot is
-- `kept`: only the rate blocks it. It returns no job for a limit that is unused, because any job starts, or used up,
-- because none does.
CREATE FUNCTION first_blocked(counts limit_counts, line text) RETURNS blocked_heads LANGUAGE plpgsql AS $$
DECLARE
    heads blocked_heads;
BEGIN
    SELECT array_agg(b.cost ORDER BY k.n), array_agg(b.rank ORDER BY k.n), array_agg(b.return_position ORDER BY k.n),
        array_agg(b.id ORDER BY k.n), array_agg(b.begun AND k.keeps ORDER BY k.n)
    INTO heads.costs, heads.ranks, heads.positions, heads.ids, heads.kept
    FROM unnest(counts.keys, counts.slots, counts.taken, counts.caps, counts.levels, counts.keeps)
        WITH ORDINALITY AS k (key, slots, used, cap, level, keeps, n)
    LEFT JOIN LATERAL (
        SELECT cost_of(j, k.key) AS cost, -j.rank AS rank, j.return_position, j.id, j.started_at IS NOT NULL AS begun
        FROM job j WHERE j.blocked_on = k.key AND j.queue = line AND j.queue_position IS NULL
            AND ((k.used > 0 AND k.used < k.slots) OR (k.level > 0 AND k.level < k.cap))
        ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1) AS b ON true;
    RETURN heads;
END $$;

-- Returns the first blocked jobs, after this job of the page was blocked too.
CREATE FUNCTION with_blocked_job(heads blocked_heads, candidate record, gate int, cost int, kept boolean)
RETURNS blocked_heads LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF heads.costs[gate] IS NULL
        OR (-candidate.rank, candidate.queue_position, candidate.id)
            < (heads.ranks[gate], heads.positions[gate], heads.ids[gate])
    THEN
        heads.costs[gate] := cost;
        heads.ranks[gate] := -candidate.rank;
        heads.positions[gate] := candidate.queue_position;
        heads.ids[gate] := candidate.id;
        heads.kept[gate] := kept;
    END IF;
    RETURN heads;
END $$;

-- Returns the limits that these texts name.
CREATE FUNCTION named_limits(wants text[]) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    keys text[] := '{}';
    of_job text;
BEGIN
    FOREACH of_job IN ARRAY wants LOOP
        keys := keys || of_job::text[];
    END LOOP;
    RETURN keys;
END $$;

-- Records what the rates are charged for jobs that start at t: the difference between their levels at `counted_at` and
-- now. Returns the limits that were charged.
CREATE FUNCTION charge_rates(counts limit_counts, levels float8[], counted_at float8, t float8) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    charged record;
BEGIN
    IF counts.levels = levels THEN
        RETURN '{}';
    END IF;
    SELECT array_agg(k.key) AS keys, array_agg(round(k.before - k.level)::int) AS costs, array_agg(k.per) AS pers,
        array_agg(k.gone) AS gone, array_agg(k.level) AS levels, array_agg(k.before >= k.cap) AS filled
    INTO charged
    FROM unnest(counts.keys, counts.levels, levels, counts.pers, counts.gone, counts.caps)
        AS k (key, before, level, per, gone, cap)
    WHERE k.level < k.before;
    PERFORM record_starts(charged.keys, charged.costs, charged.pers, charged.gone, charged.levels, charged.filled,
        counted_at, t);
    RETURN charged.keys;
END $$;

-- Returns the limits of `wanted` whose counted slots an open transaction is freeing, or has freed since the count. That
-- transaction may already have searched for blocked jobs, so it would not see the jobs that this claim is about to
-- block. The remaining rows are locked: a transaction that frees one of them looks after this claim has committed.
CREATE FUNCTION limits_being_freed(counts limit_counts, wanted text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT k.key FROM unnest(counts.keys, counts.taken, counts.keeps) AS k (key, counted, keeps)
        CROSS JOIN LATERAL (SELECT coalesce(sum(s.cost), 0) AS held FROM (
            SELECT slot.cost FROM slot
            WHERE slot.key = k.key AND (slot.live OR k.keeps) FOR SHARE SKIP LOCKED) AS s) AS h
        WHERE k.key = ANY (wanted) AND k.counted > 0 AND NOT starts_with(k.key, 'queue:') AND k.counted > h.held);
END $$;

-- Whether an unblocked job of this limit is ahead of this candidate. If an earlier job is still blocked, this function
-- first tries to unblock that job.
CREATE FUNCTION has_earlier_job(limited text, candidate record, scan queue_scan, t float8) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT (-j.rank, j.return_position, j.id) < (-candidate.rank, candidate.queue_position, candidate.id) FROM job j
        WHERE j.blocked_on = limited AND j.queue = scan.queue AND j.queue_position IS NULL
        ORDER BY j.rank DESC, j.return_position, j.id LIMIT 1)
    THEN
        PERFORM unblock_limit(limited, t);
    END IF;
    RETURN EXISTS (SELECT 1 FROM job j
        WHERE j.blocked_on = limited AND j.queue = scan.queue AND j.queue_position IS NOT NULL
            AND (-j.rank, j.queue_position, j.id) < (-candidate.rank, candidate.queue_position, candidate.id)
            AND (scan.open_tasks IS NULL OR j.task = ANY (scan.open_tasks)) AND NOT j.id = ANY (scan.running));
END $$;
