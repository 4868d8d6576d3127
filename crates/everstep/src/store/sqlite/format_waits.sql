-- What comes to a run from outside besides messages: a kind (0 is a message), and for all others the
-- key of the operation that it is for.
ALTER TABLE inbox ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
ALTER TABLE inbox ADD COLUMN wait BLOB;

-- What a run has elsewhere that must be told or removed when its code is over; 0 for most.
ALTER TABLE runs ADD COLUMN links INTEGER NOT NULL DEFAULT 0;
