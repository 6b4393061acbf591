-- A claim along lines where somebody has to be asked for one by one: whether its limits let it through, whether there is
-- room for its task. After `most_aside` jobs have stepped aside, or half a second, it ends and says so, to be asked
-- again: what has been moved is committed, and neither does anybody wait longer for it, nor is it ever undone because a
-- call may not last so long. -> the ids taken, in the order of their turns; how many
-- stepped aside.
CREATE FUNCTION walk(ask json, ruled boolean, t float8, OUT taken text[], OUT unfinished boolean, OUT aside int)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    most_aside constant int := 1000;
    left_aside int := most_aside;
    until timestamptz := clock_timestamp() + interval '500 ms';
    late boolean := false;
    a record;
    turn record;
    line text;
    share int;
    most int;
    room int[];
    own text;
    of_queue rule;
    named boolean;
    shut boolean;
    page text[];
    ranks smallint[];
    places float8[];
    at_rank smallint;           -- the last that was looked at in this line: what is before it is not walked again
    at_place float8;
    at_id text;
    back_rank smallint;         -- the first that came back
    back_place float8;
    r job;
    task_at int;
    seen text[] := '{}';        -- limits looked at, and what of them is used: counted once, then added to
    used_up bigint[] := '{}';
    gates text[];
    limited text;
    of_limit rule;
    cost int;
    pos int;
    blocked text;
    before text;
    spent text[] := '{}';
