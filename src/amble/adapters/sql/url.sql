-- path_at: the path that holds an id
SELECT path FROM url WHERE id = ?1;

-- insert: a new URL is known and queued in one row
INSERT INTO url(id, path, state, kind, rq, due_at, priority, depth, hops, edge, parent, admitted_at, attempt,
  generation, tries, strikes, checks, changes, policy_version)
VALUES (?1, ?2, 0, ?3, ?4, ?5, ?4, ?6, ?7, ?8, ?9, ?5, 0, 1, 0, 0, 0, 0, ?10);

-- best: the first queued URL of an origin at or after a class; soonest first within the class
SELECT rq, due_at, id FROM url INDEXED BY url_due
WHERE (id >> 36) = ?1 AND rq >= ?2 AND rq < 8 AND rq IS NOT NULL ORDER BY rq, due_at LIMIT 1;

-- last_class: the last class of an origin, at or before a class, that has something queued
SELECT rq FROM url INDEXED BY url_due
WHERE (id >> 36) = ?1 AND rq <= ?2 AND rq IS NOT NULL ORDER BY rq DESC LIMIT 1;

-- first_of_class: the URL of one class that is due first
SELECT due_at, id FROM url INDEXED BY url_due
WHERE (id >> 36) = ?1 AND rq = ?2 AND rq IS NOT NULL ORDER BY due_at LIMIT 1;

-- queue_place: whether and when a URL is queued
SELECT state, rq, due_at FROM url WHERE id = ?1;

-- leasable: what a lease tells its holder, before it is taken
SELECT state, attempt, path, kind, depth, hops, tries, generation, strikes, etag, last_modified, body_ref, digest
FROM url WHERE id = ?1;

-- lease [lease]: to LEASED under a new token and attempt
UPDATE url SET state = :target, rq = NULL, due_at = NULL, attempt = ?2, token = ?3, worker = ?4, expires_at = ?5,
  started_at = NULL, slot_origin = NULL, slot_until = NULL, generation = ?6, tries = ?7, strikes = ?8
WHERE id = ?1 AND state IN (:sources);

-- held: what a holder's key is compared with, and what every result needs to know
SELECT state, token, attempt, kind, slot_origin, started_at, generation, priority, strikes, status,
  CASE WHEN indexed THEN fingerprint END FROM url WHERE id = ?1;

-- reserve: a start and a slot for the holder
UPDATE url SET slot_origin = ?4, slot_until = ?5, started_at = ?6, expires_at = ?7
WHERE id = ?1 AND token = ?2 AND attempt = ?3 AND state = 1;

-- put_back [put_back]: back to the queue, no try counted
UPDATE url SET state = :target, rq = priority, due_at = ?3, token = NULL, worker = NULL, expires_at = NULL,
  slot_origin = NULL, slot_until = NULL, reason = ?4, detail = ?5, reason_at = ?6
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- exclude [exclude]: not to be fetched in this crawl generation
UPDATE url SET state = :target, rq = ?3, due_at = ?4, token = NULL, worker = NULL, expires_at = NULL,
  slot_origin = NULL, slot_until = NULL, reason = ?5, detail = ?6, reason_at = ?7, policy_version = ?8
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- record_body [record_fetched]: a fresh good body replaces the last one. Without a hold nobody holds it from now on
UPDATE url SET state = :target, expires_at = ?3, worker = CASE WHEN ?3 > ?5 THEN worker END, slot_origin = NULL, slot_until = NULL, status = ?4, fetched_at = ?5,
  checks = checks + 1, changes = changes + (digest IS NOT NULL AND digest <> ?6),
  digest = ?6, body_ref = ?7, etag = ?8, last_modified = ?9
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- record_other [record_fetched]: an answer that leaves the last good body alone (304, or not a 2xx)
UPDATE url SET state = :target, expires_at = ?3, worker = CASE WHEN ?3 > ?5 THEN worker END, slot_origin = NULL, slot_until = NULL, status = ?4, fetched_at = ?5,
  checks = checks + 1, etag = coalesce(?6, etag), last_modified = coalesce(?7, last_modified)
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- forget_body: the last good body cannot be read any more: the next visit asks for all of it
UPDATE url SET digest = NULL, body_ref = NULL, etag = NULL, last_modified = NULL WHERE id = ?1 AND token = ?2;

-- retry [retry]: a failed try, to the retry lane
UPDATE url SET state = :target, rq = ?3, due_at = ?4, tries = tries + 1, token = NULL, worker = NULL,
  expires_at = NULL, slot_origin = NULL, slot_until = NULL, status = coalesce(?5, status), reason = ?6, detail = ?7,
  reason_at = ?8
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- give_up [give_up]: no further try in this crawl generation; a robots URL is queued again for when its decision expires
UPDATE url SET state = :target, rq = ?3, due_at = ?4, tries = tries + ?9, token = NULL, worker = NULL,
  expires_at = NULL, slot_origin = NULL, slot_until = NULL, status = coalesce(?5, status), reason = ?6, detail = ?7,
  reason_at = ?8
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- strike: one more parse of this body failed
UPDATE url SET strikes = strikes + 1, detail = ?3 WHERE id = ?1 AND token = ?2 AND state = 2;

