-- Schedules: what starts runs by itself. Times are milliseconds since the Unix epoch.
CREATE TABLE schedules (
    name TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    version INTEGER NOT NULL,
    input BLOB NOT NULL,
    tags TEXT,                 -- a JSON array of pairs
    spec TEXT NOT NULL,        -- `every <ms>` or `cron <time zone> <expression>`
    anchor INTEGER NOT NULL,   -- where intervals are counted from
    overlap INTEGER NOT NULL,  -- 0 skip, 1 queue, 2 allow, 3 cancel the old
    catch_up INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    next_at INTEGER,           -- null: no tick is left
    queue TEXT,                -- a JSON array of ticks that wait, each with whether it is a trigger
    last_tick INTEGER,
    last_run BLOB,             -- the id of the run
    started INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX due_schedules ON schedules (next_at, name) WHERE paused = 0 AND next_at IS NOT NULL;
CREATE INDEX queued_schedules ON schedules (name) WHERE paused = 0 AND queue IS NOT NULL;

CREATE VIEW everstep_schedules AS
SELECT
    name,
    workflow,
    version,
    spec,
    CASE overlap
        WHEN 0 THEN 'skip' WHEN 1 THEN 'queue' WHEN 2 THEN 'allow' WHEN 3 THEN 'cancel_old'
    END AS overlap,
    paused,
    strftime('%Y-%m-%dT%H:%M:%S', next_at / 1000, 'unixepoch')
        || printf('.%03dZ', next_at % 1000) AS next_at,
    strftime('%Y-%m-%dT%H:%M:%S', last_tick / 1000, 'unixepoch')
        || printf('.%03dZ', last_tick % 1000) AS last_tick,
    lower(substr(hex(last_run), 1, 8) || '-' || substr(hex(last_run), 9, 4) || '-'
        || substr(hex(last_run), 13, 4) || '-' || substr(hex(last_run), 17, 4) || '-'
        || substr(hex(last_run), 21)) AS last_run,
    started,
    skipped,
    missed
FROM schedules;
