-- name: set_mark
INSERT OR REPLACE INTO meta (name, value) VALUES ('move', ?);

-- name: page
SELECT seq FROM job WHERE seq > ? ORDER BY seq LIMIT ?;

-- name: keys
SELECT id FROM job WHERE seq IN (SELECT value FROM json_each(?)) AND key IS NOT NULL;

-- name: edges
SELECT up, down, version, open, soft FROM edge WHERE down IN (SELECT value FROM json_each(?)) ORDER BY num;

-- name: behinds
SELECT job, first FROM behind WHERE job IN (SELECT value FROM json_each(?));

-- name: all_starts
SELECT key, at, cost FROM start ORDER BY key, at;

-- name: all_buckets
SELECT key, tokens, at, since FROM bucket;

-- name: add_edge
INSERT OR REPLACE INTO edge (up, down, version, open, soft, named) VALUES (?, ?, ?, ?, ?, ?);
