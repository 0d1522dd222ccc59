-- Published documents by the keys of their fingerprints (domain/digest.coarse_keys), for finding near-duplicates.
-- key = coarse key << 24 | number of the part. `documents`: pairs of fingerprint and url id, 8 bytes each, little endian.
CREATE TABLE near(key INTEGER PRIMARY KEY, documents BLOB NOT NULL) STRICT;

-- Of a URL whose last visit was published with a fingerprint: 1 where it is in `near` under that, 0 where it was
-- published whatever it repeats. Else NULL.
ALTER TABLE url ADD COLUMN indexed INTEGER;

-- What was published before is entered when the store opens: adapters/sql/near.py goes on after the url id that stands here, in decimal.
INSERT INTO meta(name, value) SELECT 'near_built_to', x'30' WHERE EXISTS (SELECT 1 FROM publication);
