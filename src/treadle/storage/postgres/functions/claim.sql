-- What a worker asks of a server all day: what became of its jobs, more of them, or both in one trip and one commit. The
-- settings stand here, once: to set and reset them for each function in it took 20 us, and a mark of a move looked for
-- three times 20 more, of 1,000 for a trip that carries eight jobs. A function of its own for the claim would write each
-- row once more, 1 % of a trip that carries 128.
--
-- A plan is made once, and what the planner believes of a table is what the last sweep found: nothing at all, where it
-- was empty. It would then read the whole table for each call and look into the call's few jobs for each row. So every
-- statement here that looks up the jobs of a call is of a shape that has one plan: `CROSS JOIN LATERAL (... OFFSET 0)`,
-- which is never turned round, `id = ANY (...)`, or `ctid`; and `place + 0`, `state + 0` keep it from an index of a line.
-- (34 us of the server for a job instead of 90, in every second process that began after a sweep.)
--
-- The claim leases the first in line. Lines of plain jobs are taken in one statement each; where limits, or rooms per
-- task, have to be asked, see walk.sql.
--
-- By ctid, which is found by a subquery that runs once: a join would let the planner take too many. A row that somebody
-- else changed in between is left for the next claim, so a short answer does not mean an empty line. Each statement sees
-- what was committed before it: jobs with limits, and a rule for this line, that came after the road was chosen are left
-- for the next claim, too. The planner is told what to use, for without statistics it would read and sort the whole line.
--
-- outs, told, slow: see `settle`; outs NULL: nothing.
-- ask, NULL: for nothing: worker, name, slot, lines and shares (of each), tasks [name, ...] or null, leases (of these,
-- null: `lease`), rooms (of these, null: no bound) or null, limit, lease, ids, holds; floors {queue: [rank, place]} or
-- null: where the line may be looked at first, see scan_floor.py.
-- -> what `settle` says (state -1: the status in `spec`, n in `version`, why in `more`); then the rows in the order of
-- their turns; then one without a spec: `version` 1 if this ticket was asked before, 2 if there is more to look at (see
-- walk), `attempt` how many stepped aside, `created_at` the moment, `due_at` the next one.
CREATE FUNCTION work(moment float8, outs json, told int, slow boolean, ask json) RETURNS TABLE (
    spec text, state smallint, version int, attempt int, lost int, worker text, place float8,
    joined_at float8, due_at float8, created_at float8, started_at float8, updated_at float8, more text
) LANGUAGE plpgsql
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET lock_timeout = '1s' SET enable_sort = off
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    t float8;
    a record;
    earlier text[];
    most int;
    got int;
    ruled boolean;
    passed boolean;             -- lines with a rule were passed by, for other calls count their slots
    asks boolean;               -- limits, or room per task, must be asked
    roomy text[] := '{}';       -- lines with a rule under which jobs may start
    room int[];                 -- so many of each
    line text;
    share int;
    picked tid[];
