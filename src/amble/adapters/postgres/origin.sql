-- by_key: the ids of origins found by "scheme://host:port"
SELECT key, id FROM origin WHERE key = ANY($1::text[]);

-- by_id: ledgers; the columns are those of rows.Origin, in its order, and the version of the row
SELECT xmin, id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms, leased, active, active_max,
  spacing_ms, paused, policy_version, queued, urls, pages, turns, robots_url_id, robots_outcome, robots_version,
  robots_fetched_at, robots_expires_at, robots_rules, robots_delay_ms, partition
FROM origin WHERE id = ANY($1::bigint[]) ORDER BY id;

-- create: new origins; everything but the name is at rest
INSERT INTO origin(id, key, partition, created_at) SELECT n.id, n.key, n.partition, $4
FROM unnest($1::bigint[], $2::text[], $3::integer[]) AS n(id, key, partition) ON CONFLICT (key) DO NOTHING;

-- write: whole ledgers, if they are still what was read; the key never changes
UPDATE origin AS o SET wake_at = n.wake_at, next_start = n.next_start, rest_until = n.rest_until, backoff_level =
  n.backoff_level, last_fetch_ms = n.last_fetch_ms, leased = n.leased, active = n.active, active_max = n.active_max,
  spacing_ms = n.spacing_ms, paused = n.paused, policy_version = n.policy_version, queued = n.queued, urls = n.urls,
  pages = n.pages, turns = n.turns, robots_url_id = n.robots_url_id, robots_outcome = n.robots_outcome,
  robots_version = n.robots_version, robots_fetched_at = n.robots_fetched_at, robots_expires_at =
  n.robots_expires_at, robots_rules = n.robots_rules, robots_delay_ms = n.robots_delay_ms, partition = n.partition
FROM unnest($1::bigint[], $2::xid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::integer[], $7::bigint[],
  $8::integer[], $9::integer[], $10::integer[], $11::bigint[], $12::boolean[], $13::integer[], $14::bigint[],
  $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[], $19::integer[], $20::integer[], $21::bigint[],
  $22::bigint[], $23::bytea[], $24::bigint[], $25::integer[]) AS n(id, seen, wake_at, next_start, rest_until,
  backoff_level, last_fetch_ms, leased, active, active_max, spacing_ms, paused, policy_version, queued, urls, pages,
  turns, robots_url_id, robots_outcome, robots_version, robots_fetched_at, robots_expires_at, robots_rules,
  robots_delay_ms, partition)
WHERE o.id = n.id AND o.xmin = n.seen;

-- due: origins whose time has come, the one that waits longest first, each with the URL whose turn it is (from the
-- last class upwards on every eighth turn), or when the first of its URLs is due, and the place of its robots.txt. Last,
-- whether the origin was changed between the look at URLs and the lock: then they are those of before
WITH o AS MATERIALIZED (SELECT xmin AS seen, id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms,
  leased, active, active_max, spacing_ms, paused, policy_version, queued, urls, pages, turns, robots_url_id,
  robots_outcome, robots_version, robots_fetched_at, robots_expires_at, robots_rules, robots_delay_ms, partition
  FROM origin WHERE partition = $1 AND wake_at <= $2 ORDER BY wake_at LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED)
SELECT o.*, p.id, p.rq, s.due_at, r.id, r.rq, r.due_at, b.xmin IS DISTINCT FROM o.seen FROM o
LEFT JOIN LATERAL (
  SELECT q.id, q.rq FROM generate_series(CASE WHEN o.turns % $4 = $4 - 1 THEN 7 ELSE 0 END,
    CASE WHEN o.turns % $4 = $4 - 1 THEN 0 ELSE 7 END, CASE WHEN o.turns % $4 = $4 - 1 THEN -1 ELSE 1 END) AS k
  CROSS JOIN LATERAL (SELECT id, rq FROM url WHERE (id >> 36) = o.id AND rq = k::smallint AND due_at <= $2
    ORDER BY due_at LIMIT 1) AS q LIMIT 1) AS p ON true
LEFT JOIN LATERAL (
  SELECT min(q.due_at) AS due_at FROM generate_series(0, 7) AS k CROSS JOIN LATERAL (SELECT due_at FROM url
    WHERE (id >> 36) = o.id AND rq = k::smallint ORDER BY due_at LIMIT 1) AS q) AS s ON p.id IS NULL
LEFT JOIN url AS r ON r.id = o.robots_url_id
LEFT JOIN origin AS b ON b.id = o.id
ORDER BY o.wake_at;

-- next_wake: when the next origin of each partition becomes due
SELECT p, (SELECT wake_at FROM origin WHERE partition = p AND wake_at IS NOT NULL ORDER BY wake_at LIMIT 1)
FROM unnest($1::integer[]) AS p;

-- keys: every origin of a partition
SELECT key FROM origin WHERE partition = $1;

-- sites: how many origins each of these sites has
SELECT name, origins FROM site WHERE partition = $1 AND name = ANY($2::text[]);

-- sites_counted: whether the sites of a partition are counted yet
SELECT EXISTS (SELECT 1 FROM site WHERE partition = $1);

-- write_sites: new counts
INSERT INTO site(partition, name, origins) SELECT * FROM unnest($1::integer[], $2::text[], $3::bigint[])
ON CONFLICT (partition, name) DO UPDATE SET origins = excluded.origins;

-- take_ids: origin ids for one store, as many as wanted or what is left of the block: the first of them, how many
WITH block AS MATERIALIZED (SELECT first, next, least(last + 1, next + $1) AS new FROM origin_block WHERE next <= last
  ORDER BY first LIMIT 1 FOR UPDATE)
UPDATE origin_block AS b SET next = block.new FROM block WHERE b.first = block.first
RETURNING block.next, block.new - block.next;
