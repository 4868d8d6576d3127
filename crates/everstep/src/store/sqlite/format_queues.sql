-- Work queues. `at` is, as `state` says: since when a ready item can be worked on (0), when a delayed
-- one can be (1), until when a worker has a claimed one (2), until when a result is kept (3), when it
-- became a dead letter (4). Items are claimed by (rank, at, no); `rank` is the priority, negated.
CREATE TABLE queue_items (
    no INTEGER PRIMARY KEY AUTOINCREMENT, -- the id that people see; never used again
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
    payload BLOB NOT NULL
);
-- Each state has its own index, so that a claim looks at nothing but what it takes, however many
-- items are delayed, done or dead.
CREATE INDEX queue_ready ON queue_items (queue, rank, at, no) WHERE state = 0;
CREATE INDEX queue_timed ON queue_items (queue, state, at) WHERE state IN (1, 2, 3);
CREATE INDEX queue_dead ON queue_items (queue, no) WHERE state = 4;
CREATE UNIQUE INDEX queue_dedupes ON queue_items (queue, dedupe) WHERE dedupe IS NOT NULL;

-- Operations of runs that wait for an item.
CREATE TABLE queue_waits (
    run INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    key BLOB NOT NULL,
    item INTEGER NOT NULL,
    cancels INTEGER NOT NULL, -- whether the item goes with the wait while nobody has claimed it
    PRIMARY KEY (run, generation, key)
) WITHOUT ROWID;
CREATE INDEX queue_waits_of_item ON queue_waits (item);
