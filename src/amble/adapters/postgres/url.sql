-- rows: URLs by id; the columns are those of rows.UrlRow, in its order, after the version of the row
SELECT u.xmin, u.id, u.path, u.kind, u.depth, u.hops, u.priority, u.state, u.rq, u.due_at, u.attempt, u.generation,
  u.tries, u.strikes, u.token, u.worker, u.started_at, u.expires_at, u.sweep_at, u.slot_origin, u.slot_until,
  u.status, u.fetched_at, u.digest, u.body_ref, u.etag, u.last_modified, u.checks, u.changes, u.content_kind,
  u.ended, u.canonical, u.directives, u.fingerprint, u.reason, u.detail, u.reason_at, u.policy_version
FROM url AS u WHERE u.id = ANY($1::bigint[]) ORDER BY u.id;

-- paths: which path holds an id
SELECT id, path FROM url WHERE id = ANY($1::bigint[]);

-- insert: new URLs are known and queued in one row each
INSERT INTO url(id, path, state, kind, rq, due_at, priority, depth, hops, edge, parent, admitted_at, attempt,
  generation, tries, strikes, checks, changes, policy_version)
SELECT n.id, n.path, 0, n.kind, n.priority, $10, n.priority, n.depth, n.hops, n.edge, n.parent, $10, 0, 1, 0, 0, 0, 0,
  n.policy_version
FROM unnest($1::bigint[], $2::text[], $3::smallint[], $4::smallint[], $5::integer[], $6::integer[], $7::smallint[],
  $8::bigint[], $9::integer[]) AS n(id, path, kind, priority, depth, hops, edge, parent, policy_version)
ORDER BY n.id ON CONFLICT (id) DO NOTHING;

-- write_flight: where URLs are in their flight, if they are still what was read
UPDATE url AS u SET state = n.state, rq = n.rq, due_at = n.due_at, attempt = n.attempt, generation = n.generation,
  tries = n.tries, strikes = n.strikes, token = n.token, worker = n.worker, started_at = n.started_at, expires_at =
  n.expires_at, sweep_at = n.sweep_at, slot_origin = n.slot_origin, slot_until = n.slot_until
