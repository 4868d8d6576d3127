-- Format 1 of an everstep file. Times are milliseconds since the Unix epoch. What people and
-- programs may rely on are the views at the end; the tables may change with the format.

-- `no` is a function of `id` (crate::run_id), so there is no index on ids.
CREATE TABLE runs (
    no INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    workflow TEXT NOT NULL,
    version INTEGER NOT NULL,
    key TEXT,
    pool TEXT NOT NULL,
    shard INTEGER NOT NULL,
    status INTEGER NOT NULL,
    ending INTEGER,
    generation INTEGER NOT NULL,
    available_at INTEGER,
    deadline_at INTEGER,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    finished_at INTEGER,
    attempts INTEGER NOT NULL,
    recoveries INTEGER NOT NULL,
    inbox_seq INTEGER NOT NULL,
    cancel_requested INTEGER, -- 1 with rollback, 0 without
    last_number INTEGER,      -- null after a reopening: only the owner knows
    waiting TEXT,
    tags TEXT,                -- a JSON array of pairs
    input BLOB NOT NULL,
    output BLOB,
    error BLOB
);
-- The poll reads what is due from this index alone. A run that is started into its owner's memory
-- and ends there never enters it.
CREATE INDEX due ON runs (available_at, no, shard, status) WHERE available_at IS NOT NULL;
-- What is in somebody's memory: running and rolling back.
CREATE INDEX live ON runs (no) WHERE status IN (1, 3);
-- What waits for something from outside: sleeping and paused.
CREATE INDEX idle ON runs (status, shard) WHERE status IN (2, 4) AND available_at IS NULL;

CREATE TABLE history (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (run, generation, key)
) WITHOUT ROWID;

CREATE TABLE keys (
    workflow TEXT NOT NULL,
    key TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (workflow, key)
) WITHOUT ROWID;

CREATE TABLE inbox (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    request BLOB,
    sent_at INTEGER NOT NULL,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

CREATE TABLE dedupes (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE requests (
    id BLOB NOT NULL PRIMARY KEY,
    run INTEGER NOT NULL,
    state INTEGER NOT NULL, -- 0 open, 1 answered, 2 the run ended
    body BLOB
) WITHOUT ROWID;
CREATE INDEX open_requests ON requests (run) WHERE state = 0;

CREATE TABLE state (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE tags (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL
);
CREATE INDEX dead_letters_of_run ON dead_letters (run);

CREATE TABLE runners (
    id BLOB NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    workflows TEXT NOT NULL, -- a JSON array of names and versions
    address TEXT             -- the path of the socket at which it is woken
) WITHOUT ROWID;

CREATE TABLE shards (
    shard INTEGER PRIMARY KEY,
    runner BLOB NOT NULL
);

-- The last epoch that was given out. Epochs are never used twice.
CREATE TABLE epochs (last INTEGER NOT NULL);
INSERT INTO epochs VALUES (0);

CREATE VIEW everstep_runs AS
SELECT
    lower(substr(hex(id), 1, 8) || '-' || substr(hex(id), 9, 4) || '-' || substr(hex(id), 13, 4)
        || '-' || substr(hex(id), 17, 4) || '-' || substr(hex(id), 21)) AS id,
    workflow,
    version,
    key,
    pool,
    shard,
    CASE status
        WHEN 0 THEN 'pending' WHEN 1 THEN 'running' WHEN 2 THEN 'sleeping'
        WHEN 3 THEN 'rolling_back' WHEN 4 THEN 'paused' WHEN 5 THEN 'completed'
        WHEN 6 THEN 'failed' WHEN 7 THEN 'cancelled'
    END AS status,
    waiting,
    generation,
    attempts,
    recoveries,
    inbox_seq AS messages,
    cancel_requested IS NOT NULL AS cancel_requested,
    strftime('%Y-%m-%dT%H:%M:%S', available_at / 1000, 'unixepoch')
        || printf('.%03dZ', available_at % 1000) AS available_at,
    strftime('%Y-%m-%dT%H:%M:%S', deadline_at / 1000, 'unixepoch')
        || printf('.%03dZ', deadline_at % 1000) AS deadline_at,
    strftime('%Y-%m-%dT%H:%M:%S', created_at / 1000, 'unixepoch')
        || printf('.%03dZ', created_at % 1000) AS created_at,
    strftime('%Y-%m-%dT%H:%M:%S', updated_at / 1000, 'unixepoch')
        || printf('.%03dZ', updated_at % 1000) AS updated_at,
    strftime('%Y-%m-%dT%H:%M:%S', finished_at / 1000, 'unixepoch')
        || printf('.%03dZ', finished_at % 1000) AS finished_at,
    tags
FROM runs;

CREATE VIEW everstep_steps AS
SELECT
    lower(substr(hex(runs.id), 1, 8) || '-' || substr(hex(runs.id), 9, 4) || '-'
        || substr(hex(runs.id), 13, 4) || '-' || substr(hex(runs.id), 17, 4) || '-'
        || substr(hex(runs.id), 21)) AS run,
    history.generation AS generation,
    lower(hex(history.key)) AS key,
    length(history.value) AS size
FROM history JOIN runs ON runs.no = history.run;
