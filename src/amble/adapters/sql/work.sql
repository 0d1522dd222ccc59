-- add_fetch: what one attempt met
INSERT INTO fetch(url_id, attempt, generation, at, duration_ms, status, category, detail, answer)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9);

-- add_body: remember where bytes were stored first
INSERT INTO body(digest, ref, bytes) VALUES (?1, ?2, ?3) ON CONFLICT (digest) DO NOTHING;

-- find_body: where bytes were stored first
SELECT ref FROM body WHERE digest = ?1;

-- any_body: whether there are any
SELECT 1 FROM body LIMIT 1;

-- add_manifest: a parse is durable; discovery has consumed none of its links. A repeated parse replaces its record
INSERT INTO manifest(url_id, attempt, generation, ref, links, cursor, opened, content_kind, title, text_ref, at)
VALUES (?1, ?2, ?3, ?4, ?5, 0, 0, ?6, ?7, ?8, ?9) ON CONFLICT (url_id, attempt, generation) DO UPDATE SET
  ref = excluded.ref, links = excluded.links, content_kind = excluded.content_kind, title = excluded.title,
  text_ref = excluded.text_ref, at = excluded.at WHERE opened = 0 AND cursor = 0;

-- manifest: how far discovery has come
SELECT cursor, links, opened FROM manifest WHERE url_id = ?1 AND attempt = ?2 AND generation = ?3;

-- open_manifest: the URL is COMPLETE, its links may be admitted
UPDATE manifest SET opened = 1 WHERE url_id = ?1 AND attempt = ?2 AND generation = ?3 RETURNING cursor, links;

-- advance: discovery has consumed links up to here
UPDATE manifest SET cursor = ?4 WHERE url_id = ?1 AND attempt = ?2 AND generation = ?3 AND cursor = ?5;

-- manifest_of: the latest manifest of one attempt
SELECT generation, ref, links, content_kind, cursor FROM manifest WHERE url_id = ?1 AND attempt = ?2
ORDER BY generation DESC LIMIT 1;

-- open_manifests: every manifest with links ahead of its cursor
SELECT m.url_id, m.attempt, m.generation, m.ref, m.cursor, m.links, u.depth, u.hops, o.key, u.path
FROM manifest AS m INDEXED BY manifest_open JOIN url AS u ON u.id = m.url_id JOIN origin AS o ON o.id = m.url_id >> 36
WHERE m.opened = 1 AND m.cursor < m.links;

-- publish: one publication per URL, crawl generation and extraction generation
INSERT INTO publication(url_id, crawl_generation, extraction_generation, attempt, at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (url_id, crawl_generation, extraction_generation) DO NOTHING RETURNING seq;

-- add_decision: one refusal, skip or wait
INSERT INTO decision(subject, at, url, reason, detail, policy_version) VALUES (?1, ?2, ?3, ?4, ?5, ?6);

-- last_decision: the newest entry of the log
SELECT coalesce(max(seq), 0) FROM decision;

-- prune_decisions: the log is bounded
DELETE FROM decision WHERE seq <= ?1;

-- audit: one operator action
INSERT INTO audit(at, who, what, subject, old, new, why) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7);