FROM unnest($1::bigint[], $2::xid[], $3::smallint[], $4::smallint[], $5::bigint[], $6::integer[], $7::integer[],
  $8::integer[], $9::integer[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
  $15::bigint[], $16::bigint[]) AS n(id, seen, state, rq, due_at, attempt, generation, tries, strikes, token,
  worker, started_at, expires_at, sweep_at, slot_origin, slot_until)
WHERE u.id = n.id AND u.xmin = n.seen;

-- write_answer: the same, and what was answered
UPDATE url AS u SET state = n.state, rq = n.rq, due_at = n.due_at, attempt = n.attempt, generation = n.generation,
  tries = n.tries, strikes = n.strikes, token = n.token, worker = n.worker, started_at = n.started_at, expires_at =
  n.expires_at, sweep_at = n.sweep_at, slot_origin = n.slot_origin, slot_until = n.slot_until, status = n.status,
  fetched_at = n.fetched_at, digest = n.digest, body_ref = n.body_ref, etag = n.etag, last_modified =
  n.last_modified, checks = n.checks, changes = n.changes, content_kind = n.content_kind
FROM unnest($1::bigint[], $2::xid[], $3::smallint[], $4::smallint[], $5::bigint[], $6::integer[], $7::integer[],
  $8::integer[], $9::integer[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
  $15::bigint[], $16::bigint[], $17::integer[], $18::bigint[], $19::bytea[], $20::bytea[], $21::text[], $22::text[],
  $23::integer[], $24::integer[], $25::text[]) AS n(id, seen, state, rq, due_at, attempt, generation, tries,
  strikes, token, worker, started_at, expires_at, sweep_at, slot_origin, slot_until, status, fetched_at, digest,
  body_ref, etag, last_modified, checks, changes, content_kind)
WHERE u.id = n.id AND u.xmin = n.seen;

-- write_end: the same as write_flight, and how the flight ended
UPDATE url AS u SET state = n.state, rq = n.rq, due_at = n.due_at, attempt = n.attempt, generation = n.generation,
  tries = n.tries, strikes = n.strikes, token = n.token, worker = n.worker, started_at = n.started_at, expires_at =
  n.expires_at, sweep_at = n.sweep_at, slot_origin = n.slot_origin, slot_until = n.slot_until, ended = n.ended,
  canonical = n.canonical, directives = n.directives, fingerprint = n.fingerprint, reason = n.reason, detail =
  n.detail, reason_at = n.reason_at, policy_version = n.policy_version
FROM unnest($1::bigint[], $2::xid[], $3::smallint[], $4::smallint[], $5::bigint[], $6::integer[], $7::integer[],
  $8::integer[], $9::integer[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
  $15::bigint[], $16::bigint[], $17::smallint[], $18::text[], $19::integer[], $20::bigint[], $21::text[],
  $22::text[], $23::bigint[], $24::integer[]) AS n(id, seen, state, rq, due_at, attempt, generation, tries, strikes,
  token, worker, started_at, expires_at, sweep_at, slot_origin, slot_until, ended, canonical, directives,
  fingerprint, reason, detail, reason_at, policy_version)
WHERE u.id = n.id AND u.xmin = n.seen;

-- write_whole: everything that ever changes
UPDATE url AS u SET state = n.state, rq = n.rq, due_at = n.due_at, attempt = n.attempt, generation = n.generation,
  tries = n.tries, strikes = n.strikes, token = n.token, worker = n.worker, started_at = n.started_at, expires_at =
  n.expires_at, sweep_at = n.sweep_at, slot_origin = n.slot_origin, slot_until = n.slot_until, status = n.status,
  fetched_at = n.fetched_at, digest = n.digest, body_ref = n.body_ref, etag = n.etag, last_modified =
  n.last_modified, checks = n.checks, changes = n.changes, content_kind = n.content_kind, ended = n.ended, canonical
  = n.canonical, directives = n.directives, fingerprint = n.fingerprint, reason = n.reason, detail = n.detail,
  reason_at = n.reason_at, policy_version = n.policy_version
FROM unnest($1::bigint[], $2::xid[], $3::smallint[], $4::smallint[], $5::bigint[], $6::integer[], $7::integer[],
  $8::integer[], $9::integer[], $10::bytea[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[],
  $15::bigint[], $16::bigint[], $17::integer[], $18::bigint[], $19::bytea[], $20::bytea[], $21::text[], $22::text[],
  $23::integer[], $24::integer[], $25::text[], $26::smallint[], $27::text[], $28::integer[], $29::bigint[],
  $30::text[], $31::text[], $32::bigint[], $33::integer[]) AS n(id, seen, state, rq, due_at, attempt, generation,
  tries, strikes, token, worker, started_at, expires_at, sweep_at, slot_origin, slot_until, status, fetched_at,
  digest, body_ref, etag, last_modified, checks, changes, content_kind, ended, canonical, directives, fingerprint,
  reason, detail, reason_at, policy_version)
WHERE u.id = n.id AND u.xmin = n.seen;

-- lapsed: leases of these partitions whose deadline has passed, the oldest first
SELECT u.xmin, u.id, u.path, u.kind, u.depth, u.hops, u.priority, u.state, u.rq, u.due_at, u.attempt, u.generation,
  u.tries, u.strikes, u.token, u.worker, u.started_at, u.expires_at, u.sweep_at, u.slot_origin, u.slot_until,
  u.status, u.fetched_at, u.digest, u.body_ref, u.etag, u.last_modified, u.checks, u.changes, u.content_kind,
  u.ended, u.canonical, u.directives, u.fingerprint, u.reason, u.detail, u.reason_at, u.policy_version
FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.sweep_at <= $1 AND u.expires_at <= $1 AND u.state = 1 AND o.partition = $2
ORDER BY u.expires_at LIMIT $3 FOR NO KEY UPDATE OF u SKIP LOCKED;

-- adoptable: rows past LEASED that nobody holds, the one that waits longest first
SELECT o.partition, u.xmin, u.id, u.path, u.kind, u.depth, u.hops, u.priority, u.state, u.rq, u.due_at, u.attempt,
  u.generation, u.tries, u.strikes, u.token, u.worker, u.started_at, u.expires_at, u.sweep_at, u.slot_origin,
  u.slot_until, u.status, u.fetched_at, u.digest, u.body_ref, u.etag, u.last_modified, u.checks, u.changes,
  u.content_kind, u.ended, u.canonical, u.directives, u.fingerprint, u.reason, u.detail, u.reason_at,
  u.policy_version
FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.sweep_at <= $1 AND u.expires_at <= $1 AND u.state = $2 AND ($3::integer IS NULL OR o.partition = $3)
  AND (cardinality($4::smallint[]) = 0 OR u.kind = ANY($4))
ORDER BY u.sweep_at LIMIT $5 FOR NO KEY UPDATE OF u SKIP LOCKED;

-- refresh_sweep: rows that are held longer than they once were need not be looked at before their time
UPDATE url SET sweep_at = expires_at WHERE id IN (SELECT id FROM url WHERE sweep_at <= $1 AND expires_at > $1
  ORDER BY sweep_at LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED);

-- in_flight: everything that an earlier owner of a partition left behind
SELECT u.xmin, u.id, u.path, u.kind, u.depth, u.hops, u.priority, u.state, u.rq, u.due_at, u.attempt, u.generation,
  u.tries, u.strikes, u.token, u.worker, u.started_at, u.expires_at, u.sweep_at, u.slot_origin, u.slot_until,
  u.status, u.fetched_at, u.digest, u.body_ref, u.etag, u.last_modified, u.checks, u.changes, u.content_kind,
  u.ended, u.canonical, u.directives, u.fingerprint, u.reason, u.detail, u.reason_at, u.policy_version
FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.sweep_at IS NOT NULL AND o.partition = $1 ORDER BY u.id FOR NO KEY UPDATE OF u;

-- ended: URLs of a partition that failed or were excluded
SELECT u.id FROM url AS u JOIN origin AS o ON o.id = u.id >> 36
WHERE u.ended = $2 AND u.ended IS NOT NULL AND o.partition = $1 LIMIT $3;

-- in_state: URLs of a partition in one state
SELECT u.id FROM url AS u JOIN origin AS o ON o.id = u.id >> 36 WHERE o.partition = $1 AND u.state = $2 LIMIT $3;

-- in_state_at: URLs in one state and one range of ids
SELECT id FROM url WHERE state = $1 AND id >= $2 AND id < $3 LIMIT $4;
