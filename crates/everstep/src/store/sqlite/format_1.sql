-- Format 1 of the SQLite store. Times are milliseconds since the Unix epoch. Users may rely on the
-- views at the end; the tables may change with the format.

-- `no` is a function of `id`, so there is no index on ids.
CREATE TABLE everstep_runs (
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
    tags TEXT, -- a JSON array of pairs
    input BLOB NOT NULL,
    output BLOB,
    error BLOB,
    parent BLOB,                      -- the id of the run that started it
    resume_at INTEGER,                -- the earliest time at which a resumed run continues
    links INTEGER NOT NULL DEFAULT 0, -- rows elsewhere that the end of the run must tell or remove
    trace TEXT                        -- a W3C traceparent and, after a space, its tracestate
);
-- The poll reads due runs from this index alone. A run that is started into its owner's memory and ends
-- there never enters it.
CREATE INDEX everstep_runs_due ON everstep_runs (available_at, no, shard, status) WHERE available_at IS NOT NULL;
-- Runs in an owner's memory: running and rolling back.
CREATE INDEX everstep_runs_live ON everstep_runs (no) WHERE status IN (1, 3);
-- Runs that wait for something from outside: sleeping and paused.
CREATE INDEX everstep_runs_idle ON everstep_runs (status, shard) WHERE status IN (2, 4) AND available_at IS NULL;
-- Retention and filters read ended runs by workflow and status from this index.
CREATE INDEX everstep_runs_finished ON everstep_runs (workflow, status, finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE everstep_history (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (run, generation, key)
) WITHOUT ROWID;

-- `run` is -1 for the key of a deleted run, whose id, end and window stand beside it.
CREATE TABLE everstep_keys (
    workflow TEXT NOT NULL,
    key TEXT NOT NULL,
    run INTEGER NOT NULL,
    deleted_id BLOB,
    deleted_at INTEGER,
    kept_until INTEGER,
    PRIMARY KEY (workflow, key)
) WITHOUT ROWID;
CREATE INDEX everstep_keys_tombstones ON everstep_keys (kept_until) WHERE kept_until IS NOT NULL;

-- What comes to a run from outside: a kind (0 is a message), and for all others the key of the
-- operation that it is for.
CREATE TABLE everstep_inbox (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    request BLOB,
    sent_at INTEGER NOT NULL,
    kind INTEGER NOT NULL DEFAULT 0,
    wait BLOB,
    on_end TEXT,
    PRIMARY KEY (run, seq)
) WITHOUT ROWID;

CREATE TABLE everstep_dedupes (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE everstep_requests (
    id BLOB NOT NULL PRIMARY KEY,
    run INTEGER NOT NULL,
    state INTEGER NOT NULL, -- 0 open, 1 answered, 2 the run ended
    body BLOB
) WITHOUT ROWID;
CREATE INDEX everstep_requests_of_run ON everstep_requests (run);

CREATE TABLE everstep_state (
    run INTEGER NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (run, key)
) WITHOUT ROWID;

CREATE TABLE everstep_tags (
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    run INTEGER NOT NULL,
    PRIMARY KEY (name, value, run)
) WITHOUT ROWID;

CREATE TABLE everstep_dead_letters (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    run INTEGER,
    name TEXT NOT NULL,
    body BLOB NOT NULL,
    reason TEXT NOT NULL,
    at INTEGER NOT NULL,
    target TEXT
);
CREATE INDEX everstep_dead_letters_of_run ON everstep_dead_letters (run);

CREATE TABLE everstep_runners (
    id BLOB NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL,
    name TEXT NOT NULL,
    lease_until INTEGER NOT NULL,
    lease INTEGER NOT NULL, -- its duration
    -- A JSON array of [name, version, first version accepted, last version accepted].
    workflows TEXT NOT NULL,
    pools TEXT NOT NULL, -- a JSON array of names
    weight INTEGER NOT NULL,
    address TEXT -- the path of the socket at which the runner is woken
) WITHOUT ROWID;

-- Pools by number. A run's `shard` is 256 times the number of the pool that it is in, and the index
-- that follows from its id.
CREATE TABLE everstep_pools (
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
INSERT INTO everstep_pools (no, name) VALUES (0, 'default');

CREATE TABLE everstep_shards (
    shard INTEGER PRIMARY KEY,
    runner BLOB NOT NULL
);
-- The last epoch that was given out. An epoch is never used twice.
CREATE TABLE everstep_epochs (last INTEGER NOT NULL);
INSERT INTO everstep_epochs VALUES (0);

-- Who waits for the end of which run.
CREATE TABLE everstep_watchers (
    run INTEGER NOT NULL,
    waiter INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (run, waiter, generation, key)
) WITHOUT ROWID;
CREATE INDEX everstep_watches_of_run ON everstep_watchers (waiter);

-- Runs that were started by others and have not ended.
CREATE TABLE everstep_children (
    run INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    close INTEGER NOT NULL,  -- 0 it is left alone when its parent ends, 1 it is cancelled
    awaited INTEGER NOT NULL -- 1 while its parent waits for it
);
CREATE INDEX everstep_children_of_run ON everstep_children (parent);

-- Histories that nobody needs any more; removed a slice at a time.
CREATE TABLE everstep_old_generations (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (run, generation)
) WITHOUT ROWID;

-- Deleted runs of which something is left to be swept.
CREATE TABLE everstep_graves (run INTEGER PRIMARY KEY);

-- What tokens are made with: made here, once, and kept for the life of the file.
CREATE TABLE everstep_secrets (
    name TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO everstep_secrets VALUES ('tokens', randomblob(32));

-- The values of deferreds. The tag says which deferred of the run it is.
CREATE TABLE everstep_deferreds (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    body BLOB NOT NULL, -- the answer for whoever waits
    at INTEGER NOT NULL,
    PRIMARY KEY (run, generation, tag)
) WITHOUT ROWID;

-- The operations that wait for one.
CREATE TABLE everstep_deferred_waits (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (run, generation, tag, key)
) WITHOUT ROWID;

CREATE TABLE everstep_event_names (
    name TEXT NOT NULL PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    last_waiter INTEGER NOT NULL,
    kept INTEGER NOT NULL, -- how many events are stored and with nobody
    dropped INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE everstep_events (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    key TEXT,
    body BLOB NOT NULL,
    published_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    one INTEGER NOT NULL, -- 1 for the oldest waiter alone, 0 for all
    given_to INTEGER,     -- the waiter that has it, if it is for one
    told INTEGER,         -- the last waiter that was told, while there are more
    PRIMARY KEY (name, seq)
) WITHOUT ROWID;
CREATE INDEX everstep_events_by_key ON everstep_events (name, key, seq) WHERE key IS NOT NULL;
CREATE INDEX everstep_events_free ON everstep_events (name, seq) WHERE one = 1 AND given_to IS NULL;
CREATE INDEX everstep_events_spreading ON everstep_events (name, seq) WHERE told IS NOT NULL;
CREATE INDEX everstep_events_by_expiry ON everstep_events (expires_at, name, seq)
    WHERE given_to IS NULL AND told IS NULL;

CREATE TABLE everstep_event_waiters (
    name TEXT NOT NULL,
    no INTEGER NOT NULL, -- the order of registration
    matching TEXT,
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    wait BLOB NOT NULL,     -- the key of the operation
    after INTEGER NOT NULL, -- it wants broadcasts after this one
    floor INTEGER NOT NULL, -- and others after this one
    given INTEGER,          -- what it was handed and has not taken
    PRIMARY KEY (name, no)
) WITHOUT ROWID;
CREATE INDEX everstep_event_waiters_waiting ON everstep_event_waiters (name, matching, no) WHERE given IS NULL;
CREATE UNIQUE INDEX everstep_event_waiters_of_run ON everstep_event_waiters (run, generation, wait);

-- The last broadcast that a run has seen; `matching` is empty for a wait without one.
CREATE TABLE everstep_event_cursors (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    matching TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, name, matching)
) WITHOUT ROWID;

CREATE TABLE everstep_event_dedupes (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX everstep_event_dedupes_by_time ON everstep_event_dedupes (until);

-- Limits that are in use: a row for each key.
CREATE TABLE everstep_limits (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    concurrency INTEGER,      -- how many at a time; null if any number
    rate_count INTEGER,       -- this many times ..
    rate_ms INTEGER,          -- .. in this many milliseconds; null if as often as one likes
    burst INTEGER,            -- how many at once after a time without any
    held INTEGER NOT NULL,    -- how many have a place
    waiting INTEGER NOT NULL, -- how many wait for one
    arrivals INTEGER NOT NULL,
    turn_us INTEGER NOT NULL, -- the clock of the rate, in microseconds since 1970
    seen_us INTEGER NOT NULL, -- the latest time at which the row was written, likewise
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX everstep_limits_idle ON everstep_limits (name, turn_us) WHERE held = 0 AND waiting = 0;

-- The places under them: an operation of a run waits for one, or has it.
CREATE TABLE everstep_limit_places (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    operation BLOB NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    given INTEGER NOT NULL,
    PRIMARY KEY (run, generation, operation)
) WITHOUT ROWID;
CREATE INDEX everstep_limit_line ON everstep_limit_places (name, key, given, arrival);

-- Work queues. `at` is, as `state` says: since when a ready item can be worked on (0), when a delayed
-- one can be (1), until when a worker has a claimed one (2), until when a result is kept (3), when it
-- became a dead letter (4). Items are claimed by (rank, at, no); `rank` is the priority, negated.
CREATE TABLE everstep_queue_items (
    no INTEGER PRIMARY KEY AUTOINCREMENT, -- the id that people see
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    rank INTEGER NOT NULL,
    at INTEGER NOT NULL,
    claim BLOB,
    attempts INTEGER NOT NULL,
    keep_ms INTEGER NOT NULL,
    dedupe TEXT,
    created_at INTEGER NOT NULL,
    error BLOB,  -- an encoded failure
    answer BLOB, -- as it was, or would have been, handed to a waiting operation
    payload BLOB NOT NULL,
    trace TEXT -- as in `runs`
);
CREATE INDEX everstep_queue_ready ON everstep_queue_items (queue, rank, at, no) WHERE state = 0;
CREATE INDEX everstep_queue_timed ON everstep_queue_items (queue, state, at) WHERE state IN (1, 2, 3);
CREATE INDEX everstep_queue_dead ON everstep_queue_items (queue, no) WHERE state = 4;
CREATE UNIQUE INDEX everstep_queue_dedupes ON everstep_queue_items (queue, dedupe) WHERE dedupe IS NOT NULL;

-- Operations of runs that wait for an item.
CREATE TABLE everstep_queue_waits (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    item INTEGER NOT NULL,
    cancels INTEGER NOT NULL, -- whether the item goes with the wait while nobody has claimed it
    PRIMARY KEY (run, generation, key)
) WITHOUT ROWID;
CREATE INDEX everstep_queue_waits_of_item ON everstep_queue_waits (item);

-- Schedules: what starts runs by itself.
CREATE TABLE everstep_schedules (
    name TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    workflow TEXT NOT NULL,
    version INTEGER NOT NULL,
    input BLOB NOT NULL,
    tags TEXT,                -- a JSON array of pairs
    spec TEXT NOT NULL,       -- `every <ms>` or `cron <time zone> <expression>`
    anchor INTEGER NOT NULL,  -- where intervals are counted from
    overlap INTEGER NOT NULL, -- 0 skip, 1 queue, 2 allow, 3 cancel the old
    catch_up INTEGER NOT NULL,
    paused INTEGER NOT NULL,
    next_at INTEGER, -- null: no tick is left
    queue TEXT,      -- a JSON array of ticks that wait, each with whether it is a trigger
    last_tick INTEGER,
    last_run BLOB, -- the id of the run
    started INTEGER NOT NULL,
    skipped INTEGER NOT NULL,
    missed INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX everstep_due_schedules ON everstep_schedules (next_at, name) WHERE paused = 0 AND next_at IS NOT NULL;
CREATE INDEX everstep_queued_schedules ON everstep_schedules (name) WHERE paused = 0 AND queue IS NOT NULL;

-- What runs give out while they go on. Positions of a stream are 0, 1, 2, .. without a gap; only the
-- oldest items are ever removed, and the newest is kept, so the next position follows from it.
CREATE TABLE everstep_streams (
    run INTEGER NOT NULL,
    stream TEXT NOT NULL,
    pos INTEGER NOT NULL,
    at INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    step BLOB,       -- the key of the step whose body gave it; null if the workflow's own code did
    attempt INTEGER, -- null with step
    life INTEGER,    -- null with step
    body BLOB NOT NULL,
    PRIMARY KEY (run, stream, pos)
) WITHOUT ROWID;

-- The audit log. An entry is written before its change is made, and the outcome after it. An entry
-- without an outcome belongs to a process that died in between.
CREATE TABLE everstep_audit (
    no INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    detail TEXT NOT NULL,
    outcome TEXT
);
CREATE INDEX everstep_audit_by_time ON everstep_audit (at, no);

-- Tokens of the HTTP API. Only the SHA-256 of a token is stored.
CREATE TABLE everstep_api_tokens (
    name TEXT NOT NULL PRIMARY KEY,
    role TEXT NOT NULL, -- `read`, `operate` or `admin`
    hash BLOB NOT NULL,
    created_at INTEGER NOT NULL,
    last_used_at INTEGER
) WITHOUT ROWID;

CREATE VIEW everstep_view_runs AS
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
FROM everstep_runs;

CREATE VIEW everstep_view_steps AS
SELECT
    lower(substr(hex(everstep_runs.id), 1, 8) || '-' || substr(hex(everstep_runs.id), 9, 4) || '-'
        || substr(hex(everstep_runs.id), 13, 4) || '-' || substr(hex(everstep_runs.id), 17, 4) || '-'
        || substr(hex(everstep_runs.id), 21)) AS run,
    everstep_history.generation AS generation,
    lower(hex(everstep_history.key)) AS key,
    length(everstep_history.value) AS size
FROM everstep_history JOIN everstep_runs ON everstep_runs.no = everstep_history.run;

CREATE VIEW everstep_view_schedules AS
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
FROM everstep_schedules;
