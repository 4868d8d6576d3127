-- Events. The row of a name is what publishing and waiting are decided under.
CREATE TABLE event_names (
    name TEXT NOT NULL PRIMARY KEY,
    last_seq INTEGER NOT NULL,
    last_waiter INTEGER NOT NULL,
    kept INTEGER NOT NULL,    -- how many events are stored and with nobody
    dropped INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    key TEXT,
    body BLOB NOT NULL,
    published_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    one INTEGER NOT NULL,     -- 1 for the oldest waiter alone, 0 for all
    given_to INTEGER,         -- the waiter that has it, if it is for one
    told INTEGER,             -- the last waiter that was told, while there are more
    PRIMARY KEY (name, seq)
) WITHOUT ROWID;
CREATE INDEX events_by_key ON events (name, key, seq) WHERE key IS NOT NULL;
CREATE INDEX events_free ON events (name, seq) WHERE one = 1 AND given_to IS NULL;
CREATE INDEX events_spreading ON events (name, seq) WHERE told IS NOT NULL;
CREATE INDEX events_by_expiry ON events (expires_at, name, seq)
    WHERE given_to IS NULL AND told IS NULL;

CREATE TABLE event_waiters (
    name TEXT NOT NULL,
    no INTEGER NOT NULL,      -- the order of registration
    matching TEXT,
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    wait BLOB NOT NULL,       -- the key of the operation
    after INTEGER NOT NULL,   -- it wants broadcasts after this one
    floor INTEGER NOT NULL,   -- and others after this one
    given INTEGER,            -- what it was handed and has not taken
    PRIMARY KEY (name, no)
) WITHOUT ROWID;
CREATE INDEX event_waiters_waiting ON event_waiters (name, matching, no) WHERE given IS NULL;
CREATE UNIQUE INDEX event_waiters_of_run ON event_waiters (run, generation, wait);

-- The last broadcast that a run has seen; `matching` is empty for a wait without one.
CREATE TABLE event_cursors (
    run INTEGER NOT NULL,
    name TEXT NOT NULL,
    matching TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (run, name, matching)
) WITHOUT ROWID;

CREATE TABLE event_dedupes (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX event_dedupes_by_time ON event_dedupes (until);

-- The event that a message becomes if its run ends first: a JSON array of its name, how long it is
-- kept in milliseconds, and how many are.
ALTER TABLE inbox ADD COLUMN on_end TEXT;

-- Whom a dead letter was sent to, as its sender had it: a JSON array of an id, or of a workflow and
-- a key.
ALTER TABLE dead_letters ADD COLUMN target TEXT;
