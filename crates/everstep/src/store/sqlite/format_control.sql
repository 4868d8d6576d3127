-- Deletes, retention, and pauses that keep their time.

-- Retention finds what is old enough here, per workflow and status, and so do filters. An entry is
-- made once, when a run ends, at the end of its part of the index: see ARCHITECTURE.md for what
-- that costs.
CREATE INDEX finished ON runs (workflow, status, finished_at) WHERE finished_at IS NOT NULL;

-- When a paused run goes on at the earliest once it is resumed.
ALTER TABLE runs ADD COLUMN resume_at INTEGER;

-- The key of a deleted run: `run` is then -1, and the id, when it was deleted and until when the
-- key is kept stand here.
ALTER TABLE keys ADD COLUMN deleted_id BLOB;
ALTER TABLE keys ADD COLUMN deleted_at INTEGER;
ALTER TABLE keys ADD COLUMN kept_until INTEGER;
CREATE INDEX tombstones ON keys (kept_until) WHERE kept_until IS NOT NULL;

-- Deleted runs of which something is left to be swept.
CREATE TABLE graves (run INTEGER PRIMARY KEY);

-- All requests of a run, not only the open ones, so that they can be deleted with it.
DROP INDEX open_requests;
CREATE INDEX requests_of_run ON requests (run);
