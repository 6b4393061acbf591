-- Locks of limits. A transaction that counts what a limit has left holds the limit's gate until it commits, so the
-- count stays valid until then. The order of all locks: docs/internals/postgres.md.
--
-- A transaction that holds a gate waits for no lock at all. One that holds none may wait for several, all at once and
-- sorted by name (`lock_gates`). One that holds some takes the free ones and leaves the rest (`try_gates`).
--
-- The setting `treadle.gates` controls what this transaction may do: unset, it holds none; 'held', it holds some;
-- 'never', it is a user's, may last for minutes, and must not hold any.

-- Whether this transaction may wait for gates.
CREATE FUNCTION may_wait_for_gates() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT coalesce(current_setting('treadle.gates', true), '') = ''
$$;

-- How many ms this transaction waits for its turn: the setting `treadle.patience`, or 20. The wait is short, because
-- other transactions may wait for the rows that this one has locked.
CREATE FUNCTION patience() RETURNS int LANGUAGE sql STABLE AS $$
    SELECT coalesce(nullif(current_setting('treadle.patience', true), ''), '20')::int
$$;

-- The key of the advisory lock for inserting a missing gate, because a uniqueness check waits, even under SKIP LOCKED.
-- There are 1,024 such locks; the server's table of locks is small.
CREATE FUNCTION gate_guard(limited text) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(current_schema() || ' gate ' || (hashtext(limited) & 1023), 0)
$$;

