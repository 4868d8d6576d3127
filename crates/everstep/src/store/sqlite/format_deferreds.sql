-- What tokens are made with: made here, once, and kept for the life of the file.
CREATE TABLE secrets (
    name TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
) WITHOUT ROWID;
INSERT INTO secrets VALUES ('tokens', randomblob(32));

-- The values of deferreds. The tag says which deferred of the run it is.
CREATE TABLE deferreds (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    body BLOB NOT NULL, -- the answer for whoever waits
    at INTEGER NOT NULL,
    PRIMARY KEY (run, generation, tag)
) WITHOUT ROWID;

-- The operations that wait for one.
CREATE TABLE deferred_waits (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    tag BLOB NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (run, generation, tag, key)
) WITHOUT ROWID;