-- record_parsed [record_parsed]: the manifest is durable
UPDATE url SET state = :target, content_kind = ?3 WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- complete [complete]: done; perhaps due again
UPDATE url SET state = :target, rq = ?3, due_at = ?4, token = NULL, worker = NULL, expires_at = NULL, tries = 0,
  canonical = ?5, directives = ?6, fingerprint = ?7, reason = ?8, detail = ?10, reason_at = ?9, indexed = ?11
WHERE id = ?1 AND token = ?2 AND state IN (:sources);

-- lapsed: leases whose deadline has passed
SELECT id, kind, slot_origin, started_at, slot_until FROM url INDEXED BY url_flight
WHERE token IS NOT NULL AND state = 1 AND expires_at <= ?1 ORDER BY expires_at LIMIT ?2;

-- leased: the leases that an earlier life left behind
SELECT id, kind, slot_origin, started_at, slot_until FROM url INDEXED BY url_flight WHERE token IS NOT NULL AND state = 1;

-- expire [expire]: a lapsed lease goes back to the queue; the attempt keeps its number, no try is counted
UPDATE url SET state = :target, rq = priority, due_at = ?2, token = NULL, worker = NULL, expires_at = NULL,
  slot_origin = NULL, slot_until = NULL, reason = 'lease_lapsed', detail = NULL, reason_at = ?2
WHERE id = ?1 AND state IN (:sources);

-- resumable: bodies that were stored and not yet carried to COMPLETE
SELECT u.id, u.state, u.attempt, u.path, u.kind, u.depth, u.hops, u.tries, u.generation, u.strikes, f.answer
FROM url AS u INDEXED BY url_flight LEFT JOIN fetch AS f ON f.url_id = u.id AND f.attempt = u.attempt
WHERE u.token IS NOT NULL AND u.state IN (2, 3);

-- resumable_robots: of those, the ones that no parse worker takes
SELECT u.id, u.state, u.attempt, u.path, u.kind, u.depth, u.hops, u.tries, u.generation, u.strikes, f.answer
FROM url AS u INDEXED BY url_flight LEFT JOIN fetch AS f ON f.url_id = u.id AND f.attempt = u.attempt
WHERE u.token IS NOT NULL AND u.state = 2 AND u.kind = 1;

-- offer_parsed: manifests whose owner is gone may be adopted at once
UPDATE url INDEXED BY url_flight SET expires_at = ?1, worker = NULL
WHERE token IS NOT NULL AND state = 3 AND expires_at > ?1;

-- hand_over: a parse worker lets go of what it parsed
UPDATE url SET expires_at = ?3, worker = NULL WHERE id = ?1 AND token = ?2 AND state = 3;

-- adoptable: rows past LEASED that nobody holds, the one that waits longest first; ?4 has one bit for each kind asked for
SELECT u.id, u.state, u.attempt, u.path, u.kind, u.depth, u.hops, u.tries, u.generation, u.strikes, f.answer,
  u.token, u.worker
FROM url AS u INDEXED BY url_flight LEFT JOIN fetch AS f ON f.url_id = u.id AND f.attempt = u.attempt
WHERE u.token IS NOT NULL AND u.state = ?1 AND u.expires_at <= ?2 AND (?4 >> u.kind) & 1 ORDER BY u.expires_at LIMIT ?3;

-- adopt: under a new token, with one strike more where the holder before went away
UPDATE url SET token = ?2, worker = ?3, expires_at = ?4, strikes = ?5 WHERE id = ?1 AND state IN (2, 3);

-- retoken: the fresh authority of a new owner
UPDATE url SET token = ?2, expires_at = ?3 WHERE id = ?1 AND state IN (2, 3);

-- requeue [requeue]: an operator queues a finished URL again, as its next crawl generation
UPDATE url SET state = :target, rq = priority, due_at = ?2, tries = 0, strikes = 0, generation = generation + 1,
  reason = NULL, detail = ?3, reason_at = ?2
WHERE id = ?1 AND state IN (:sources);

-- ended: finished URLs in one state, by the index of those that failed or were excluded
SELECT id, rq FROM url INDEXED BY url_ended WHERE state IN (5, 6) AND state = ?1 LIMIT ?2;

-- in_state: finished URLs in one state
SELECT id, rq FROM url WHERE state = ?1 LIMIT ?2;

-- in_state_at: finished URLs in one state and one range of ids
SELECT id, rq FROM url WHERE +state = ?1 AND id >= ?3 AND id < ?4 LIMIT ?2;
