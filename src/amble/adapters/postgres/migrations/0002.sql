-- A fleet over several servers. Server 0, which is named first, holds the map of all; every server knows by itself
-- which partitions live there.

-- The servers of the fleet (on server 0). `place`: where each was when it was set up, without secrets. `first`, `last`:
-- the origin ids that it was given; of server 0 they are what it had at the beginning.
CREATE TABLE server(number integer PRIMARY KEY, place text NOT NULL, first bigint NOT NULL, last bigint NOT NULL);

-- Where each partition lives (on server 0). `epoch` counts its moves.
CREATE TABLE placement(partition integer PRIMARY KEY, server integer NOT NULL, epoch bigint NOT NULL DEFAULT 0);

-- Moves under way (on server 0). `shift_ms`: added to times of politeness, because clocks of servers differ.
CREATE TABLE relocation(partition integer PRIMARY KEY, source integer NOT NULL, target integer NOT NULL,
  shift_ms bigint, step integer NOT NULL DEFAULT 0);

-- A partition that is being copied to this server; it lives elsewhere as yet, so that its counters do not count.
ALTER TABLE partition ADD COLUMN arriving boolean NOT NULL DEFAULT false;

-- Partitions that have left this server, and how far those that arrive have been copied.
CREATE TABLE departed(partition integer PRIMARY KEY, epoch bigint NOT NULL);
CREATE TABLE landing(partition integer NOT NULL, name text NOT NULL, position bytea, rows bigint NOT NULL,
  done boolean NOT NULL, PRIMARY KEY (partition, name));
