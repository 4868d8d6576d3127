-- Pools by number. A run's `shard` is 256 times the number of the pool that it is in, and the
-- index that follows from its id.
CREATE TABLE pools (
    no INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE
);
INSERT INTO pools (no, name) VALUES (0, 'default');
INSERT INTO pools (no, name)
    SELECT row_number() OVER (ORDER BY pool), pool
    FROM (SELECT DISTINCT pool FROM runs WHERE pool <> 'default');
UPDATE runs SET shard = shard + 256 * (SELECT pools.no FROM pools WHERE name = pool)
    WHERE pool <> 'default';

-- What runners publish. Those that are here are not alive, or this would not be done.
ALTER TABLE runners ADD COLUMN pools TEXT NOT NULL DEFAULT '["default"]'; -- a JSON array of names
ALTER TABLE runners ADD COLUMN weight INTEGER NOT NULL DEFAULT 1;
-- From now on an array of [name, version, first version accepted, last version accepted].
UPDATE runners SET workflows = '[]';
