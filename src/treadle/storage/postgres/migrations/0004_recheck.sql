-- Limits of which something was freed while another transaction held their gate: the next call that looks for due jobs
-- comes back to them. Without a unique index, or two calls that note the same limit would wait for each other.
CREATE TABLE recheck (key text COLLATE "C" NOT NULL);
CREATE INDEX recheck_key ON recheck (key);
