-- send: candidates of another partition leave in the commit that found them
INSERT INTO outbox(destination, candidates, amount, policy_version, at) VALUES (?1, ?2, ?3, ?4, ?5);

-- waiting: the oldest parcels, but none to the destinations in a JSON list
SELECT destination, number, candidates, policy_version FROM outbox
WHERE destination NOT IN (SELECT value FROM json_each(?2)) ORDER BY number LIMIT ?1;

-- sent: how many candidates a destination has taken with these parcels
SELECT coalesce(sum(amount), 0) FROM outbox WHERE destination = ?1 AND number <= ?2;

-- drop: the destination has them
DELETE FROM outbox WHERE destination = ?1 AND number <= ?2;

-- mark: the highest number taken from a source
SELECT number FROM parcel_mark WHERE source = ?1;

-- set_mark: a parcel was taken
INSERT INTO parcel_mark(source, number) VALUES (?1, ?2) ON CONFLICT (source) DO UPDATE SET number = excluded.number;

-- receive: a parcel waits to be admitted
INSERT INTO inbox(source, number, candidates, amount, taken, policy_version, at) VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6);

-- next: the parcel that has waited longest
SELECT seq, candidates, amount, taken, policy_version FROM inbox ORDER BY seq LIMIT 1;

-- take: a part of it was admitted
UPDATE inbox SET taken = ?2 WHERE seq = ?1;

-- empty: all of it was admitted
DELETE FROM inbox WHERE seq = ?1;
