-- SPDX-License-Identifier: Apache-2.0
-- The catalog.  Nothing derivable is stored: a version is its topology, its layout and its blob sets; a blob
-- set is its tensors and one row for each rank's file.  The files that ranks see, their sizes and their contents follow
-- from these.
--
-- Until Scalai 1.0 a catalog of an older version is refused, so this file always describes the catalog as it is: whoever
-- changes it raises VERSION_NOW in db.c.
--
-- Ids are never used again (AUTOINCREMENT), except those of jobs: nodeids are made of some ids, and a kernel may remember
-- an id for longer than its row lives (numbers.c).

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
	layout INTEGER, topology TEXT,		-- of the first commit, until there is a head
	root INTEGER NOT NULL			-- number of its folder; those of its ranks follow it
) STRICT;

-- Numbers of jobs are used again once no kernel can remember them.
CREATE TABLE job_number (
	given INTEGER NOT NULL,			-- numbers that were given; after the largest one they begin anew
	before_mount INTEGER NOT NULL		-- how many of those no kernel remembers
) STRICT;
INSERT INTO job_number VALUES (0, 0);

-- Settings; and 'spared', a version's number: older ones are there though keep=N did not keep them, until the head is
-- verified (reshard/command/commands/retention.c).
CREATE TABLE config (
	job INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
	PRIMARY KEY (job, key)
) STRICT, WITHOUT ROWID;

CREATE TABLE version (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	job INTEGER NOT NULL,			-- negative: it was dropped, while somebody may have files of it open
	nr INTEGER NOT NULL, parent INTEGER,
	step INTEGER, note TEXT NOT NULL, made_ns INTEGER NOT NULL, made_by TEXT NOT NULL,
	layout INTEGER NOT NULL, topology TEXT NOT NULL,
	samples INTEGER NOT NULL DEFAULT 0,	-- consumed since training began
	tag TEXT,				-- a tagged version is kept, whatever keep=N says
	request INTEGER,			-- random number of the command that made it: sent again, it is recognised
	tree INTEGER,				-- what is no shard; NULL: nothing
	floor_ns INTEGER NOT NULL DEFAULT 0,	-- ctimes of its files are at least this: a rollback put them back then
	UNIQUE (job, nr)
) STRICT;
CREATE UNIQUE INDEX version_by_tag ON version (job, tag) WHERE tag IS NOT NULL;

