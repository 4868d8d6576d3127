-- What runs give out while they go on. Positions of a stream are 0, 1, 2, .. without a gap; only the
-- oldest items are ever removed, and the newest is kept, so the next position follows from it.
CREATE TABLE streams (
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
