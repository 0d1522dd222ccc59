-- The frontier on PostgreSQL. One database holds many partitions. Times are milliseconds of the store's clock;
-- references are 16 packed bytes (BodyRef.pack). Columns mean the same as on SQLite where they have the same name.

CREATE TABLE meta(name text COLLATE "C" PRIMARY KEY, value bytea NOT NULL);

-- High-water mark of the store's clock, folded in from `writer` when a store comes or goes.
CREATE TABLE clock(id smallint PRIMARY KEY CHECK (id = 1), now_ms bigint NOT NULL);
INSERT INTO clock VALUES (1, 0);

-- One row per connection of a store. `tick` is its last committed transaction: the answer to a COMMIT that broke.
CREATE TABLE writer(
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, tick bigint NOT NULL, now_ms bigint NOT NULL
) WITH (fillfactor = 10);

-- The partitions that live here. `epoch` fences owners; `lease_until` NULL: owned without a term (one agent, tests).
-- `released`: the last owner's requests were over when it left. `moving`: on its way to another server, not to be
-- claimed. `published`, `sent`: the last numbers given to a publication and to a parcel.
CREATE TABLE partition(
  partition integer PRIMARY KEY, owner text NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
  lease_until bigint, released boolean NOT NULL DEFAULT true, moving boolean NOT NULL DEFAULT false,
  published bigint NOT NULL DEFAULT 0, sent bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 20);

-- Agents that are or were alive.
CREATE TABLE agent(name text COLLATE "C" PRIMARY KEY, seen_at bigint NOT NULL, leaving boolean NOT NULL DEFAULT false)
  WITH (fillfactor = 20);

-- Sites with a partition of their own.
CREATE TABLE site_apart(site text COLLATE "C" PRIMARY KEY, partition integer NOT NULL);

-- Origin ids that this server may give out, so that ids stay unique when a partition moves between servers.
CREATE TABLE origin_block(first bigint PRIMARY KEY, last bigint NOT NULL, next bigint NOT NULL,
  CHECK (first >= 1 AND first <= next AND next <= last + 1 AND last < 134217728));

-- The ledger of an origin. `wake_at`: the soonest time at which a turn may succeed; NULL while no time can help
-- (paused, at its limit, empty, waiting for its robots.txt). `leased`: rows in LEASED; `active`: slots held.
CREATE TABLE origin(
  id bigint PRIMARY KEY, robots_url_id bigint, wake_at bigint, next_start bigint NOT NULL DEFAULT 0,
  rest_until bigint NOT NULL DEFAULT 0, last_fetch_ms bigint NOT NULL DEFAULT 0,
  queued bigint NOT NULL DEFAULT 0, urls bigint NOT NULL DEFAULT 0, pages bigint NOT NULL DEFAULT 0,
  turns bigint NOT NULL DEFAULT 0, robots_fetched_at bigint NOT NULL DEFAULT 0,
  robots_expires_at bigint NOT NULL DEFAULT 0, robots_delay_ms bigint NOT NULL DEFAULT 0, created_at bigint NOT NULL,
  spacing_ms bigint /* NULL: the default */, partition integer NOT NULL, backoff_level integer NOT NULL DEFAULT 0,
  leased integer NOT NULL DEFAULT 0, active integer NOT NULL DEFAULT 0, active_max integer /* NULL: the default */,
  policy_version integer NOT NULL DEFAULT 1, robots_outcome integer NOT NULL DEFAULT 0,
  robots_version integer NOT NULL DEFAULT 0, paused boolean NOT NULL DEFAULT false,
  key text COLLATE "C" NOT NULL, robots_rules bytea
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0);
CREATE UNIQUE INDEX origin_key ON origin(key);
CREATE INDEX origin_wake ON origin(partition, wake_at) WHERE wake_at IS NOT NULL;

-- Origins by registrable domain, counted once a partition knows more than a few. A site lies in one partition.
CREATE TABLE site(partition integer NOT NULL, name text COLLATE "C" NOT NULL, origins bigint NOT NULL,
  PRIMARY KEY (partition, name)) WITH (fillfactor = 80);

-- One row is the whole state of a URL. id = origin << 36 | slot of the path. `rq`: class while queued, else NULL;
-- 0..7 as domain/priority.py, 8 for a robots.txt whose refetch waits until a page wants it. Rows are never deleted.
-- `sweep_at`: while held, a time before which `expires_at` cannot lie; it moves less often, and only it is indexed, so
-- that a start, an answer and a parse rewrite no index. `ended`: the state of a URL that FAILED or was EXCLUDED.
CREATE TABLE url(
  id bigint PRIMARY KEY, due_at bigint, parent bigint NOT NULL, admitted_at bigint NOT NULL, started_at bigint,
  expires_at bigint, sweep_at bigint, slot_origin bigint, slot_until bigint, fetched_at bigint, fingerprint bigint,
  reason_at bigint, worker bigint, attempt integer NOT NULL, generation integer NOT NULL, tries integer NOT NULL,
  strikes integer NOT NULL, checks integer NOT NULL, changes integer NOT NULL, depth integer NOT NULL,
  hops integer NOT NULL, status integer, directives integer, policy_version integer, state smallint NOT NULL,
  kind smallint NOT NULL, rq smallint, priority smallint NOT NULL, edge smallint NOT NULL, ended smallint,
  path text NOT NULL, token bytea, digest bytea, body_ref bytea, etag text, last_modified text, canonical text,
  content_kind text, reason text, detail text
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0);
CREATE INDEX url_due ON url((id >> 36), rq, due_at) WHERE rq IS NOT NULL;
CREATE INDEX url_sweep ON url(sweep_at) WHERE sweep_at IS NOT NULL;
CREATE INDEX url_ended ON url(ended) WHERE ended IS NOT NULL;

