-- The last start that found a bucket full: the end of an earlier run changes nothing in it any more.
ALTER TABLE bucket ADD COLUMN since REAL NOT NULL DEFAULT 0;
