-- What is known of each limit, one fact a row, so that no change depends on what its caller has read: the operator's rule, the
-- declared one, and each reason it is paused for. `rule` keeps the rule that acts, derived from them.
CREATE TABLE limit_fact (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    slots int,
    rate int,
    per float8,
    how text,
    burst int,
    hold text,
    until float8,
    PRIMARY KEY (name, kind)
);
INSERT INTO limit_fact (name, kind) SELECT substr(name, 16), 'paused' FROM rule WHERE starts_with(name, 'treadle.paused:');
INSERT INTO limit_fact (name, kind) SELECT substr(name, 14), 'held' FROM rule WHERE starts_with(name, 'treadle.held:');
INSERT INTO limit_fact (name, kind, slots, rate, per, how, burst, hold)
SELECT substr(name, 14), CASE WHEN starts_with(name, 'treadle.code:') THEN 'declared' ELSE 'set' END,
    slots, rate, per, how, burst, hold
FROM rule WHERE starts_with(name, 'treadle.code:') OR starts_with(name, 'treadle.rule:');
INSERT INTO limit_fact (name, kind, slots, rate, per, how, burst, hold)
SELECT name, 'set', slots, rate, per, how, burst, hold FROM rule WHERE NOT starts_with(name, 'treadle.')
    AND NOT EXISTS (SELECT FROM limit_fact f WHERE f.name = rule.name AND f.kind IN ('paused', 'held'));
-- A rule that is as code declared it was not set by an operator.
DELETE FROM limit_fact s USING limit_fact d WHERE s.kind = 'set' AND d.kind = 'declared' AND s.name = d.name
    AND (s.slots, s.rate, s.per, s.how, s.burst, s.hold) IS NOT DISTINCT FROM (d.slots, d.rate, d.per, d.how, d.burst, d.hold);
DELETE FROM rule WHERE starts_with(name, 'treadle.');
