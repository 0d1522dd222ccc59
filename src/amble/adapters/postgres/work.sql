-- clock: the database's time, and the latest time that any store has gone by
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
  greatest((SELECT now_ms FROM clock), (SELECT max(now_ms) FROM writer));

-- hold_partitions: what these partitions' owners must be; no other claims them until the end of the transaction. One
-- without an owner has lapsed, whoever had it last
SELECT partition, epoch, CASE owner WHEN '' THEN 0 ELSE lease_until END, moving AND owner = '' FROM partition
WHERE partition = ANY($1::integer[]) ORDER BY partition FOR KEY SHARE;

-- wait_for_partition: until no transaction is under way that has read the epoch
SELECT epoch FROM partition WHERE partition = $1 FOR UPDATE;

-- claim_partition: a new owner without a term
UPDATE partition SET owner = $2, epoch = epoch + 1, lease_until = NULL, released = false WHERE partition = $1
RETURNING epoch;

-- number: the last of so many numbers for publications and parcels
UPDATE partition AS p SET published = p.published + n.published, sent = p.sent + n.sent
FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS n(partition, published, sent)
WHERE p.partition = n.partition RETURNING p.partition, p.published, p.sent;

-- here: which of these partitions live here, as long as the map is held
SELECT partition FROM partition WHERE partition = ANY($1::integer[]) AND NOT moving;

-- hold_map: no partition leaves until the end of the transaction; who moves one takes the lock alone
SELECT pg_advisory_xact_lock_shared($1);

-- manifests: how far discovery has come; the columns are those of rows.ManifestRow, after the version of the row
SELECT m.xmin, m.url_id, m.attempt, m.generation, m.partition, m.cursor, m.links, m.opened FROM manifest AS m
JOIN unnest($1::bigint[], $2::integer[], $3::integer[]) AS n(url_id, attempt, generation)
  ON m.url_id = n.url_id AND m.attempt = n.attempt AND m.generation = n.generation;

-- write_manifests: how far discovery has come, if they are still what was read
UPDATE manifest AS m SET cursor = n.cursor, opened = n.opened
FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::xid[], $5::integer[], $6::boolean[])
  AS n(url_id, attempt, generation, seen, cursor, opened)
WHERE m.url_id = n.url_id AND m.attempt = n.attempt AND m.generation = n.generation AND m.xmin = n.seen;

-- add_manifests: parses are durable; discovery has consumed none of their links. A repeated parse replaces its record
INSERT INTO manifest(url_id, attempt, generation, partition, ref, links, cursor, opened, content_kind, title,
  text_ref, at)
SELECT n.url_id, n.attempt, n.generation, n.partition, n.ref, n.links, n.cursor, n.opened, n.content_kind, n.title,
  n.text_ref, $12
FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::integer[], $5::bytea[], $6::integer[], $7::integer[],
  $8::boolean[], $9::text[], $10::text[], $11::bytea[])
  AS n(url_id, attempt, generation, partition, ref, links, cursor, opened, content_kind, title, text_ref)
ON CONFLICT (url_id, attempt, generation) DO UPDATE SET ref = excluded.ref, links = excluded.links,
  cursor = excluded.cursor, opened = excluded.opened, content_kind = excluded.content_kind, title = excluded.title,
  text_ref = excluded.text_ref, at = excluded.at WHERE NOT manifest.opened AND manifest.cursor = 0;

-- latest_manifests: the latest manifest of each attempt
SELECT DISTINCT ON (m.url_id) m.url_id, m.generation, m.ref, m.links, m.content_kind, m.cursor FROM manifest AS m
JOIN unnest($1::bigint[], $2::integer[]) AS n(url_id, attempt) ON m.url_id = n.url_id AND m.attempt = n.attempt
ORDER BY m.url_id, m.generation DESC;

-- open_manifests: every manifest of a partition with links ahead of its cursor
SELECT m.url_id, m.attempt, m.generation, m.ref, m.cursor, m.links, u.depth, u.hops, o.key, u.path
FROM manifest AS m JOIN url AS u ON u.id = m.url_id JOIN origin AS o ON o.id = m.url_id >> 36
WHERE m.partition = $1 AND m.opened AND m.cursor < m.links;

