-- name: facts_of
SELECT name, kind, rule, until FROM limit_fact WHERE name IN (SELECT value FROM json_each(?));

-- name: all_facts
SELECT name, kind, rule, until FROM limit_fact;

-- name: drop_facts
DELETE FROM limit_fact WHERE name = ?;

-- name: add_fact
INSERT OR REPLACE INTO limit_fact (name, kind, rule, until) VALUES (?, ?, ?, ?);

-- name: set
INSERT OR REPLACE INTO rule (name, rule) VALUES (?, ?);

-- name: remove
DELETE FROM rule WHERE name = ?;

-- A copy of the bounds of queues, in one row that an enqueue reads; the row exists only while some queue has a bound.

-- name: drop_bounds
DELETE FROM meta WHERE name = 'bounds';

-- name: set_bounds
INSERT INTO meta (name, value) VALUES ('bounds', ?);

-- name: queue_facts
SELECT name, kind, rule, until FROM limit_fact WHERE name >= 'queue' AND name < 'queue;';

-- Slots of a queue are stored only while a rule limits it: counted from the rows when the rule comes, deleted when it
-- goes.

-- name: count_queue
INSERT OR REPLACE INTO slot (key, job, live, cost)
SELECT 'queue:' || queue, seq, state = 2 AND function_done = 0, 1 FROM job
WHERE started_at IS NOT NULL AND state < 3 AND (?1 IS NULL OR queue = ?1);

-- name: mark_queue
UPDATE job SET flags = flags | 16
WHERE seq IN (SELECT job FROM slot WHERE substr(key, 1, 6) = 'queue:') AND flags & 16 = 0;

-- name: slot_keys
SELECT DISTINCT key FROM slot WHERE key >= 'queue:' AND key < 'queue;';

-- name: drop_slots
DELETE FROM slot WHERE key = ?;
