-- tallies: every counter, over all partitions that live here
SELECT name, sum(value)::bigint AS value FROM tally AS t
WHERE NOT EXISTS (SELECT 1 FROM partition AS p WHERE p.partition = t.partition AND p.arriving) GROUP BY name;

-- owners: who owns which partition
SELECT partition, owner, epoch FROM partition WHERE NOT arriving ORDER BY partition;

-- hashed: how many partitions share the sites that have none of their own
SELECT convert_from(value, 'UTF8')::integer FROM meta WHERE name = 'hashed';

-- apart: sites with a partition of their own
SELECT site, partition FROM site_apart;

-- placement: where each partition of the fleet lives
SELECT partition, server FROM placement;

-- now: the clock of the server, and the store's own mark, which it never goes back behind
SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
  greatest((SELECT max(now_ms) FROM clock), (SELECT max(now_ms) FROM writer));

-- path_key: the key of this store's path hash
SELECT value FROM meta WHERE name = 'path_key';

-- last_origin: the newest id of an origin, and how many there are about
SELECT coalesce(max(id), 0), (SELECT coalesce(sum(value), 0)::bigint FROM tally WHERE name = 'origins') FROM origin;

-- waiting: what the origins of a range of ids with queued URLs wait for; the first reason that holds counts
SELECT CASE
  WHEN paused THEN 'origin_paused'
  WHEN wake_at IS NULL THEN 'in_flight'
  WHEN wake_at <= $1 THEN 'ready'
  WHEN robots_outcome = 3 AND robots_expires_at > $1 THEN 'robots_unreachable'
  WHEN rest_until > $1 AND backoff_level > 0 THEN 'origin_backing_off'
  WHEN rest_until > $1 THEN 'address_busy'
  WHEN next_start > $1 THEN 'not_yet'
  ELSE 'retry_later' END AS reason, count(*)
FROM origin WHERE id > $2 AND id <= $3 AND queued > 0 GROUP BY 1;

-- next_wake: when the next origin becomes due
SELECT min(w.wake) FROM partition AS p CROSS JOIN LATERAL (
  SELECT min(o.wake_at) AS wake FROM origin AS o WHERE o.partition = p.partition AND o.wake_at IS NOT NULL) AS w;

-- url_by_id: one URL
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id = $1;

-- urls: URLs in the order of their ids
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id > $1 ORDER BY u.id LIMIT $2;

-- urls_of_origin: the same for one origin, whose ids are one range
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > $1 AND u.id < $3 ORDER BY u.id LIMIT $2;

-- urls_of_origin_in_state: the same, one state only
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > $1 AND u.id < $3 AND u.state = $4 ORDER BY u.id LIMIT $2;

-- urls_in_state: the same over all origins, for states that many URLs are in
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > $1 AND u.state = $3 ORDER BY u.id LIMIT $2;

-- urls_ended: the same for FAILED and EXCLUDED, by their index
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.ended IS NOT NULL AND u.ended = $3 AND u.id > $1 ORDER BY u.id LIMIT $2;

-- urls_in_flight: the same for LEASED, FETCHED and PARSED, by their index
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.sweep_at IS NOT NULL AND u.state = $3 AND u.id > $1 ORDER BY u.id LIMIT $2;

-- origins: origins in the order of their ids
SELECT :origin_columns FROM origin AS o WHERE o.id > $1 ORDER BY o.id LIMIT $2;

-- origin_by_key: one origin
SELECT :origin_columns FROM origin AS o WHERE o.key = $1;

-- fetches: the attempts at a URL, the latest first
SELECT attempt, generation, at, duration_ms, status, category, detail, answer FROM "fetch" WHERE url_id = $1
ORDER BY attempt DESC LIMIT $2;

-- decisions: the log's entries about a subject, the latest first
SELECT at, reason, detail, policy_version, url FROM decision WHERE subject = $1 ORDER BY seq DESC LIMIT $2;

-- manifests: the parses of a URL, the latest first
SELECT attempt, generation, ref, text_ref, links, cursor, opened, content_kind, title, at FROM manifest
WHERE url_id = $1 ORDER BY attempt DESC, generation DESC LIMIT $2;

-- publications: what a partition has published after a number, in order
SELECT p.seq, p.url_id, o.key || u.path, u.canonical, u.depth, u.parent, p.crawl_generation, p.extraction_generation,
  p.attempt, p.at, f.at, f.answer, m.ref, m.text_ref, m.title, m.content_kind, u.fingerprint
FROM publication AS p
JOIN url AS u ON u.id = p.url_id
JOIN origin AS o ON o.id = p.url_id >> 36
JOIN "fetch" AS f ON f.url_id = p.url_id AND f.attempt = p.attempt
JOIN manifest AS m ON m.url_id = p.url_id AND m.attempt = p.attempt AND m.generation = p.extraction_generation
WHERE p.partition = $3 AND p.seq > $1 ORDER BY p.seq LIMIT $2;

-- name_of: the URL behind an id
SELECT o.key || u.path FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id = $1;

-- last_publication: the last number that a partition has given out
SELECT published FROM partition WHERE partition = $1;

-- fetched_origin: the first origin from an id on of which a page was asked for
SELECT o.id, o.pages FROM origin AS o WHERE o.id >= $1 AND o.pages > 0 ORDER BY o.id LIMIT 1;

-- page_fetches: attempts at the pages of one origin, whose ids are one range, with the links that each brought
SELECT f.duration_ms, f.status, f.answer,
  (SELECT max(m.links) FROM manifest AS m WHERE m.url_id = f.url_id AND m.attempt = f.attempt)
FROM "fetch" AS f JOIN url AS u ON u.id = f.url_id
WHERE f.url_id >= $1 AND f.url_id < $2 AND u.kind = 0 LIMIT $3;

-- forwarded: parcels that wait in the inboxes and outboxes, and the candidates in them
SELECT (SELECT coalesce(sum(amount), 0) FROM inbox)::bigint, (SELECT coalesce(sum(amount), 0) FROM outbox)::bigint;

-- captures: fetches with an answer, by (url_id, attempt), after that key
SELECT f.url_id, o.key || u.path, u.kind, u.depth, u.hops, f.attempt, f.answer, m.ref, coalesce(m.links, 0),
  coalesce(m.cursor, 0), m.text_ref
FROM "fetch" AS f JOIN url AS u ON u.id = f.url_id JOIN origin AS o ON o.id = f.url_id >> 36
LEFT JOIN manifest AS m ON m.url_id = f.url_id AND m.attempt = f.attempt
WHERE (f.url_id, f.attempt) > ($1, $2) AND f.answer IS NOT NULL ORDER BY f.url_id, f.attempt LIMIT $3;

-- waits_in_parcels: the candidates of inboxes and outboxes
SELECT candidates FROM inbox UNION ALL SELECT candidates FROM outbox;

-- over_budget: whether any origin or site ever used up its discovery budget
SELECT count(*) FROM tally WHERE value > 0 AND name = ANY($1::text[]);