BEGIN
    SELECT * INTO a FROM json_to_record(ask) AS x (worker text, name text, slot int, queues json, tasks text[],
        leases float8[], rooms int[], "limit" int, lease float8, ids text[], holds text[]);
    taken := '{}';
    unfinished := false;
    most := a."limit";
    room := a.rooms;
    named := cardinality(a.ids) > 0;
    FOR turn IN
        SELECT q.value ->> 0 AS queue, CASE WHEN half = 0 THEN (q.value ->> 1)::int ELSE a."limit" END AS share
        FROM generate_series(0, 1) AS half, json_array_elements(a.queues) WITH ORDINALITY AS q (value, n)
        WHERE NOT named
        UNION ALL (
            SELECT j.queue, a."limit" FROM unnest(a.ids) WITH ORDINALITY AS i (id, n)
            JOIN LATERAL (SELECT x.queue FROM job x WHERE x.id = i.id
                UNION ALL SELECT x.queue FROM ended x WHERE x.id = i.id) AS j ON true
            GROUP BY j.queue ORDER BY min(i.n))
    LOOP
        line := turn.queue;
        share := least(turn.share, most - cardinality(taken));
        own := 'queue:' || line;
        of_queue := CASE WHEN ruled THEN rule_of(own) END;
        shut := false;
        at_id := NULL;
        WHILE share > 0 AND left_aside > 0 AND NOT late LOOP
            SELECT array_agg(p.id), array_agg(p.rank), array_agg(p.place) INTO page, ranks, places
            FROM page_of(line, a.tasks, CASE WHEN named THEN a.ids END, shut, at_rank, at_place, at_id,
                least(greatest(share, 8), 64)) AS p;
            EXIT WHEN page IS NULL;
            -- rules after the page: one that was set before a job of it was sent is seen
            ruled := ruled OR EXISTS (SELECT 1 FROM rule);
            of_queue := CASE WHEN ruled THEN rule_of(own) END;
            -- gates before rows, all of a page and in their order: two claims do not lock each other out
            IF ruled THEN
                BEGIN
                    gates := ARRAY(
                        SELECT own WHERE of_queue.name IS NOT NULL
                        UNION SELECT unnest(j.limits) FROM job j WHERE j.id = ANY (page) AND j.limits IS NOT NULL);
                    PERFORM lock_gates(gates);
                    -- who waited for them starts no earlier than who was let through meanwhile, and swept the log
                    t := greatest(t, (SELECT max(m.at) FROM unnest(gates) AS k, LATERAL
                        (SELECT s.at FROM start s WHERE s.key = k ORDER BY s.at DESC LIMIT 1) AS m));
                EXCEPTION WHEN lock_not_available THEN
                    EXIT;       -- somebody counts for long: the rest of this line has to wait
                END;
            END IF;
            FOR k IN 1 .. cardinality(page) LOOP
                at_rank := ranks[k];
                at_place := places[k];
                at_id := page[k];
                SELECT * INTO r FROM job j WHERE j.id = page[k] AND j.place IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED;
                task_at := array_position(a.tasks, r.task);
                blocked := NULL;
                IF FOUND AND (a.tasks IS NULL OR task_at IS NOT NULL) AND coalesce(room[task_at] > 0, true)
                    AND NOT r.id = ANY (a.holds)
                THEN
                    IF ruled AND NOT r.ran THEN
                        FOR m IN 0 .. coalesce(cardinality(r.limits), 0) LOOP
                            limited := CASE m WHEN 0 THEN own ELSE r.limits[m] END;
                            cost := CASE m WHEN 0 THEN 1 ELSE r.costs[m] END;
                            of_limit := CASE m WHEN 0 THEN of_queue ELSE rule_of(limited) END;
                            CONTINUE WHEN of_limit.name IS NULL;
                            pos := array_position(seen, limited);
                            IF pos IS NULL THEN
                                pos := cardinality(seen) + 1;
                                seen[pos] := limited;
                                used_up[pos] := used(limited, of_limit.hold);
                            END IF;
                            IF NOT (((r.started_at IS NOT NULL AND of_limit.hold = 'ended')
                                    OR slots_fit(of_limit, used_up[pos], cost))
                                AND rate_fits(limited, of_limit, cost, t))
                            THEN
                                blocked := limited;
                                EXIT;
                            END IF;
                        END LOOP;
                    END IF;
                ELSE
                    blocked := own;     -- not wanted: passed over like one whose queue is shut
                    limited := NULL;
                END IF;
                IF blocked = own THEN
                    IF limited = own AND NOT shut AND NOT named THEN
                        shut := true;   -- nobody of this line moves but those who need nothing of it
                        EXIT;
                    END IF;
                ELSIF blocked IS NOT NULL THEN
                    before := r.parked;
                    r.place := NULL;
                    r.parked := blocked;
                    r.due_at := r.deadline_at;
                    PERFORM put(r);
                    PERFORM set_opening(blocked, t);
                    left_aside := left_aside - 1;
                    late := clock_timestamp() > until;
                    IF before <> blocked THEN
                        PERFORM call_in_for(before, t);
                        pos := array_position(seen, before);
                        IF pos IS NOT NULL THEN
                            seen[pos] := '';
                        END IF;
                        -- who came back may stand before this spot; from the head, all who are not wanted would be
                        -- walked past again for each who steps aside
                        SELECT j.rank, j.place INTO back_rank, back_place FROM job j
                        WHERE j.parked = before AND j.queue = line AND j.place IS NOT NULL
                        ORDER BY j.rank DESC, j.place, j.id LIMIT 1;
                        IF FOUND AND (-back_rank, back_place) <= (-at_rank, at_place) THEN
                            at_rank := back_rank;
                            at_place := back_place;
                            at_id := '';
                        END IF;
                        EXIT;
                    END IF;
                    EXIT WHEN late;
                ELSE
                    IF ruled THEN
                        FOR m IN 0 .. coalesce(cardinality(r.limits), 0) LOOP
                            limited := CASE m WHEN 0 THEN own ELSE r.limits[m] END;
                            cost := CASE m WHEN 0 THEN 1 ELSE r.costs[m] END;
                            of_limit := CASE m WHEN 0 THEN of_queue ELSE rule_of(limited) END;
                            -- who ran asks nobody; of limits that keep slots he takes his own all the same
                            CONTINUE WHEN of_limit.name IS NULL OR (r.ran AND of_limit.hold <> 'ended');
                            IF NOT (r.started_at IS NOT NULL AND of_limit.hold = 'ended') THEN
                                pos := array_position(seen, limited);
                                IF pos IS NULL THEN
                                    pos := cardinality(seen) + 1;
                                    seen[pos] := limited;
                                    used_up[pos] := used(limited, of_limit.hold);
                                END IF;
                                used_up[pos] := used_up[pos] + cost;
                            END IF;
                            IF of_limit.rate IS NOT NULL AND NOT r.ran THEN
                                PERFORM spend(limited, of_limit, cost, t);
                                spent := spent || limited;
                            END IF;
                        END LOOP;
                    END IF;
                    r.version := r.version + 1;
                    r.state := 2;
                    r.place := NULL;
                    r.parked := NULL;
                    r.worker := a.worker;
                    r.due_at := t + coalesce(nullif(r.lease, 0), a.leases[task_at], a.lease);
                    r.key := CASE WHEN NOT (coalesce(r.words ? 'started', false) AND NOT keeps_key(r, t)) THEN r.key END;
                    r.started_at := t;
                    r.updated_at := t;
                    PERFORM put(r);
                    taken := taken || r.id;
                    IF room[task_at] IS NOT NULL THEN
                        room[task_at] := room[task_at] - 1;
                    END IF;
                    share := share - 1;
                    EXIT WHEN share <= 0;
                END IF;
            END LOOP;
        END LOOP;
    END LOOP;
    FOR limited IN SELECT DISTINCT s FROM unnest(spent) AS s LOOP
        PERFORM set_opening(limited, t);
    END LOOP;
    IF cardinality(taken) > 0 THEN
        INSERT INTO ticket (worker, slot, ticket, jobs, at) VALUES (a.name, a.slot, a.worker, taken, t)
        ON CONFLICT (worker, slot) DO UPDATE
        SET ticket = excluded.ticket, at = excluded.at, jobs = excluded.jobs;
    END IF;
    unfinished := left_aside <= 0 OR late;
    aside := most_aside - left_aside;
