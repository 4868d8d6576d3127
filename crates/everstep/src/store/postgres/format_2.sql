-- What is due is looked for in one pool at a time: a backlog of a pool that nobody serves, or that
-- others do, is not read by those who look for their own.
DROP INDEX due;
CREATE INDEX due ON runs ((shard >> 8), available_at, no, shard) WHERE available_at IS NOT NULL;
