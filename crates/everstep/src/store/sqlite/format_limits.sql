-- Limits that are in use: a row for each key.
CREATE TABLE limits (
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    concurrency INTEGER,      -- how many at a time; NULL if any number
    rate_count INTEGER,       -- this many times ..
    rate_ms INTEGER,          -- .. in this many milliseconds; NULL if as often as one likes
    burst INTEGER,            -- how many at once after a time without any
    held INTEGER NOT NULL,    -- how many have a place
    waiting INTEGER NOT NULL, -- how many wait for one
    arrivals INTEGER NOT NULL,
    turn_us INTEGER NOT NULL, -- the clock of the rate, in microseconds since 1970
    PRIMARY KEY (name, key)
) WITHOUT ROWID;
CREATE INDEX limits_idle ON limits (name, turn_us) WHERE held = 0 AND waiting = 0;

-- The places under them: an operation of a run waits for one, or has it.
CREATE TABLE limit_places (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    operation BLOB NOT NULL,
    name TEXT NOT NULL,
    key TEXT NOT NULL,
    arrival INTEGER NOT NULL,
    given INTEGER NOT NULL,
    PRIMARY KEY (run, generation, operation)
) WITHOUT ROWID;
CREATE INDEX limit_line ON limit_places (name, key, given, arrival);
