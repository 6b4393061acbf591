-- name: take
INSERT OR REPLACE INTO slot (key, job, live, cost) SELECT ?1, value, 1, ?2 FROM json_each(?3);

-- name: give_back
DELETE FROM slot WHERE key = ?1 AND job IN (SELECT value FROM json_each(?2));

-- Running jobs that have the named version, hold no key and have no waiting jobs: they may end on the bulk path.

-- name: running
SELECT j.seq, j.flags, CASE WHEN j.flags & 24 THEN b.body END
FROM json_each(?) e CROSS JOIN job j ON j.id = e.value->>0 CROSS JOIN body b ON b.seq = j.seq
WHERE j.version = e.value->>1 AND j.state = 2 AND j.flags & 3 = 0;
