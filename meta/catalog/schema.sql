-- SPDX-License-Identifier: Apache-2.0
-- The catalog, version 1.  Nothing derivable is stored: a version is its topology, its layout and
-- its blob sets; a blob set is its tensors and one row a rank file.  Files of ranks, their sizes
-- and their contents follow from these.
--
-- Ids are never used again (AUTOINCREMENT), but those of jobs: nodeids are made of some, and a kernel may
-- remember one for longer than a row lives (numbers.c).

CREATE TABLE layout (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	source TEXT NOT NULL,			-- as the user wrote it
	flat TEXT NOT NULL,			-- without presets and variables: what it means
	UNIQUE (source, flat)
) STRICT;

CREATE TABLE job (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL UNIQUE,
	uid INTEGER NOT NULL, gid INTEGER NOT NULL, mode INTEGER NOT NULL,
	made_ns INTEGER NOT NULL,
	head INTEGER,				-- version
	layout INTEGER, topology TEXT		-- of the first commit, until there is a head
) STRICT;

CREATE TABLE config (
	job INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
	PRIMARY KEY (job, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE version (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	job INTEGER NOT NULL, nr INTEGER NOT NULL, parent INTEGER,
	step INTEGER, note TEXT NOT NULL, made_ns INTEGER NOT NULL, made_by TEXT NOT NULL,
	layout INTEGER NOT NULL, topology TEXT NOT NULL,
	UNIQUE (job, nr)
) STRICT;

CREATE TABLE blob_set (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	job INTEGER NOT NULL,
	file TEXT NOT NULL,			-- logical file name
	kind INTEGER NOT NULL,			-- 0 tensors, 1 plain file, 2 plain file of the job itself
	layout INTEGER NOT NULL, topology TEXT NOT NULL,	-- under which it was written
	tensors TEXT NOT NULL,			-- a line each: key, type, shape, hash
	metadata TEXT,				-- of safetensors files, as far as all ranks agree
	verified INTEGER NOT NULL,		-- 0 not yet, 1 copies are equal, 2 they differ
	report TEXT NOT NULL			-- what verification found
) STRICT;

CREATE TABLE version_set (
	version INTEGER NOT NULL, blob_set INTEGER NOT NULL,
	PRIMARY KEY (version, blob_set)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_set_by_set ON version_set (blob_set);

CREATE TABLE blob (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	bytes INTEGER NOT NULL, hash BLOB
) STRICT;

CREATE TABLE set_blob (
	blob_set INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL, blob INTEGER NOT NULL,
	mode INTEGER NOT NULL,
	PRIMARY KEY (blob_set, rank, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX set_blob_by_blob ON set_blob (blob);

-- The working trees: what ranks have written since the last version.  The bytes of a file are in
-- blob `id`, not sealed yet.
CREATE TABLE work (
	id INTEGER PRIMARY KEY,
	job INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL,
	kind INTEGER NOT NULL,			-- 0 file, 1 folder, 2 symbolic link, 3 removed
	target TEXT,				-- of a symbolic link
	mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, mtime_ns INTEGER NOT NULL,
	UNIQUE (job, rank, path)
) STRICT;

-- Numbers for nodeids: paths inside rank directories, and views (a version at a topology; '' is
-- its own).
CREATE TABLE path (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE view (
	id INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, topology TEXT NOT NULL,
	UNIQUE (version, topology)
) STRICT;
