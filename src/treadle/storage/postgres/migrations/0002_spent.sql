-- The real costs of runs. They may exceed a rate, so their sums need 64 bits. `since`: the last start that found a
-- bucket full; the end of an earlier run changes nothing in it any more.
ALTER TABLE start ALTER COLUMN cost TYPE bigint;
ALTER TABLE gate ALTER COLUMN spent TYPE bigint, ADD COLUMN since float8;

-- A note may also say that a start of a limit, at this moment, reserved a cost and spent another one.
ALTER TABLE recheck ADD COLUMN at float8, ADD COLUMN reserved int, ADD COLUMN spent int;