BEGIN
    PERFORM enter(CASE WHEN ask IS NULL THEN 'closing' END);
    IF outs IS NOT NULL THEN
        RETURN QUERY SELECT s.status, -1::smallint, s.n, NULL::int, NULL::int, NULL::text, NULL::float8, NULL::float8,
            NULL::float8, NULL::float8, NULL::float8, NULL::float8, s.why
        FROM settle(moment, outs, told, slow) AS s;
    END IF;
    IF ask IS NULL THEN
        RETURN;
    END IF;
    SELECT * INTO a FROM json_to_record(ask) AS a (worker text, name text, slot int, lines text[], shares int[],
        tasks text[], leases float8[], rooms int[], "limit" int, lease float8, ids text[], holds text[], floors json, reach text[]);
    IF a.reach IS NOT NULL THEN     -- never none: that would be a claim of the lines
        a.ids := ARRAY(SELECT j.id FROM unnest(a.ids) WITH ORDINALITY AS i (id, n) JOIN job j ON j.id = i.id
            WHERE j.queue = ANY (a.reach) ORDER BY i.n) || ''::text;
    END IF;
    -- asked twice at once, over two connections: the second one finds what the first has taken
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' ' || a.worker, 0));
    t := instant(moment);       -- after the wait: a lease is not to be shorter by it
    SELECT jobs INTO earlier FROM ticket k WHERE k.worker = a.name AND k.slot = a.slot AND k.ticket = a.worker;
    IF FOUND THEN
        RETURN QUERY SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, more(j)
        FROM job j WHERE j.id = ANY (earlier) AND j.state = 2 AND j.worker = a.worker;
        IF FOUND THEN
            version := 1;
            attempt := 0;
            due_at := next_moment(a.lines, a.ids, t, true, false);
            created_at := t;
            RETURN NEXT;
            RETURN;
        END IF;
    END IF;
    -- with a floor we are between two full looks, and what comes due waits for the next: there too lies what is gone
    IF a.floors IS NULL AND (EXISTS (SELECT 1 FROM job j WHERE j.due_at <= t AND j.state <> 2)
        OR EXISTS (SELECT 1 FROM job j WHERE j.due_at < t AND j.state = 2)
        OR EXISTS (SELECT 1 FROM gate WHERE opens <= t)
        OR EXISTS (SELECT 1 FROM recheck))
    THEN
        PERFORM set_config('lock_timeout', '500ms', true);
        PERFORM tend(t);
    END IF;
    -- whether somebody in these lines must be asked
    SELECT EXISTS (SELECT 1 FROM rule), EXISTS (
        SELECT 1 FROM job j WHERE j.queue = ANY (a.lines) AND j.place IS NOT NULL AND j.limits IS NOT NULL)
    INTO ruled, asks;
    asks := asks OR a.rooms IS NOT NULL OR cardinality(a.ids) > 0;
    IF asks OR ruled THEN
        PERFORM set_config('lock_timeout', '500ms', true);
    END IF;
    IF ruled AND NOT asks THEN
        SELECT * INTO roomy, room, asks, passed FROM room_of(a.lines, a."limit");
    END IF;
    IF asks THEN
        RETURN QUERY SELECT * FROM walk(a.worker, a.name, a.slot, a.lines, a.shares, a.tasks, a.leases, a.rooms,
            a."limit", a.lease, a.ids, a.holds, moment);
        RETURN;
    END IF;
    most := a."limit";
    FOR n IN 0 .. 2 * cardinality(a.lines) - 1 LOOP     -- each up to its share, then again as far as there is room
        line := a.lines[n % cardinality(a.lines) + 1];
        share := CASE WHEN n < cardinality(a.lines) THEN least(a.shares[n + 1], most) ELSE most END;
        share := least(share, room[array_position(roomy, line)]);
        CONTINUE WHEN share <= 0;
        picked := NULL;
        IF a.floors -> line IS NOT NULL THEN
            picked := from_floor(line, a.tasks, a.holds, (a.floors -> line ->> 0)::smallint,
                (a.floors -> line ->> 1)::float8, share);
        END IF;
        RETURN QUERY WITH taken AS (
            UPDATE job SET state = 2, version = job.version + 1, place = NULL, parked = NULL, worker = a.worker,
                due_at = t + coalesce(nullif(job.lease, 0), a.leases[array_position(a.tasks, task)], a.lease),
                started_at = t, updated_at = t,
                key = CASE WHEN key IS NULL OR (words ? 'started' AND NOT keeps_key(job, t)) THEN NULL ELSE key END
            WHERE ctid = ANY (coalesce(picked, ARRAY(
                SELECT ctid FROM job j
                WHERE j.queue = line AND j.place IS NOT NULL AND j.limits IS NULL
                    AND (line = ANY (roomy) OR NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line)))
                    AND (a.tasks IS NULL OR j.task = ANY (a.tasks))
                    AND j.id NOT IN (SELECT unnest(a.holds))     -- a hash: with <> ALL each would be compared with each
                ORDER BY j.rank DESC, j.place, j.id LIMIT share
                FOR NO KEY UPDATE SKIP LOCKED)))
            RETURNING job.id, rank, job.spec, job.state, job.version, job.attempt, job.lost, job.worker, job.place,
                job.joined_at, job.due_at, job.created_at, job.started_at, job.updated_at,
                CASE WHEN NOT is_bare(job) THEN more(job) END AS more
        ), kept AS (
            INSERT INTO ticket (worker, slot, ticket, jobs, at)
            SELECT a.name, a.slot, a.worker, array_agg(id), t FROM taken HAVING count(*) > 0
            ON CONFLICT (worker, slot) DO UPDATE SET ticket = excluded.ticket, at = excluded.at,
                jobs = CASE WHEN ticket.ticket = excluded.ticket THEN ticket.jobs || excluded.jobs
                    ELSE excluded.jobs END
        )
        SELECT j.spec, j.state, j.version, j.attempt, j.lost, j.worker, j.place, j.joined_at, j.due_at,
            j.created_at, j.started_at, j.updated_at, j.more
        FROM taken j ORDER BY j.rank DESC, j.joined_at, j.id;
        GET DIAGNOSTICS got = ROW_COUNT;
        most := most - got;
        IF line = ANY (roomy) THEN
            room[array_position(roomy, line)] := room[array_position(roomy, line)] - got;
        END IF;
    END LOOP;
    version := CASE WHEN passed AND most = a."limit" THEN 2 ELSE 0 END;
    attempt := 0;
    due_at := next_moment(a.lines, a.ids, t, ruled, picked IS NOT NULL AND most <= 0);
    created_at := t;
    RETURN NEXT;
END $$;

-- Lines that have a rule with slots and nothing else, and how many of their jobs may start: the usual case of a queue with a
-- limit, in which no job needs to be asked. The gates of these limits are held then. asks: the jobs must be asked after all
-- (walk.sql), for a rule has a rate or an order to keep, or there is less room than `most` and some jobs need none. passed: other
-- transactions hold the gates of some lines, and those are left out, like lines without room. Six such queues cost 115 us
-- of the server for a job when each was asked, at 100 jobs a claim; now 56.
CREATE FUNCTION room_of(lines text[], most int, OUT roomy text[], OUT room int[], OUT asks boolean, OUT passed boolean)
LANGUAGE plpgsql AS $$
DECLARE
    ruled record;
    held text[];
