-- SPDX-License-Identifier: Apache-2.0
-- Version 2 of the catalog: datasets.  A dataset is immutable: what refresh takes in is another one
-- of the same name, which a version uses from an epoch on.  Positions belong to versions.

ALTER TABLE version ADD COLUMN samples INTEGER NOT NULL DEFAULT 0;	-- consumed since training began

CREATE TABLE dataset (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	name TEXT NOT NULL,
	spec TEXT NOT NULL,			-- options: key=value words
	form TEXT NOT NULL,			-- what all sources agree on, in the words of their format
	uid INTEGER NOT NULL, gid INTEGER NOT NULL	-- who added it: sources are opened as that user
) STRICT;

CREATE TABLE data_source (
	dataset INTEGER NOT NULL, nr INTEGER NOT NULL,
	path TEXT NOT NULL,
	blob INTEGER,				-- its copy in the store, NULL: it stays where it is
	bytes INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ends BLOB,	-- what it was; hash of its two ends
	samples INTEGER NOT NULL, sequences INTEGER NOT NULL,
	first INTEGER NOT NULL,			-- byte at which its samples begin
	bare INTEGER NOT NULL,			-- its last line has no newline
	borders INTEGER,			-- blob: where samples begin, NULL: they are of one size
	PRIMARY KEY (dataset, nr)
) STRICT, WITHOUT ROWID;

CREATE TABLE version_data (
	version INTEGER NOT NULL, dataset INTEGER NOT NULL,
	from_epoch INTEGER NOT NULL, from_samples INTEGER NOT NULL,	-- used from there on
	PRIMARY KEY (version, dataset)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_data_by_dataset ON version_data (dataset);