-- What each attempt met (the name is a reserved word here). `answer` is the msgpack of domain/fetched.Fetched, NULL where nothing was answered.
CREATE TABLE "fetch"(
  url_id bigint NOT NULL, at bigint NOT NULL, duration_ms bigint NOT NULL, attempt integer NOT NULL,
  generation integer NOT NULL, status integer, category text, detail text, answer bytea,
  PRIMARY KEY (url_id, attempt)) WITH (autovacuum_vacuum_insert_scale_factor = 0.05);

-- `opened`: the URL is COMPLETE, discovery may consume from `cursor` to `links`.
CREATE TABLE manifest(
  url_id bigint NOT NULL, at bigint NOT NULL, attempt integer NOT NULL, generation integer NOT NULL,
  partition integer NOT NULL, links integer NOT NULL, cursor integer NOT NULL, opened boolean NOT NULL,
  content_kind text NOT NULL, title text NOT NULL, ref bytea NOT NULL, text_ref bytea,
  PRIMARY KEY (url_id, attempt, generation)) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX manifest_open ON manifest(partition) WHERE opened AND cursor < links;

-- Digest index: where these bytes were stored first.
CREATE TABLE body(digest bytea PRIMARY KEY, ref bytea NOT NULL, bytes bigint NOT NULL);

-- Documents for sinks, numbered without gaps in time per partition: the number is given under the lock of its row.
CREATE TABLE publication(
  partition integer NOT NULL, seq bigint NOT NULL, url_id bigint NOT NULL, at bigint NOT NULL,
  crawl_generation integer NOT NULL, extraction_generation integer NOT NULL, attempt integer NOT NULL,
  PRIMARY KEY (partition, seq), UNIQUE (url_id, crawl_generation, extraction_generation));
CREATE TABLE sink(name text COLLATE "C" NOT NULL, partition integer NOT NULL, position bigint NOT NULL,
  at bigint NOT NULL, PRIMARY KEY (name, partition)) WITH (fillfactor = 50);

CREATE TABLE policy(version integer PRIMARY KEY, at bigint NOT NULL, who text NOT NULL, document text NOT NULL);
CREATE TABLE audit(seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, partition integer NOT NULL, at bigint NOT NULL,
  who text NOT NULL, what text NOT NULL, subject text NOT NULL, old text NOT NULL, new text NOT NULL,
  why text NOT NULL);

-- Bounded log of refusals, skips and waits. `subject`: url_id, or a negative hash of a URL that is not remembered.
CREATE TABLE decision(
  seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, subject bigint NOT NULL, at bigint NOT NULL,
  partition integer NOT NULL, policy_version integer NOT NULL, url text NOT NULL, reason text NOT NULL,
  detail text NOT NULL);
CREATE INDEX decision_subject ON decision(subject);

-- Counters of a partition.
CREATE TABLE tally(partition integer NOT NULL, name text COLLATE "C" NOT NULL, value bigint NOT NULL,
  PRIMARY KEY (partition, name)) WITH (fillfactor = 20, autovacuum_vacuum_scale_factor = 0.0,
  autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Candidates on their way: `candidates` is the msgpack of list[Candidate], `amount` how many. A row of the inbox waits
-- to be admitted here; one of the outbox for the server on which its destination lives. `taken`: the last parcel of a
-- source that a destination here has taken.
CREATE TABLE inbox(number bigint GENERATED ALWAYS AS IDENTITY, partition integer NOT NULL, source integer NOT NULL,
  amount integer NOT NULL, policy_version integer NOT NULL, candidates bytea NOT NULL,
  PRIMARY KEY (partition, number) INCLUDE (amount))
  WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE outbox(source integer NOT NULL, number bigint NOT NULL, destination integer NOT NULL,
  amount integer NOT NULL, policy_version integer NOT NULL, candidates bytea NOT NULL, PRIMARY KEY (source, number))
  WITH (autovacuum_vacuum_scale_factor = 0.0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE taken(source integer NOT NULL, destination integer NOT NULL, number bigint NOT NULL,
  PRIMARY KEY (source, destination)) WITH (fillfactor = 50);