BEGIN
    passed := false;
    roomy := '{}';
    SELECT array_agg(l.line) AS lines, array_agg('queue:' || l.line) AS keys, array_agg(r.slots) AS slots,
        bool_or(r.slots IS NULL OR r.rate IS NOT NULL OR r.hold = 'ended') AS special INTO ruled
    FROM unnest(lines) AS l (line) CROSS JOIN LATERAL (
        SELECT slots, rate, hold FROM rule WHERE name IN ('queue', 'queue:' || l.line) ORDER BY name = 'queue' LIMIT 1) AS r
    WHERE EXISTS (SELECT 1 FROM job j WHERE j.queue = l.line AND j.place IS NOT NULL);
    asks := coalesce(ruled.special, false) OR NOT share_rules();
    IF asks OR ruled.lines IS NULL THEN
        RETURN;
    END IF;
    PERFORM await_turn();
    held := try_gates(ruled.keys);
    passed := cardinality(held) < cardinality(ruled.keys);
    -- one look at all that runs: to count it for each queue would read all of it for each
    SELECT array_agg(f.line), array_agg(f.room), coalesce(bool_or(f.room < most AND EXISTS (SELECT 1 FROM job j
        WHERE j.queue = f.line AND j.place IS NOT NULL AND (j.ran OR j.started_at IS NOT NULL))), true)
    INTO roomy, room, asks FROM (
        SELECT u.line, u.slots - coalesce(running.jobs, 0)
            - (SELECT coalesce(sum(s.cost), 0) FROM slot s WHERE s.key = u.key AND s.live) AS room
        FROM unnest(ruled.lines, ruled.keys, ruled.slots) AS u (line, key, slots)
        LEFT JOIN (SELECT queue, count(*) AS jobs FROM job
            WHERE state = 2 AND due_at IS NOT NULL AND NOT ran GROUP BY queue) AS running ON running.queue = u.line
        WHERE u.key = ANY (held)
    ) AS f;
END $$;

-- The first of a line as they stand above a floor, locked; NULL: there are not enough of them, look at all of the line.
CREATE FUNCTION from_floor(line text, tasks text[], holds text[], at_rank smallint, at_place float8, share int)
RETURNS tid[] LANGUAGE plpgsql AS $$
DECLARE
    found tid[];
BEGIN
    found := ARRAY(
        SELECT ctid FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND j.rank > at_rank AND j.limits IS NULL
            AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
            AND (tasks IS NULL OR j.task = ANY (tasks)) AND j.id NOT IN (SELECT unnest(holds))
        ORDER BY j.rank DESC, j.place, j.id LIMIT share FOR NO KEY UPDATE SKIP LOCKED);
    IF cardinality(found) < share THEN
        found := found || ARRAY(
            SELECT ctid FROM job j
            WHERE j.queue = line AND j.place IS NOT NULL AND j.rank = at_rank AND j.place >= at_place
                AND j.limits IS NULL AND NOT EXISTS (SELECT 1 FROM rule WHERE name IN ('queue', 'queue:' || line))
                AND (tasks IS NULL OR j.task = ANY (tasks)) AND j.id NOT IN (SELECT unnest(holds))
            ORDER BY j.place, j.id LIMIT share - cardinality(found) FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    RETURN CASE WHEN cardinality(found) = share THEN found END;
END $$;

-- The next moment anything here is due, or a rate lets the next of a line asked for start.
-- `ruled`: there may be rules. `brief`: no look at the leases, for who got all he asked for does not wait.
CREATE FUNCTION next_moment(lines text[], ids text[], t float8, ruled boolean, brief boolean) RETURNS float8
LANGUAGE plpgsql AS $$
DECLARE
    first float8 := least(
        CASE WHEN NOT brief THEN (SELECT min(due_at) FROM job WHERE state = 2) END,
        (SELECT min(due_at) FROM job WHERE due_at IS NOT NULL AND state <> 2),
        (SELECT min(opens) FROM gate WHERE opens IS NOT NULL),
        (SELECT t + 0.05 FROM recheck LIMIT 1));
    line text;
BEGIN
    IF ruled AND EXISTS (SELECT 1 FROM rule WHERE rate IS NOT NULL AND (name = 'queue' OR starts_with(name, 'queue:'))) THEN
        FOR line IN
            SELECT l FROM unnest(lines) AS l WHERE cardinality(ids) = 0
            UNION SELECT queue FROM job WHERE id = ANY (ids)
        LOOP
            IF EXISTS (SELECT 1 FROM job j WHERE j.queue = line AND j.place IS NOT NULL) THEN
                first := least(first, opens_at('queue:' || line, rule_of('queue:' || line), 1, t));
            END IF;
        END LOOP;
    END IF;
    RETURN first;
END $$;
