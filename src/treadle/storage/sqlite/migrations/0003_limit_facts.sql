-- What is known of each limit, one fact a row, so that no change depends on what its caller has read: the operator's rule, the
-- declared one, and each reason it is paused for. `rule` keeps the rule that acts, derived from them.
CREATE TABLE limit_fact (
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    rule BLOB,
    until REAL,
    PRIMARY KEY (name, kind)
) WITHOUT ROWID;
INSERT INTO limit_fact (name, kind) SELECT substr(name, 16), 'paused' FROM rule WHERE name GLOB 'treadle.paused:*';
INSERT INTO limit_fact (name, kind) SELECT substr(name, 14), 'held' FROM rule WHERE name GLOB 'treadle.held:*';
INSERT INTO limit_fact (name, kind, rule) SELECT substr(name, 14), 'declared', rule FROM rule WHERE name GLOB 'treadle.code:*';
INSERT INTO limit_fact (name, kind, rule) SELECT substr(name, 14), 'set', rule FROM rule WHERE name GLOB 'treadle.rule:*';
INSERT INTO limit_fact (name, kind, rule)
SELECT name, 'set', rule FROM rule WHERE name NOT GLOB 'treadle.*'
    AND NOT EXISTS (SELECT 1 FROM limit_fact f WHERE f.name = rule.name AND f.kind IN ('paused', 'held'));
-- A rule that is as code declared it was not set by an operator: alike from the key "slots" on, behind the name.
DELETE FROM limit_fact WHERE kind = 'set' AND EXISTS (
    SELECT 1 FROM limit_fact d WHERE d.name = limit_fact.name AND d.kind = 'declared'
        AND substr(d.rule, instr(d.rule, X'A5736C6F7473')) = substr(limit_fact.rule, instr(limit_fact.rule, X'A5736C6F7473')));
DELETE FROM rule WHERE name GLOB 'treadle.*';