-- add_fetches: what attempts met
INSERT INTO "fetch"(url_id, attempt, generation, duration_ms, status, category, detail, answer, at)
SELECT n.url_id, n.attempt, n.generation, n.duration_ms, n.status, n.category, n.detail, n.answer, $9
FROM unnest($1::bigint[], $2::integer[], $3::integer[], $4::bigint[], $5::integer[], $6::text[], $7::text[],
  $8::bytea[]) AS n(url_id, attempt, generation, duration_ms, status, category, detail, answer);

-- answers: what attempts met, to go on from there
SELECT f.url_id, f.answer FROM "fetch" AS f
JOIN unnest($1::bigint[], $2::integer[]) AS n(url_id, attempt) ON f.url_id = n.url_id AND f.attempt = n.attempt;

-- add_bodies: remember where bytes were stored first
INSERT INTO body(digest, ref, bytes) SELECT * FROM unnest($1::bytea[], $2::bytea[], $3::bigint[])
ON CONFLICT (digest) DO NOTHING;

-- find_bodies: where bytes were stored first
SELECT digest, ref FROM body WHERE digest = ANY($1::bytea[]);

-- publish: one publication per URL, crawl generation and extraction generation
INSERT INTO publication(partition, seq, url_id, crawl_generation, extraction_generation, attempt, indexed, at)
SELECT n.partition, n.seq, n.url_id, n.crawl_generation, n.extraction_generation, n.attempt, n.indexed, $8
FROM unnest($1::integer[], $2::bigint[], $3::bigint[], $4::integer[], $5::integer[], $6::integer[], $7::boolean[])
  AS n(partition, seq, url_id, crawl_generation, extraction_generation, attempt, indexed)
ON CONFLICT (url_id, crawl_generation, extraction_generation) DO NOTHING RETURNING partition;

