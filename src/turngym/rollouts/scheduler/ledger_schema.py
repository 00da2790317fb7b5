"""Tables and statements of the ledger.

    groups    one row a group: what was ordered, and whether it is open, closed or dropped
    samples   one row an episode: its state, its newest retry, and why it was dropped
    tries  one row a try: seeds, how it ended, tokens sampled in a turn that never ended
    turns     one row a finished turn: the packed turn, its tokens and their oldest version
    steps     one row an update: reserved, applied, checkpointed
    uses      one row an episode (or a range of its turns) that an update trained on

States of a sample: created, running, finished, ready, reserved, applied, checkpointed; or dropped,
with a reason. ``retry`` is a fencing token: rows of a try that is not the newest are refused.
"""

from __future__ import annotations

FORMAT = "turngym.ledger"
FORMAT_VERSION = 1

SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS groups (
  id INTEGER PRIMARY KEY, task TEXT NOT NULL, size INTEGER NOT NULL, condition TEXT NOT NULL,
  env_id TEXT NOT NULL, env_seed INTEGER NOT NULL, prefix BLOB, start_version INTEGER NOT NULL,
  target INTEGER, lineage INTEGER NOT NULL, state TEXT NOT NULL, reason TEXT
);
CREATE TABLE IF NOT EXISTS samples (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL, state TEXT NOT NULL,
  late INTEGER NOT NULL DEFAULT 0, reason TEXT, PRIMARY KEY (grp, member)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tries (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL,
  start_version INTEGER NOT NULL, policy_seed INTEGER NOT NULL, outcome TEXT, error TEXT,
  uncommitted_tokens INTEGER NOT NULL DEFAULT 0, tail BLOB, PRIMARY KEY (grp, member, retry)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS turns (
  grp INTEGER NOT NULL, member INTEGER NOT NULL, retry INTEGER NOT NULL, turn INTEGER NOT NULL,
  tokens INTEGER NOT NULL, version INTEGER NOT NULL, seen TEXT, crc INTEGER NOT NULL,
  packed BLOB NOT NULL, PRIMARY KEY (grp, member, retry, turn)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
  step INTEGER PRIMARY KEY, lineage INTEGER NOT NULL, state TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS uses (
  step INTEGER NOT NULL, place INTEGER NOT NULL, kind TEXT NOT NULL, grp INTEGER NOT NULL,
  member INTEGER NOT NULL, retry INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
  tokens INTEGER NOT NULL, PRIMARY KEY (step, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS uses_of_sample ON uses (grp, member);
"""

OPEN_GROUP = "INSERT OR IGNORE INTO groups VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 'open', NULL)"
CREATE_SAMPLE = "INSERT OR IGNORE INTO samples VALUES (?, ?, -1, 'created', 0, NULL)"
START = "INSERT OR IGNORE INTO tries VALUES (?, ?, ?, ?, ?, NULL, NULL, 0, NULL)"
FENCE = "UPDATE samples SET retry = ?3, state = 'running' WHERE grp = ?1 AND member = ?2"
FENCE += " AND retry < ?3 AND state IN ('created', 'running')"
CARRY_TURNS = "UPDATE turns SET retry = ?3 WHERE grp = ?1 AND member = ?2 AND retry = ?4"
CARRY_USES = "UPDATE uses SET retry = ?3 WHERE grp = ?1 AND member = ?2 AND retry = ?4"
COMMIT_TURN = """
INSERT OR IGNORE INTO turns SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9 WHERE EXISTS (
  SELECT 1 FROM samples WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND state = 'running')
"""
END = """
UPDATE tries SET outcome = ?4, error = ?5, uncommitted_tokens = uncommitted_tokens + ?6, tail = ?7
WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND outcome IS NULL
"""
LOSE = "UPDATE tries SET uncommitted_tokens = uncommitted_tokens + ?4"
LOSE += " WHERE grp = ?1 AND member = ?2 AND retry = ?3 AND outcome IS NULL"
FINISH = "UPDATE samples SET state = 'finished' WHERE grp = ?1 AND member = ?2 AND retry = ?3"
FINISH += " AND state = 'running'"
READY = "UPDATE samples SET state = 'ready', late = ?3 WHERE grp = ?1 AND member = ?2"
READY += " AND state = 'finished'"
CLOSE_GROUP = "UPDATE groups SET state = ?2, reason = ?3 WHERE id = ?1 AND state = 'open'"
DROP_GROUP = "UPDATE groups SET state = 'dropped', reason = ?2 WHERE id = ?1"
DROP = "UPDATE samples SET state = 'dropped', reason = ?3 WHERE grp = ?1 AND member = ?2"
DROP += " AND state IN ('created', 'running', 'finished', 'ready')"
RESERVE = "INSERT OR REPLACE INTO steps VALUES (?, ?, 'reserved')"
USE = "INSERT OR IGNORE INTO uses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
RESERVE_SAMPLE = "UPDATE samples SET state = 'reserved' WHERE grp = ?1 AND member = ?2"
RESERVE_SAMPLE += " AND state = 'ready'"
APPLY = "UPDATE steps SET state = 'applied' WHERE step = ?1 AND state = 'reserved'"
APPLY_SAMPLES = """
UPDATE samples SET state = 'applied' WHERE state = 'reserved' AND (grp, member) IN (
  SELECT grp, member FROM uses WHERE step = ?1 AND kind IN ('group', 'late'))
"""
CHECKPOINT_SAMPLES = """
UPDATE samples SET state = 'checkpointed'
WHERE state IN ('reserved', 'applied') AND (grp, member) IN (
  SELECT u.grp, u.member FROM uses u JOIN steps s USING (step)
  WHERE u.step < ?1 AND s.state <> 'checkpointed' AND u.kind IN ('group', 'late'))
"""
CHECKPOINT = "UPDATE steps SET state = 'checkpointed' WHERE step < ?1 AND state <> 'checkpointed'"
SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
