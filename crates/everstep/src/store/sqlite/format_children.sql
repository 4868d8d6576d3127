-- Who waits for the end of which run.
CREATE TABLE watchers (
    run INTEGER NOT NULL,
    waiter INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    PRIMARY KEY (run, waiter, generation, key)
) WITHOUT ROWID;
CREATE INDEX watches_of_run ON watchers (waiter);

-- Runs that were started by others and have not ended.
CREATE TABLE children (
    run INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    close INTEGER NOT NULL,  -- 0 it is left alone when its parent ends, 1 it is cancelled
    awaited INTEGER NOT NULL -- 1 while its parent waits for it
);
CREATE INDEX children_of_run ON children (parent);

-- The id of the run that started it.
ALTER TABLE runs ADD COLUMN parent BLOB;

-- Histories that nobody needs any more; removed a slice at a time.
CREATE TABLE old_generations (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (run, generation)
) WITHOUT ROWID;