-- Locks these gates, and inserts the missing ones.
CREATE FUNCTION lock_gates(keys text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    wanted text[] := ARRAY(SELECT DISTINCT k FROM unnest(keys) AS k);
    missing text[];
    held bigint;
BEGIN
    LOOP
        missing := missing_gates(wanted);
        IF cardinality(missing) > 0 THEN
            PERFORM pg_advisory_xact_lock(guard)
            FROM (SELECT DISTINCT gate_guard(k) AS guard FROM unnest(missing) AS k ORDER BY 1) AS guards;
            INSERT INTO gate (key) SELECT k FROM unnest(missing) AS k ORDER BY k ON CONFLICT DO NOTHING;
        END IF;
        SELECT count(*) INTO held
        FROM (SELECT 1 FROM gate WHERE key = ANY (wanted) ORDER BY key FOR NO KEY UPDATE) AS locked;
        EXIT WHEN held = cardinality(wanted);   -- otherwise a gate was deleted while this call waited
    END LOOP;
    IF held > 0 THEN
        PERFORM set_config('treadle.gates', 'held', true);
    END IF;
END $$;

-- Locks the free ones of these gates without waiting. Returns the gates that this transaction now holds.
CREATE FUNCTION try_gates(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    held text[] := ARRAY(SELECT key FROM gate WHERE key = ANY (keys) ORDER BY key FOR NO KEY UPDATE SKIP LOCKED);
    missing text[];
BEGIN
    IF cardinality(held) < cardinality(keys) THEN
        missing := missing_gates(keys);
        IF cardinality(missing) > 0 THEN
            BEGIN
                WITH inserted AS (      -- new gates: no other transaction sees them, so they need no lock
                    INSERT INTO gate (key) SELECT k FROM unnest(missing) AS k
                    WHERE pg_try_advisory_xact_lock(gate_guard(k)) ON CONFLICT DO NOTHING RETURNING key
                ) SELECT held || array_agg(key) INTO held FROM inserted;
            EXCEPTION WHEN lock_not_available THEN
                NULL;           -- an open transaction has inserted it without the guard
            END;
        END IF;
    END IF;
    IF cardinality(held) > 0 THEN
        PERFORM set_config('treadle.gates', 'held', true);
    END IF;
    RETURN held;
END $$;

-- Returns the gates that do not exist. It does not use NOT EXISTS: if the planner believes that the table is empty,
-- that reads the whole table for each key (60 us a key).
CREATE FUNCTION missing_gates(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(SELECT unnest(keys) COLLATE "C" EXCEPT SELECT key FROM gate WHERE key = ANY (keys));
END $$;

-- Waits for all of these gates. If one of them is not free within 0.1 s, it takes only the free ones. Returns the gates
-- that are held.
CREATE FUNCTION wait_for_gates(keys text[]) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
BEGIN
    BEGIN
        PERFORM set_config('lock_timeout', '100ms', true);
        PERFORM lock_gates(keys);
        PERFORM set_config('lock_timeout', before, true);
        RETURN keys;
    EXCEPTION WHEN lock_not_available THEN
        NULL;
    END;
    RETURN try_gates(keys);
END $$;

-- Waits for all of these gates, as long as lock_timeout allows. Returns whether they are held.
CREATE FUNCTION try_wait_for_gates(keys text[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lock_gates(keys);
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;

-- Takes the gates of a page: the gate of its queue, if that has a rule, and the gates of the limits that its jobs name.
-- missing: the gates that other transactions hold; NULL: none. Without the gate of its queue no job of a page can
-- start; without any of the others, no job that names limits. patient: wait for them in that case, if this transaction
-- may. shared: the limits that all jobs of the page name. Without one of these gates no job of the page can start
-- either, and usually none of the pages after it; the transaction waits for them, if it may. If a claim reads six pages
-- of such jobs in vain, a job costs the server twice as much. busy: the wait was in vain, or this call has settled and
-- must not wait.
CREATE FUNCTION take_page_gates(own text, keys text[], shared text[], patient boolean, OUT held text[],
    OUT missing text[], OUT busy boolean) LANGUAGE plpgsql AS $$
DECLARE
    first text[] := CASE WHEN own IS NOT NULL THEN ARRAY[own] ELSE coalesce(keys, '{}') END;
BEGIN
    busy := false;
    held := '{}';
    IF cardinality(first) = 0 THEN
        RETURN;
    END IF;
    IF own IS NULL AND cardinality(shared) > 0 AND may_wait_for_gates() AND cardinality(try_gates(shared)) = 0 THEN
        busy := patience() = 0 OR NOT try_wait_for_gates(shared);
    END IF;
    IF NOT busy THEN
        held := try_gates(first);
        IF cardinality(held) = 0 AND patient AND may_wait_for_gates() THEN
            busy := patience() = 0 OR NOT try_wait_for_gates(first);
            held := first;
        END IF;
    END IF;
    IF busy THEN
        RETURN;
    END IF;
    IF own IS NOT NULL THEN
        IF cardinality(held) > 0 AND cardinality(keys) > 0 THEN
            held := held || try_gates(keys);
        END IF;
        first := first || keys;
    END IF;
    IF cardinality(held) < cardinality(first) THEN
        missing := ARRAY(SELECT unnest(first) EXCEPT SELECT unnest(held));
    END IF;
END $$;

-- Calls that count limits take turns, as long as turns are short: concurrently they would read the same head of a
-- queue, and skip the jobs whose gates the other holds (twice the work for a job, with two workers). If a commit
-- is slow, the next call continues without its turn: the gates alone keep the counts right.
--
-- most: ms to wait; with 0 it does not wait, see `settle_and_claim`. A transaction waits for the turn only once.
-- Returns false if `most` is 0 and another transaction has the turn; otherwise true.
CREATE FUNCTION await_turn(most int) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    before constant text := current_setting('lock_timeout');
BEGIN
    IF try_turn() OR NOT may_wait_for_gates() OR current_setting('treadle.turn', true) = 'missed' THEN
        RETURN true;
    ELSIF most = 0 THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM set_config('lock_timeout', most || 'ms', true);
        PERFORM pg_advisory_xact_lock(turn_lock());
        PERFORM set_config('lock_timeout', before, true);
        PERFORM set_config('treadle.turn', 'mine', true);
    EXCEPTION WHEN lock_not_available THEN
        PERFORM set_config('treadle.turn', 'missed', true);
    END;
    RETURN true;
END $$;

-- The key of the lock of the turn.
CREATE FUNCTION turn_lock() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(current_schema() || ' turn', 0)
$$;

-- Returns whether this transaction has the turn now.
CREATE FUNCTION try_turn() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock(turn_lock()) THEN
        PERFORM set_config('treadle.turn', 'mine', true);
        RETURN true;
    END IF;
    RETURN false;
END $$;

-- The key of the lock of rules: claims that check rules share it, a change of rules takes it exclusively.
CREATE FUNCTION rules_lock() RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT hashtextextended(current_schema() || ' rules', 0)
$$;

-- Prevents changes of rules until the end of this transaction. Returns false if a change is in progress. A transaction
-- with the turn or a gate does not wait, because a change of rules may wait for these.
CREATE FUNCTION share_rules() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    IF pg_try_advisory_xact_lock_shared(rules_lock()) THEN
        RETURN true;
    ELSIF NOT may_wait_for_gates() OR current_setting('treadle.turn', true) = 'mine' THEN
        RETURN false;
    END IF;
    BEGIN
        PERFORM pg_advisory_xact_lock_shared(rules_lock());
        RETURN true;
    EXCEPTION WHEN lock_not_available THEN
        RETURN false;
    END;
END $$;
