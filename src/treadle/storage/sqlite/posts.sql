-- Whether a claim has nothing to look at but the line: no rules, and nothing is due.

-- name: quick
SELECT NOT EXISTS (SELECT 1 FROM rule) AND NOT EXISTS (SELECT 1 FROM opening WHERE at <= ?1)
    AND NOT EXISTS (SELECT 1 FROM job WHERE due_at IS NOT NULL AND due_at <= ?1);
