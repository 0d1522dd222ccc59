-- How long a request of the owner may last after its start was granted: whoever takes the partition over without its
-- release waits for that, whatever its own settings say. 0: of an owner before this was written down.
ALTER TABLE partition ADD COLUMN hold_ms bigint NOT NULL DEFAULT 0;
