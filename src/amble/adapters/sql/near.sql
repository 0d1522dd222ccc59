-- parts: all that is filed under four keys, each key's last part last
SELECT key, documents FROM near WHERE key BETWEEN ?1 AND ?1 + 16777215
UNION ALL SELECT key, documents FROM near WHERE key BETWEEN ?2 AND ?2 + 16777215
UNION ALL SELECT key, documents FROM near WHERE key BETWEEN ?3 AND ?3 + 16777215
UNION ALL SELECT key, documents FROM near WHERE key BETWEEN ?4 AND ?4 + 16777215;

-- last_part: the part of a key that documents are added to
SELECT key, documents FROM near WHERE key BETWEEN ?1 AND ?1 + 16777215 ORDER BY key DESC LIMIT 1;

-- put: a part as it is from now on
INSERT INTO near(key, documents) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET documents = excluded.documents;

-- drop: a part of which nothing is left
DELETE FROM near WHERE key = ?1;

-- url: what a URL is called
SELECT o.key || u.path FROM url u JOIN origin o ON o.id = u.id >> 36 WHERE u.id = ?1;

-- built_to: where entering what was published before has come to; no row: it is done
SELECT value FROM meta WHERE name = 'near_built_to';

-- build_on: the next time from here
UPDATE meta SET value = ?1 WHERE name = 'near_built_to';

-- built: all is entered
DELETE FROM meta WHERE name = 'near_built_to';

-- unentered: documents whose last visit was published, after one id
SELECT u.id, u.fingerprint FROM url u WHERE u.id > ?1 AND u.fingerprint <> 0 AND EXISTS (
  SELECT 1 FROM publication p WHERE p.url_id = u.id AND p.attempt = (
    SELECT max(m.attempt) FROM manifest m WHERE m.url_id = u.id AND m.opened = 1)) ORDER BY u.id LIMIT ?2;

-- enter: this URL is in the index
UPDATE url SET indexed = 1 WHERE id = ?1;
