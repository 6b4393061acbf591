-- name: store
INSERT OR REPLACE INTO metrics (at, span, source, data) VALUES (?, ?, ?, ?);

-- name: remove
DELETE FROM metrics WHERE at = ? AND span = ? AND source = ?;

-- The comparison with LONGEST bounds the read by the primary key.

-- name: read
SELECT at, span, source, data FROM metrics WHERE at < ?2 AND at > ?1 - ?3 AND at + span > ?1 ORDER BY at, span, source;

-- name: all
SELECT at, span, source, data FROM metrics ORDER BY at, span, source;