END $$;

-- The next of a line behind a spot: of these tasks, of these ids, or (it is shut) of those who may be exempt.
CREATE FUNCTION page_of(line text, tasks text[], wanted text[], shut boolean, at_rank smallint, at_place float8,
    at_id text, wide int) RETURNS TABLE (id text, rank smallint, place float8) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF wanted IS NOT NULL THEN
        RETURN QUERY SELECT j.id, j.rank, j.place FROM job j
        WHERE j.id = ANY (wanted) AND j.queue = line AND j.place IS NOT NULL
            AND (at_id IS NULL OR (-j.rank, j.place, j.id) > (-at_rank, at_place, at_id))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
        RETURN;
    END IF;
    IF at_id IS NOT NULL THEN
        RETURN QUERY SELECT j.id, j.rank, j.place FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND j.rank = at_rank AND (j.place, j.id) > (at_place, at_id)
            AND (tasks IS NULL OR j.task = ANY (tasks)) AND (NOT shut OR j.ran OR j.started_at IS NOT NULL)
        ORDER BY j.place, j.id LIMIT wide;
        IF FOUND THEN
            RETURN;     -- a short page is no end: the next one begins behind it
        END IF;
    END IF;
    IF shut THEN
        RETURN QUERY SELECT j.id, j.rank, j.place FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL AND (j.ran OR j.started_at IS NOT NULL)
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
    ELSE
        RETURN QUERY SELECT j.id, j.rank, j.place FROM job j
        WHERE j.queue = line AND j.place IS NOT NULL
            AND (at_id IS NULL OR j.rank < at_rank) AND (tasks IS NULL OR j.task = ANY (tasks))
        ORDER BY j.rank DESC, j.place, j.id LIMIT wide;
    END IF;
END $$;
