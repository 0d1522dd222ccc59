-- tallies: every counter
SELECT name, value FROM tally;

-- owner: who owns the partition
SELECT epoch, owner FROM partition;

-- last_origin: the newest id of an origin; ids have no gaps
SELECT coalesce(max(id), 0) FROM origin;

-- first_origin: the oldest id of an origin
SELECT coalesce(min(id), 1) FROM origin;

-- waiting: what the origins of a range of ids with queued URLs wait for; the first reason that holds counts
SELECT CASE
  WHEN paused THEN 'origin_paused'
  WHEN wake_at IS NULL THEN 'in_flight'
  WHEN wake_at <= ?1 THEN 'ready'
  WHEN robots_outcome = 3 AND robots_expires_at > ?1 THEN 'robots_unreachable'
  WHEN rest_until > ?1 AND backoff_level > 0 THEN 'origin_backing_off'
  WHEN rest_until > ?1 THEN 'address_busy'
  WHEN next_start > ?1 THEN 'not_yet'
  ELSE 'retry_later' END AS reason, count(*)
FROM origin WHERE id > ?2 AND id <= ?3 AND queued > 0 GROUP BY reason;

-- next_wake: when the next origin becomes due
SELECT min(wake_at) FROM origin INDEXED BY origin_wake WHERE wake_at IS NOT NULL;

-- path_key: the key of this store's path hash
SELECT value FROM meta WHERE name = 'path_key';

-- seeded: which seeds were admitted, in the words of whoever did
SELECT value FROM meta WHERE name = 'seeded';

-- url_by_id: one URL
SELECT :url_columns FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id = ?1;

-- urls: URLs in the order of their ids
SELECT :url_columns FROM url AS u CROSS JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id > ?1 ORDER BY u.id LIMIT ?2;

-- urls_of_origin: the same for one origin, whose ids are one range
SELECT :url_columns FROM url AS u CROSS JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > ?1 AND u.id < ?3 ORDER BY u.id LIMIT ?2;

-- urls_of_origin_in_state: the same, one state only
SELECT :url_columns FROM url AS u CROSS JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > ?1 AND u.id < ?3 AND +u.state = ?4 ORDER BY u.id LIMIT ?2;

-- urls_in_state: the same over all origins, for states that many URLs are in
SELECT :url_columns FROM url AS u CROSS JOIN origin AS o ON o.id = u.id >> 36
WHERE u.id > ?1 AND +u.state = ?3 ORDER BY u.id LIMIT ?2;

-- urls_ended: the same for FAILED and EXCLUDED, by their index
SELECT :url_columns FROM url AS u INDEXED BY url_ended CROSS JOIN origin AS o ON o.id = u.id >> 36
WHERE u.state IN (5, 6) AND u.state = ?3 AND u.id > ?1 ORDER BY u.id LIMIT ?2;

-- urls_in_flight: the same for LEASED, FETCHED and PARSED, by their index
SELECT :url_columns FROM url AS u INDEXED BY url_flight CROSS JOIN origin AS o ON o.id = u.id >> 36
WHERE u.token IS NOT NULL AND u.state = ?3 AND u.id > ?1 ORDER BY u.id LIMIT ?2;

-- origins: origins in the order of their ids
SELECT :origin_columns FROM origin AS o WHERE o.id > ?1 ORDER BY o.id LIMIT ?2;

-- origin_by_key: one origin
SELECT :origin_columns FROM origin AS o WHERE o.key = ?1;

-- fetches: the attempts at a URL, the latest first
SELECT attempt, generation, at, duration_ms, status, category, detail, answer FROM fetch WHERE url_id = ?1
ORDER BY attempt DESC LIMIT ?2;

-- decisions: the log's entries about a subject, the latest first
SELECT at, reason, detail, policy_version, url FROM decision INDEXED BY decision_subject WHERE subject = ?1
ORDER BY seq DESC LIMIT ?2;

-- manifests: the parses of a URL, the latest first
SELECT attempt, generation, ref, text_ref, links, cursor, opened, content_kind, title, at FROM manifest
WHERE url_id = ?1 ORDER BY attempt DESC, generation DESC LIMIT ?2;

-- publications: what was published after a sequence number, in order
SELECT p.seq, p.url_id, o.key || u.path, u.canonical, u.depth, u.parent, p.crawl_generation, p.extraction_generation,
  p.attempt, p.at, f.at, f.answer, m.ref, m.text_ref, m.title, m.content_kind, u.fingerprint
FROM publication AS p
CROSS JOIN url AS u ON u.id = p.url_id
CROSS JOIN origin AS o ON o.id = p.url_id >> 36
CROSS JOIN fetch AS f ON f.url_id = p.url_id AND f.attempt = p.attempt
CROSS JOIN manifest AS m ON m.url_id = p.url_id AND m.attempt = p.attempt AND m.generation = p.extraction_generation
WHERE p.seq > ?1 ORDER BY p.seq LIMIT ?2;

-- name_of: the URL behind an id
SELECT o.key || u.path FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE u.id = ?1;

-- last_publication: the newest sequence number
SELECT coalesce(max(seq), 0) FROM publication;

-- fetched_origin: the first origin from an id on of which a page was asked for
SELECT o.id, o.pages FROM origin AS o WHERE o.id >= ?1 AND o.pages > 0 ORDER BY o.id LIMIT 1;

-- page_fetches: attempts at the pages of one origin, whose ids are one range, with the links that each brought
SELECT f.duration_ms, f.status, f.answer,
  (SELECT max(m.links) FROM manifest AS m WHERE m.url_id = f.url_id AND m.attempt = f.attempt)
FROM fetch AS f CROSS JOIN url AS u ON u.id = f.url_id
WHERE f.url_id >= ?1 AND f.url_id < ?2 AND u.kind = 0 LIMIT ?3;
