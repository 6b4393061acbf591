-- Bytes that give way as a plain row grows, so that it is written over in place: with what a claim adds a full page was
-- split in two (11.6 pages a commit of 16 jobs, now 8). Rows stored before have none, and grow as they did.
ALTER TABLE job ADD COLUMN room BLOB;
