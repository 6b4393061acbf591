-- Both inserts are repeated by row (statements.py). `add_plain` leaves a known id unchanged; the caller counts the rows
-- that were inserted. `add_any` stores jobs that `plan` found to be new: a conflict is an error and rolls the call
-- back.

-- A row number is never reused, so that the process that leased a row may end it by number
-- (recent_leases.py). When prune deletes the last row, it records the greatest number (meta 'top').

-- name: top
SELECT max((SELECT coalesce(max(seq), 0) FROM job),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'top'), 0));

-- name: any_edge
SELECT EXISTS (SELECT 1 FROM edge);

-- Reads everything that an insert of plain jobs needs at its beginning, in one statement.

-- name: glance
SELECT max((SELECT coalesce(max(seq), 0) FROM job),
    coalesce((SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'top'), 0)),
    EXISTS (SELECT 1 FROM edge), (SELECT value FROM meta WHERE name = 'move'),
    (SELECT value FROM meta WHERE name = 'bounds');

-- name: waited_for
SELECT DISTINCT up FROM edge WHERE up IN (SELECT value FROM json_each(?));

-- name: add_plain
INSERT OR IGNORE INTO job (created_at, updated_at, state, room, queue_position, return_position, due_at, deadline_at,
    queue, task, flags, keep, keep_failed, seq, id, rank)
VALUES (?1, ?1, 1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?, ?, ?);

-- name: add_any
INSERT INTO job (seq, id, queue, task, rank, flags, state, queue_position, return_position, due_at, created_at,
    updated_at, function_done, pending, failures_allowed, deadline_at, keep, keep_failed, key, lane, root, parent,
    after)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: add_body
INSERT INTO body (seq, body) VALUES (?, ?);

-- name: add_label
INSERT OR IGNORE INTO label (label, job) VALUES (?, ?);

-- name: seqs
SELECT id, seq FROM job WHERE id IN (SELECT value FROM json_each(?));