-- add_decisions: refusals, skips and waits
INSERT INTO decision(partition, subject, url, reason, detail, policy_version, at)
SELECT n.partition, n.subject, n.url, n.reason, n.detail, n.policy_version, $7
FROM unnest($1::integer[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::integer[])
  AS n(partition, subject, url, reason, detail, policy_version);

-- prune_decisions: the log is bounded, for each partition that lives here
DELETE FROM decision WHERE seq IN (SELECT seq FROM decision
  WHERE seq <= (SELECT max(seq) FROM decision) - $1 * (SELECT greatest(count(*), 1) FROM partition)
  ORDER BY seq LIMIT $2 FOR UPDATE SKIP LOCKED);

-- audit: operator actions
INSERT INTO audit(partition, at, who, what, subject, old, new, why)
SELECT n.partition, $8, n.who, n.what, n.subject, n.old, n.new, n.why
FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
  AS n(partition, who, what, subject, old, new, why);

-- counters: counters of partitions by name
SELECT partition, name, value FROM tally WHERE partition = ANY($1::integer[]) AND name = ANY($2::text[]);

-- total: the sum of counters over all partitions that live here, and how many stores may add to them
SELECT coalesce(sum(value), 0)::bigint, (SELECT count(*) FROM writer) FROM tally WHERE name = ANY($1::text[]);

-- share_budget: as many as like may lease from the page budget while it is far from spent
SELECT pg_advisory_xact_lock_shared($1);

-- own_budget: one after the other when it is nearly spent
SELECT pg_advisory_xact_lock($1);

-- finish: the number of this transaction and its time, and what it counted. A place that was forgotten is made anew
WITH w AS (INSERT INTO writer(id, tick, now_ms) OVERRIDING SYSTEM VALUE VALUES ($1, $2, $3)
  ON CONFLICT (id) DO UPDATE SET tick = excluded.tick, now_ms = excluded.now_ms)
INSERT INTO tally(partition, name, value) SELECT * FROM unnest($4::integer[], $5::text[], $6::bigint[])
ON CONFLICT (partition, name) DO UPDATE SET value = tally.value + excluded.value;

-- come: a place for a store's connection, beside which those of stores long gone are forgotten. It was last used now,
-- by the time that the others have gone by
WITH gone AS (DELETE FROM writer WHERE now_ms < (SELECT max(now_ms) FROM writer) - $1 RETURNING now_ms)
INSERT INTO writer(tick, now_ms) SELECT 0, coalesce(max(now_ms), 0) FROM writer RETURNING id;

-- return: the number of the last transaction that was committed, as durable as a commit makes it. Waits for one that
-- is still under way. Where there is no place, none of this store was committed since the place was forgotten
INSERT INTO writer(id, tick, now_ms) OVERRIDING SYSTEM VALUE SELECT $1::bigint, 0, coalesce(max(now_ms), 0) FROM writer
ON CONFLICT (id) DO UPDATE SET tick = writer.tick RETURNING tick;

-- leave: the place is given up, the time is kept
WITH gone AS (DELETE FROM writer WHERE id = $1 RETURNING now_ms)
UPDATE clock SET now_ms = greatest(clock.now_ms, gone.now_ms) FROM gone;

-- end_idle: a former connection of this store that waits in a transaction for words that will not come
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = $1 AND pid <> pg_backend_pid() AND state = 'idle in transaction';

-- waiting: how many candidates are on their way to or from each partition
SELECT p, (SELECT coalesce(sum(amount), 0) FROM inbox WHERE partition = p),
  (SELECT coalesce(sum(amount), 0) FROM outbox WHERE source = p) FROM unnest($1::integer[]) AS p;

-- inbox: the oldest batches of candidates that wait for a partition, until they hold as many as wanted
SELECT i.number, i.candidates, i.policy_version FROM inbox AS i WHERE i.partition = $1 AND i.number IN (
  SELECT o.number FROM (SELECT number, amount, sum(amount) OVER (ORDER BY number) AS so_far
    FROM (SELECT number, amount FROM inbox WHERE partition = $1 ORDER BY number LIMIT $2) AS head) AS o
  WHERE o.so_far - o.amount < $2)
ORDER BY i.number FOR UPDATE SKIP LOCKED;

-- take_out: batches that were admitted
DELETE FROM inbox WHERE partition = $1 AND number = ANY($2::bigint[]);

-- shorten: a batch of which some were admitted
UPDATE inbox AS i SET candidates = n.candidates, amount = n.amount
FROM unnest($2::bigint[], $3::bytea[], $4::integer[]) AS n(number, candidates, amount)
WHERE i.partition = $1 AND i.number = n.number;

-- put_in: candidates for partitions that live here
INSERT INTO inbox(partition, source, amount, policy_version, candidates)
SELECT * FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::integer[], $5::bytea[]);

-- send: candidates for partitions that live elsewhere
INSERT INTO outbox(source, number, destination, amount, policy_version, candidates)
SELECT * FROM unnest($1::integer[], $2::bigint[], $3::integer[], $4::integer[], $5::integer[], $6::bytea[]);

-- parcels: the oldest parcels of an outbox
SELECT source, destination, number, candidates, policy_version FROM outbox
WHERE source = $1 AND destination <> ALL($3::integer[]) ORDER BY number LIMIT $2;

-- drop_parcels: parcels that were taken
DELETE FROM outbox AS x USING unnest($2::integer[], $3::bigint[]) AS n(destination, number)
WHERE x.source = $1 AND x.destination = n.destination AND x.number <= n.number;

-- know_sources: a place for the high-water mark of each source and destination
INSERT INTO taken(source, destination, number) SELECT n.source, n.destination, 0
FROM unnest($1::integer[], $2::integer[]) AS n(source, destination) ON CONFLICT DO NOTHING;

-- taken: the high-water marks, to be changed
SELECT t.source, t.destination, t.number FROM taken AS t
JOIN unnest($1::integer[], $2::integer[]) AS n(source, destination)
  ON t.source = n.source AND t.destination = n.destination
ORDER BY t.source, t.destination FOR NO KEY UPDATE OF t;

-- write_taken: new high-water marks
UPDATE taken AS t SET number = n.number
FROM unnest($1::integer[], $2::integer[], $3::bigint[]) AS n(source, destination, number)
WHERE t.source = n.source AND t.destination = n.destination;
