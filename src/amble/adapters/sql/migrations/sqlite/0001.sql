-- The frontier on SQLite. Times are milliseconds of the store's clock; references are 16 packed bytes (BodyRef.pack).

CREATE TABLE meta(name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT, WITHOUT ROWID;

-- The store's clock: its high-water mark, and the boot clock reading that belongs to it.
CREATE TABLE clock(id INTEGER PRIMARY KEY CHECK (id = 1), now_ms INTEGER NOT NULL, boot_ms INTEGER NOT NULL,
  boot_id TEXT NOT NULL) STRICT;
INSERT INTO clock VALUES (1, 0, 0, '');

-- One row: the partition that lives in this file.
CREATE TABLE partition(partition INTEGER PRIMARY KEY, owner TEXT NOT NULL, epoch INTEGER NOT NULL,
  lease_until INTEGER) STRICT;
INSERT INTO partition VALUES (0, '', 0, NULL);

-- The ledger of an origin. `wake_at`: the soonest time at which a turn may succeed; NULL while no time can help
-- (paused, at its limit, empty, waiting for its robots.txt). `leased`: rows in LEASED; `active`: slots held.
CREATE TABLE origin(
  id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, wake_at INTEGER,
  next_start INTEGER NOT NULL, rest_until INTEGER NOT NULL, backoff_level INTEGER NOT NULL,
  last_fetch_ms INTEGER NOT NULL, leased INTEGER NOT NULL, active INTEGER NOT NULL,
  active_max INTEGER /* NULL: the default */, spacing_ms INTEGER /* NULL: the default */,
  paused INTEGER NOT NULL, policy_version INTEGER NOT NULL,
  queued INTEGER NOT NULL, urls INTEGER NOT NULL, pages INTEGER NOT NULL, turns INTEGER NOT NULL,
  robots_url_id INTEGER, robots_outcome INTEGER NOT NULL, robots_version INTEGER NOT NULL,
  robots_fetched_at INTEGER NOT NULL, robots_expires_at INTEGER NOT NULL, robots_rules BLOB,
  robots_delay_ms INTEGER NOT NULL, created_at INTEGER NOT NULL) STRICT;
CREATE INDEX origin_wake ON origin(wake_at) WHERE wake_at IS NOT NULL;

-- Origins by registrable domain, counted once a crawl knows more than a few.
CREATE TABLE site(name TEXT PRIMARY KEY, origins INTEGER NOT NULL) STRICT, WITHOUT ROWID;

-- One row is the whole state of a URL. id = origin << 36 | slot of the path. `rq`: class while queued, else NULL;
-- 0..7 as domain/priority.py, 8 for a robots.txt whose refetch waits until a page wants it. Rows are never deleted.
CREATE TABLE url(
  id INTEGER PRIMARY KEY, path TEXT NOT NULL, state INTEGER NOT NULL, kind INTEGER NOT NULL, rq INTEGER,
  due_at INTEGER, priority INTEGER NOT NULL, depth INTEGER NOT NULL, hops INTEGER NOT NULL, edge INTEGER NOT NULL,
  parent INTEGER NOT NULL, admitted_at INTEGER NOT NULL, attempt INTEGER NOT NULL, generation INTEGER NOT NULL,
  tries INTEGER NOT NULL, strikes INTEGER NOT NULL,
  token BLOB, worker INTEGER, started_at INTEGER, expires_at INTEGER, slot_origin INTEGER, slot_until INTEGER,
  status INTEGER, fetched_at INTEGER, digest BLOB, body_ref BLOB, etag TEXT, last_modified TEXT,
  checks INTEGER NOT NULL, changes INTEGER NOT NULL,
  canonical TEXT, directives INTEGER, fingerprint INTEGER, content_kind TEXT,
  reason TEXT, detail TEXT, reason_at INTEGER, policy_version INTEGER) STRICT;
CREATE INDEX url_due ON url((id >> 36), rq, due_at) WHERE rq IS NOT NULL;
CREATE INDEX url_flight ON url(state, expires_at) WHERE token IS NOT NULL;
CREATE INDEX url_ended ON url(state) WHERE state IN (5, 6);

-- What each attempt met. `answer` is the msgpack of domain/fetched.Fetched, NULL where nothing was answered.
CREATE TABLE fetch(
  url_id INTEGER NOT NULL, attempt INTEGER NOT NULL, generation INTEGER NOT NULL, at INTEGER NOT NULL,
  duration_ms INTEGER NOT NULL, status INTEGER, category TEXT, detail TEXT, answer BLOB,
  PRIMARY KEY (url_id, attempt)) STRICT, WITHOUT ROWID;

-- `opened`: the URL is COMPLETE, discovery may consume from `cursor` to `links`.
CREATE TABLE manifest(
  url_id INTEGER NOT NULL, attempt INTEGER NOT NULL, generation INTEGER NOT NULL, ref BLOB NOT NULL,
  links INTEGER NOT NULL, cursor INTEGER NOT NULL, opened INTEGER NOT NULL, content_kind TEXT NOT NULL,
  title TEXT NOT NULL, text_ref BLOB, at INTEGER NOT NULL,
  PRIMARY KEY (url_id, attempt, generation)) STRICT, WITHOUT ROWID;
CREATE INDEX manifest_open ON manifest(opened) WHERE opened = 1 AND cursor < links;

-- Digest index: where these bytes were stored first.
CREATE TABLE body(digest BLOB PRIMARY KEY, ref BLOB NOT NULL, bytes INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE publication(
  seq INTEGER PRIMARY KEY AUTOINCREMENT, url_id INTEGER NOT NULL, crawl_generation INTEGER NOT NULL,
  extraction_generation INTEGER NOT NULL, attempt INTEGER NOT NULL, at INTEGER NOT NULL,
  UNIQUE (url_id, crawl_generation, extraction_generation)) STRICT;
CREATE TABLE sink(name TEXT PRIMARY KEY, position INTEGER NOT NULL, at INTEGER NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE policy(version INTEGER PRIMARY KEY, at INTEGER NOT NULL, who TEXT NOT NULL, document TEXT NOT NULL) STRICT;
CREATE TABLE audit(seq INTEGER PRIMARY KEY AUTOINCREMENT, at INTEGER NOT NULL, who TEXT NOT NULL, what TEXT NOT NULL,
  subject TEXT NOT NULL, old TEXT NOT NULL, new TEXT NOT NULL, why TEXT NOT NULL) STRICT;

-- Bounded log of refusals, skips and waits. `subject`: url_id, or a negative hash of a URL that is not remembered.
CREATE TABLE decision(
  seq INTEGER PRIMARY KEY AUTOINCREMENT, subject INTEGER NOT NULL, at INTEGER NOT NULL, url TEXT NOT NULL,
  reason TEXT NOT NULL, detail TEXT NOT NULL, policy_version INTEGER NOT NULL) STRICT;
CREATE INDEX decision_subject ON decision(subject);

-- Candidates of other partitions on their way out: one parcel per destination and batch, msgpack of a list of
-- domain/frontier.Candidate. Numbers are never given out again.
CREATE TABLE outbox(
  number INTEGER PRIMARY KEY AUTOINCREMENT, destination INTEGER NOT NULL, candidates BLOB NOT NULL,
  amount INTEGER NOT NULL, policy_version INTEGER NOT NULL, at INTEGER NOT NULL) STRICT;
CREATE INDEX outbox_destination ON outbox(destination, number);

-- Candidates that other partitions have sent and that wait to be admitted. `taken` of the `amount` are admitted already.
CREATE TABLE inbox(
  seq INTEGER PRIMARY KEY AUTOINCREMENT, source INTEGER NOT NULL, number INTEGER NOT NULL, candidates BLOB NOT NULL,
  amount INTEGER NOT NULL, taken INTEGER NOT NULL, policy_version INTEGER NOT NULL, at INTEGER NOT NULL) STRICT;

-- The highest number taken from each source: what arrives again is left out.
CREATE TABLE parcel_mark(source INTEGER PRIMARY KEY, number INTEGER NOT NULL) STRICT;

CREATE TABLE tally(name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
