-- The trace that a run or an item belongs to: a W3C traceparent, and after a space its tracestate if
-- there is one.
ALTER TABLE runs ADD COLUMN trace TEXT;
ALTER TABLE queue_items ADD COLUMN trace TEXT;

-- For those who operate the store. An entry is written before what it is about is done, and its
-- outcome after: one without an outcome tells that nobody knows what became of it.
CREATE TABLE audit (
    no INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    outcome TEXT
);
CREATE INDEX audit_by_time ON audit (at, no);

-- Who may use the HTTP API. What was handed out is not here, only its SHA-256.
CREATE TABLE api_tokens (
    name TEXT NOT NULL PRIMARY KEY,
    role TEXT NOT NULL, -- `read`, `operate` or `admin`
    hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER
) WITHOUT ROWID;
