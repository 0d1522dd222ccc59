-- Near-duplicates: published documents by fingerprint. A document is on each server that is home to one of its keys
-- (domain/digest.fine_keys, 32 bits with a sign), with those keys alone; which server its URL lives on is another matter.
-- An entry is a hint: whether its document is published under that fingerprint, its URL's row says. `claim` tells one
-- claimant from another, `at` is when it came, by this server's clock; `attempt` keeps late ones from undoing newer ones.
CREATE TABLE near(
  url_id bigint PRIMARY KEY, fingerprint bigint NOT NULL, claim bigint NOT NULL, at bigint NOT NULL,
  attempt integer NOT NULL, partition integer NOT NULL, keys integer[] NOT NULL
) WITH (fillfactor = 95, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_insert_scale_factor = 1.0,
  autovacuum_vacuum_cost_delay = 0);
-- (A vacuum reads the whole of the index below, and nothing here is answered from an index alone.)
-- Without a list of what is still to be sorted in: every search would read it.
CREATE INDEX near_keys ON near USING gin (keys) WITH (fastupdate = off);

-- Whether the document was in the index when it was published: not where nobody asked for it, or it had no text.
ALTER TABLE publication ADD COLUMN indexed boolean NOT NULL DEFAULT false;

-- What was published before is entered by `amble store init`, which goes on after the url id that stands here, in decimal.
INSERT INTO meta(name, value) SELECT 'near_built_to', '0' WHERE EXISTS (SELECT 1 FROM publication);