-- A set is of the versions that have it, which may be of several jobs: a clone has those of its source.
CREATE TABLE blob_set (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	file TEXT NOT NULL,			-- logical file name
	format TEXT NOT NULL,			-- which describes its files, by name (reshard/codec/format)
	layout INTEGER NOT NULL, topology TEXT NOT NULL,	-- under which it was written
	tensors TEXT NOT NULL,			-- a line each: key, type@byte of a 4 KiB block where it began, shape, digest
	payload TEXT,				-- what is no tensor in its files, as far as all ranks agree
	verified INTEGER NOT NULL,		-- 0 not yet, 1 copies are equal, 2 they differ
	report TEXT NOT NULL,			-- what verification found
	-- Where a tensor of a model in several files was stored depends on how many layers and experts the whole version
	-- had when the set was written.  The set's own tensors need not tell that.
	layers INTEGER NOT NULL DEFAULT 0,	-- 0: the set's tensors tell
	experts INTEGER NOT NULL DEFAULT 0,	-- of families that are spread over files; 0: likewise
	-- A materialized set keeps what ranks gave (table `given`), under the layout and topology in which they wrote.
	given_layout INTEGER,			-- NULL: set_blob has the attributes that ranks gave
	given_topology TEXT,
	given_layers INTEGER NOT NULL DEFAULT 0,	-- as `layers` and `experts`
	given_experts INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE version_set (
	version INTEGER NOT NULL, blob_set INTEGER NOT NULL,
	PRIMARY KEY (version, blob_set)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_set_by_set ON version_set (blob_set);
-- Sets that are stored on a node of a cluster until all nodes let them go, whether a version here has them or not.
CREATE TABLE held_set (blob_set INTEGER PRIMARY KEY, job INTEGER NOT NULL) STRICT;

CREATE TABLE blob (				-- with a file here, but for those that are away and not here
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	bytes INTEGER NOT NULL, hash BLOB,
	checked_s INTEGER NOT NULL DEFAULT 0,	-- when its bytes last had that hash
	damaged INTEGER NOT NULL DEFAULT 0	-- 1: they had not, and nothing could repair them
) STRICT;

-- Blobs whose files tell other sets, in their recovery records, than have them now.  A blob without a hash gets its
-- record with the hash.
CREATE TABLE stale (id INTEGER PRIMARY KEY AUTOINCREMENT, blob INTEGER NOT NULL UNIQUE) STRICT;

-- Blobs of other nodes, each its node's blob `number`: there is no file of them here, or a copy.
CREATE TABLE away (
	blob INTEGER PRIMARY KEY,
	node INTEGER NOT NULL, number INTEGER NOT NULL,
	here INTEGER NOT NULL DEFAULT 0,	-- 1: a copy, on stable storage
	UNIQUE (node, number)
) STRICT;

-- Files of a version that this node of a cluster has made for itself, in place of images: its storage is all nodes'.
CREATE TABLE home (
	version INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL, blob INTEGER NOT NULL,
	PRIMARY KEY (version, rank, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX home_by_blob ON home (blob);

-- What other nodes know by the name of an object (reshard/exchange/objects): a layout, set, tree, payload or dataset.
CREATE TABLE object (
	kind INTEGER NOT NULL,			-- enum meta_object_kind
	id INTEGER NOT NULL,
	name BLOB NOT NULL,			-- SHA-256
	depth INTEGER NOT NULL,			-- of a tree: objects that it is made of, itself included
	PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX object_by_name ON object (name);

CREATE TABLE set_blob (
	blob_set INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL, blob INTEGER NOT NULL,
	mode INTEGER NOT NULL,
	uid INTEGER NOT NULL DEFAULT 0, gid INTEGER NOT NULL DEFAULT 0,
	payload INTEGER NOT NULL DEFAULT 0,	-- 0: none of its own
	step INTEGER NOT NULL,			-- of the commit that took what is in it, the oldest; -1: none was given, -2: not known
	PRIMARY KEY (blob_set, rank, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX set_blob_by_blob ON set_blob (blob);
CREATE INDEX set_blob_by_payload ON set_blob (payload) WHERE payload > 0;

-- What ranks gave the files of a set that was materialized, where that is not the same for all: attributes, payloads.
CREATE TABLE given (
	blob_set INTEGER NOT NULL, rank INTEGER NOT NULL, path INTEGER NOT NULL,
	mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
	payload INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (blob_set, rank, path)
) STRICT, WITHOUT ROWID;
CREATE INDEX given_by_payload ON given (payload) WHERE payload > 0;

-- What is no tensor in a file, of formats in which that is each rank's own.  Equal ones are one.
CREATE TABLE payload (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, bytes BLOB NOT NULL) STRICT;

-- Numbers for nodeids: paths inside rank directories, and views (a version at a topology; '' is its own; before one, '+':
-- with checkpoint folders, '!': as a folder of torch.distributed's).  A view's id
-- is its last place (fs/node/node.h).
CREATE TABLE path (id INTEGER PRIMARY KEY AUTOINCREMENT, text TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE view (
	id INTEGER PRIMARY KEY AUTOINCREMENT, version INTEGER NOT NULL, topology TEXT NOT NULL,
	UNIQUE (version, topology)
) STRICT;

-- Datasets.  A dataset is immutable: what `refresh` takes in is another one of the same name, which a version uses from
-- an epoch on.  Positions belong to versions.
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
CREATE INDEX data_source_by_blob ON data_source (blob) WHERE blob IS NOT NULL;
CREATE INDEX data_source_by_borders ON data_source (borders) WHERE borders IS NOT NULL;

CREATE TABLE version_data (
	version INTEGER NOT NULL, dataset INTEGER NOT NULL,
	from_epoch INTEGER NOT NULL, from_samples INTEGER NOT NULL,	-- used from there on
	PRIMARY KEY (version, dataset)
) STRICT, WITHOUT ROWID;
CREATE INDEX version_data_by_dataset ON version_data (dataset);

-- Trees (trees.h).  Inode numbers, and all numbers to come, are given once in the life of a store, and of a cluster: each
-- node has numbers of its own (nodes.h).
CREATE TABLE counter (name TEXT PRIMARY KEY, next INTEGER NOT NULL) STRICT, WITHOUT ROWID;
INSERT INTO counter VALUES ('number', 1024);	-- smaller ones are the mount's own

-- Whose numbers are whose.
CREATE TABLE number_block (first INTEGER PRIMARY KEY, nr INTEGER NOT NULL, job INTEGER NOT NULL) STRICT;
CREATE INDEX number_block_by_job ON number_block (job);

-- The log's records are here up to this sequence (meta/tree/tail.c).  A new catalog begins anywhere, so that it does
-- not take the log of another one for its own.
CREATE TABLE tail (applied INTEGER NOT NULL) STRICT;
INSERT INTO tail VALUES ((random() & 0x7fffffffffff) << 6);

-- The upper layers: what programs made or changed since their job's version.  A blob with `data` 1 is a file that
-- programs may write to; it is not sealed yet.
CREATE TABLE inode (
	ino INTEGER PRIMARY KEY,
	job INTEGER NOT NULL,
	mode INTEGER NOT NULL,			-- with the type
	uid INTEGER NOT NULL, gid INTEGER NOT NULL, rdev INTEGER NOT NULL,
	nlink INTEGER NOT NULL,			-- 0: it has no name any more, but somebody may hold it
	atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
	parent INTEGER NOT NULL,		-- of a folder; of anything else its rank's or job's folder
	data INTEGER NOT NULL,			-- enum meta_data
	blob INTEGER NOT NULL,			-- of a file, else 0
	target BLOB NOT NULL			-- of a symbolic link, else empty
) STRICT;
CREATE INDEX inode_by_job ON inode (job);
CREATE INDEX inode_without_name ON inode (job) WHERE nlink = 0;
CREATE INDEX inode_by_blob ON inode (blob) WHERE blob <> 0;

CREATE TABLE entry (
	parent INTEGER NOT NULL, name BLOB NOT NULL,
	ino INTEGER NOT NULL,			-- 0: a whiteout
	PRIMARY KEY (parent, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE xattr (
	ino INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,
	PRIMARY KEY (ino, name)
) STRICT, WITHOUT ROWID;

-- What is shown under another number, since a rollback brought something back while somebody held what it was.
CREATE TABLE again (ino INTEGER PRIMARY KEY, number INTEGER NOT NULL UNIQUE) STRICT;

-- The committed layers: what a commit added to tree `base`.  Keys begin with the tree: a commit appends its rows, and a
-- tree is removed as one range.
CREATE TABLE tree (
	id INTEGER PRIMARY KEY AUTOINCREMENT,
	base INTEGER NOT NULL,			-- 0: none
	root INTEGER NOT NULL,			-- number of the job's folder; those of its ranks follow it
	layout INTEGER NOT NULL, topology TEXT NOT NULL,	-- under which its rows of ranks were made
	kept INTEGER NOT NULL DEFAULT 0		-- 1: its recovery record tells its rows (reshard/upkeep/recovery/trees.c)
) STRICT;
CREATE INDEX tree_without_record ON tree (id) WHERE NOT kept;
CREATE INDEX tree_by_base ON tree (base);

CREATE TABLE tree_inode (
	tree INTEGER NOT NULL, ino INTEGER NOT NULL,
	mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, nlink INTEGER NOT NULL,
	atime_ns INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
	parent INTEGER NOT NULL, blob INTEGER NOT NULL, target BLOB NOT NULL,
	PRIMARY KEY (tree, ino)
) STRICT, WITHOUT ROWID;
CREATE INDEX tree_inode_by_blob ON tree_inode (blob) WHERE blob <> 0;

CREATE TABLE tree_entry (
	tree INTEGER NOT NULL, parent INTEGER NOT NULL, name BLOB NOT NULL,
	ino INTEGER NOT NULL,			-- 0: a whiteout
	PRIMARY KEY (tree, parent, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX tree_entry_by_ino ON tree_entry (ino) WHERE ino <> 0;
-- The files that say what is in a checkpoint folder (reshard/checkpoint/folders/folder.h).
CREATE INDEX tree_entry_marker ON tree_entry (tree, parent, name) WHERE name IN (
	CAST('.metadata' AS BLOB), CAST('mp_rank_00_model_states.pt' AS BLOB),
	CAST('zero_pp_rank_0_mp_rank_00_model_states.pt' AS BLOB));

CREATE TABLE tree_xattr (
	tree INTEGER NOT NULL, ino INTEGER NOT NULL, name BLOB NOT NULL, value BLOB NOT NULL,
	PRIMARY KEY (tree, ino, name)
) STRICT, WITHOUT ROWID;

-- What this store is, among all that there are: a node's number belongs to one store (reshard/cluster/peers/boot.c).  A copy
-- is the same one, a catalog that was made anew is another.
CREATE TABLE identity (store BLOB NOT NULL) STRICT;
INSERT INTO identity VALUES (randomblob(16));

-- A store that is a node of a cluster (reshard/cluster/node), and the jobs that it shares with the others.
CREATE TABLE member (
	cluster TEXT NOT NULL, node INTEGER NOT NULL,
	id BLOB NOT NULL,			-- of the cluster, which it has from its first node
	era INTEGER NOT NULL DEFAULT 0,		-- of etcd's keys: they were made anew from a backup so often
	revision INTEGER NOT NULL DEFAULT 0,	-- the highest of etcd, in this era, of which something was taken
	backup_era INTEGER NOT NULL DEFAULT 0,	-- era and revision of the backup; 0: there is none
	backup INTEGER NOT NULL DEFAULT 0,
	lease INTEGER NOT NULL DEFAULT 0	-- of etcd, of the daemon that ran last
) STRICT;
-- A backup of the cluster's keys of etcd, all at one revision: part 0.  Part 1 is one that is being read.
CREATE TABLE backup_key (
	part INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,
	UNIQUE (part, key)
) STRICT;
CREATE TABLE shared_job (
	job INTEGER PRIMARY KEY, id INTEGER NOT NULL UNIQUE,	-- id: in the cluster
	token INTEGER NOT NULL DEFAULT 0, base INTEGER NOT NULL DEFAULT 0	-- of a commit without an outcome
) STRICT;
