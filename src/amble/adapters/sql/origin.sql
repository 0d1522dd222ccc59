-- by_id: the ledger of an origin; the columns are those of ledger.Origin, in its order
SELECT id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms, leased, active, active_max, spacing_ms,
  paused, policy_version, queued, urls, pages, turns, robots_url_id, robots_outcome, robots_version,
  robots_fetched_at, robots_expires_at, robots_rules, robots_delay_ms
FROM origin WHERE id = ?1;

-- by_key: the same, found by "scheme://host:port"
SELECT id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms, leased, active, active_max, spacing_ms,
  paused, policy_version, queued, urls, pages, turns, robots_url_id, robots_outcome, robots_version,
  robots_fetched_at, robots_expires_at, robots_rules, robots_delay_ms
FROM origin WHERE key = ?1;

-- create: a new origin; everything but its name is at rest
INSERT INTO origin(id, key, wake_at, next_start, rest_until, backoff_level, last_fetch_ms, leased, active,
  active_max, spacing_ms, paused, policy_version, queued, urls, pages, turns, robots_url_id, robots_outcome,
  robots_version, robots_fetched_at, robots_expires_at, robots_rules, robots_delay_ms, created_at)
VALUES (?1, ?2, NULL, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, 1, 0, 0, 0, 0, NULL, 0, 0, 0, 0, NULL, 0, ?3);

-- write: the whole ledger of an origin; parameters are the fields of ledger.Origin, the key never changes
UPDATE origin SET wake_at = ?3, next_start = ?4, rest_until = ?5, backoff_level = ?6, last_fetch_ms = ?7, leased = ?8,
  active = ?9, active_max = ?10, spacing_ms = ?11, paused = ?12, policy_version = ?13, queued = ?14, urls = ?15,
  pages = ?16, turns = ?17, robots_url_id = ?18, robots_outcome = ?19, robots_version = ?20, robots_fetched_at = ?21,
  robots_expires_at = ?22, robots_rules = ?23, robots_delay_ms = ?24
WHERE id = ?1 AND key = ?2;

-- last_id: the highest origin id given out, or the one before the first
SELECT coalesce(max(id), ?1) FROM origin;

-- due: origins whose time has come, the one that waits longest first
SELECT id FROM origin INDEXED BY origin_wake WHERE wake_at IS NOT NULL AND wake_at <= ?1
ORDER BY wake_at LIMIT ?2;

-- next_wake: when the next origin becomes due
SELECT min(wake_at) FROM origin INDEXED BY origin_wake WHERE wake_at IS NOT NULL;

-- epoch: the fencing number of the partition
SELECT epoch FROM partition;

-- claim: a new owner of the partition
UPDATE partition SET owner = ?1, epoch = epoch + 1 RETURNING epoch;

-- partition: the one that lives in this file, and whether it ever had an owner
SELECT partition, epoch FROM partition;

-- settle: a new file belongs to this partition from now on
UPDATE partition SET partition = ?1 WHERE epoch = 0;

-- keys: every origin
SELECT key FROM origin;

-- site: how many origins a site has
SELECT origins FROM site WHERE name = ?1;

-- count_site: more origins of a site
INSERT INTO site(name, origins) VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET origins = origins + excluded.origins;
