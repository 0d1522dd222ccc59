-- put: documents are entered, or entered anew; one that came later under a newer attempt stays as it is
INSERT INTO near AS n (url_id, fingerprint, claim, at, attempt, partition, keys)
SELECT a.url_id, a.fingerprint, a.claim, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, a.attempt, a.partition,
  a.keys::integer[]
FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::text[])
  AS a(url_id, fingerprint, claim, attempt, partition, keys)
ORDER BY a.url_id
ON CONFLICT (url_id) DO UPDATE SET fingerprint = excluded.fingerprint, claim = excluded.claim, at = excluded.at,
  attempt = excluded.attempt, keys = excluded.keys WHERE n.attempt <= excluded.attempt;

-- look: who is near to each of these documents, and how long it has been here
SELECT a.place, n.url_id, n.partition, n.fingerprint, n.claim,
  (extract(epoch FROM clock_timestamp()) * 1000)::bigint - n.at
FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::text[]) AS a(place, url_id, fingerprint, keys)
JOIN near AS n ON n.keys && a.keys::integer[]
WHERE n.url_id <> a.url_id AND bit_count((n.fingerprint # a.fingerprint)::bit(64)) <= $5;

-- own: what was entered of these URLs before
SELECT url_id, partition, fingerprint, claim, 0 FROM near WHERE url_id = ANY($1::bigint[]);

-- withdraw: what these claims have entered
DELETE FROM near AS n USING unnest($1::bigint[], $2::bigint[]) AS a(url_id, claim)
WHERE n.url_id = a.url_id AND n.claim = a.claim;

-- forget: whatever these attempts or earlier ones have entered
DELETE FROM near AS n USING unnest($1::bigint[], $2::integer[]) AS a(url_id, attempt)
WHERE n.url_id = a.url_id AND n.attempt <= a.attempt;

-- standing: whether URLs of partitions that live here are published as they were last completed, and where they are now
SELECT u.id, u.fingerprint, u.state, o.key || u.path, EXISTS (SELECT 1 FROM publication AS p WHERE p.url_id = u.id
  AND p.attempt = (SELECT max(m.attempt) FROM manifest AS m WHERE m.url_id = u.id AND m.opened))
FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id = ANY($1::bigint[]);

-- settled: which partitions live here for certain
SELECT partition FROM partition WHERE partition = ANY($1::integer[]) AND NOT arriving;

-- built_to: how far entering what was published before has come; no row: it is done
SELECT value FROM meta WHERE name = 'near_built_to';

-- build_on: the next time from here
UPDATE meta SET value = $1 WHERE name = 'near_built_to';

-- built: all is entered
DELETE FROM meta WHERE name = 'near_built_to';

-- unentered: documents that are published as they were last completed, after one id
SELECT u.id, u.fingerprint, u.attempt, o.partition FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > $1 AND u.fingerprint <> 0 AND EXISTS (SELECT 1 FROM publication AS p WHERE p.url_id = u.id
  AND p.attempt = (SELECT max(m.attempt) FROM manifest AS m WHERE m.url_id = u.id AND m.opened))
ORDER BY u.id LIMIT $2;

-- begin_build: what was published is to be entered
INSERT INTO meta(name, value) VALUES ('near_built_to', '0') ON CONFLICT DO NOTHING;

-- fill: documents are entered, unless somebody else has entered them
INSERT INTO near (url_id, fingerprint, claim, at, attempt, partition, keys)
SELECT a.url_id, a.fingerprint, 0, (extract(epoch FROM clock_timestamp()) * 1000)::bigint, a.attempt, a.partition,
  a.keys::integer[]
FROM unnest($1::bigint[], $2::bigint[], $3::integer[], $4::integer[], $5::text[])
  AS a(url_id, fingerprint, attempt, partition, keys)
ORDER BY a.url_id ON CONFLICT (url_id) DO NOTHING;

-- mark: publications whose documents are entered
UPDATE publication AS p SET indexed = true FROM unnest($1::bigint[]) AS a(url_id)
WHERE p.url_id = a.url_id AND NOT p.indexed
  AND p.attempt = (SELECT max(m.attempt) FROM manifest AS m WHERE m.url_id = p.url_id AND m.opened);

-- entered: how documents are entered
SELECT url_id, fingerprint, keys::text FROM near WHERE url_id = ANY($1::bigint[]);
