/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: the database STORE/scalai.db (schema.sql describes each table).  This room is the only
 * user of SQLite.  There is one connection behind one lock; a transaction holds the lock.
 *
 * Thread: any.  Errors: SC_E_CATALOG with SQLite's message (SC_E_CORRUPT when the file is no good
 * catalog, SC_E_NO_SPACE when the disk is full), SC_E_NOT_FOUND, SC_E_EXISTS, SC_E_NO_MEMORY.
 */
#ifndef META_CATALOG_H
#define META_CATALOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "meta/base/err.h"

struct meta_catalog;

#define META_SHARED INT64_C(-1)	/* the "rank" of files of the job itself */

/** Tells whether there is a database with tables at a path.  One that cannot be read counts: who opens it says why. */
bool meta_catalog_is_made(const char *path);
/** Opens the database; refuses one of another version.  Makes a missing or empty database only if `may_be_new`. */
int meta_catalog_open(const char *path, bool may_be_new, struct meta_catalog **ret, struct sc_err *err);
struct meta_catalog *meta_catalog_close(struct meta_catalog *c);

/** Begins a transaction.  If `durable`, it is on stable storage when meta_catalog_end() returns 0. */
int meta_catalog_begin(struct meta_catalog *c, bool durable, struct sc_err *err);
/** Commits when rc is 0, else rolls back; returns rc or the commit's error. */
int meta_catalog_end(struct meta_catalog *c, int rc, struct sc_err *err);

/** Hold and release the catalog.  In between no other thread reads or writes, so several calls read one state of it,
 *  and a call costs a third of what it costs alone.  A transaction may not be begun in between. */
void meta_catalog_hold(struct meta_catalog *c);
void meta_catalog_release(struct meta_catalog *c);

/** Flushes transactions that were committed without `durable`. */
int meta_catalog_flush(struct meta_catalog *c, struct sc_err *err);
/** Reserves room in the write-ahead log, once, so that transactions pass on a full disk: to free space takes one,
 *  too.  A file system without fallocate has no such room.  Thread: one.  Errors: SC_E_NO_SPACE, SC_E_SYSTEM; call
 *  it again. */
int meta_catalog_reserve(struct meta_catalog *c, struct sc_err *err);

/* --- rows --- */

struct meta_job_row {
	uint64_t id;
	const char *name;
	uid_t uid;
	gid_t gid;
	mode_t mode;
	int64_t made_ns;
	uint64_t head;		/* version, 0: none yet */
	uint64_t layout;	/* of the first commit, 0: none */
	const char *topology;	/* likewise, NULL: none */
	uint64_t root;		/* number of its folder; those of the SC_RANKS_MAX folders of its ranks follow it */
};

struct meta_version_row {
	uint64_t id, job, nr, parent;
	int64_t step;		/* -1: none */
	uint64_t samples;	/* of datasets, consumed since training began */
	const char *note;
	int64_t made_ns;
	const char *made_by;
	uint64_t layout;
	const char *topology;
	const char *tag;	/* NULL: none */
	uint64_t request;	/* random number of the command that made the version, 0: none */
	uint64_t tree;		/* what is no shard (trees.h), 0: nothing */
	int64_t floor_ns;	/* ctimes of its files are at least this */
};

enum meta_verified { META_UNVERIFIED, META_EQUAL, META_DIFFER };

struct meta_set_row {
	uint64_t id;
	const char *file;
	uint64_t layout;
	const char *format;		/* of the set's files, by name */
	const char *topology, *tensors;
	const char *payload;		/* NULL: none */
	uint32_t layers, experts;	/* of the whole version; 0: count the set's own tensors */
	uint64_t given_layout;		/* of the files that `given` rows describe; 0: no such rows */
	const char *given_topology;	/* likewise, NULL: none */
	uint32_t given_layers, given_experts;	/* likewise */
	enum meta_verified verified;
	const char *report;
};

struct meta_set_blob_row {
	int64_t rank;
	uint64_t path, blob, bytes;	/* a `given` row has only the path */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	uint64_t payload;		/* 0: none */
	int64_t step;			/* as in the table; of no `given` row */
	bool taken;			/* from another node: `step` is meant unless a set here has the blob already */
};
#define META_STEP_UNKNOWN (-2)

struct meta_view_row {
	uint64_t id, version;
	const char *topology;	/* "": that of the version */
};

struct meta_dataset_row {
	uint64_t id;
	const char *name, *spec, *form;
	uid_t uid;
	gid_t gid;
	uint64_t from_epoch, from_samples;	/* from where on a version uses the dataset */
};

struct meta_data_source_row {
	const char *path;
	uint64_t blob;		/* its copy in the store, 0: none */
	uint64_t bytes;
	int64_t mtime_ns;
	uint8_t ends[16];	/* hash of the source's first and last bytes */
	uint64_t samples, sequences, first;
	bool bare;
	uint64_t borders;	/* blob, 0: samples of one size */
};

/* Rows are handed to callbacks; their texts are valid during the call.  A callback that returns
 * non-zero ends the walk, and that value is returned. */
typedef int meta_job_fn(void *arg, const struct meta_job_row *row);
typedef int meta_config_fn(void *arg, const char *key, const char *value);
typedef int meta_version_fn(void *arg, const struct meta_version_row *row);
typedef int meta_set_fn(void *arg, const struct meta_set_row *row);
typedef int meta_set_blob_fn(void *arg, const struct meta_set_blob_row *row);
typedef int meta_view_fn(void *arg, const struct meta_view_row *row);
typedef int meta_dataset_fn(void *arg, const struct meta_dataset_row *row);
typedef int meta_data_source_fn(void *arg, const struct meta_data_source_row *row);
typedef int meta_text_fn(void *arg, uint64_t id, const char *text, const char *more);
typedef int meta_id_fn(void *arg, uint64_t id);

int meta_job_each(struct meta_catalog *c, meta_job_fn *fn, void *arg, struct sc_err *err);
/** Adds a job, which is on stable storage then; sets row->id.  row->root is the number of its folder on all nodes; if
 *  it is 0, it is set, and numbers for the folder and for those of its ranks are taken. */
int meta_job_add(struct meta_catalog *c, struct meta_job_row *row, struct sc_err *err);
/** Removes the job and all rows that belong to it, its upper layer too; its trees and blobs become garbage.  Inside a
 *  transaction. */
int meta_job_remove(struct meta_catalog *c, uint64_t job, struct sc_err *err);
/**
 * Adds a job with all versions of the job `source`, which share sets and datasets with it; config, layout, owner and
 * tags are those of the source.  Trees are copied, with numbers of the new job: no object belongs to both jobs.
 * `request` is that of the command, kept with the head (0: none).  The new versions have no views yet, and the new job
 * has no upper layer.  Call it inside a transaction, which should be durable (meta_numbers_take()).
 */
int meta_job_clone(struct meta_catalog *c, uint64_t source, const char *name, int64_t made_ns, uint64_t request,
		   uint64_t *ret_id, uint64_t *ret_root, struct sc_err *err);
int meta_job_set_head(struct meta_catalog *c, uint64_t job, uint64_t version, struct sc_err *err);
int meta_job_set_first(struct meta_catalog *c, uint64_t job, uint64_t layout, const char *topology,
		       struct sc_err *err);
int meta_job_set_attr(struct meta_catalog *c, uint64_t job, mode_t mode, uid_t uid, gid_t gid,
		      struct sc_err *err);
int meta_job_set_name(struct meta_catalog *c, uint64_t job, const char *name, struct sc_err *err);

/* --- stale.c: blobs whose recovery records, which their files have, are to be written anew --- */

#define META_STALE_MAX 1000	/* in one walk */
struct meta_stale {
	uint64_t id, blob;	/* id: of the note; a blob that is noted again gets another one */
};
typedef int meta_stale_fn(void *arg, const struct meta_stale *stale);
/** Notes the blobs of a job's version (0: of all) that versions of other jobs have, too.  Inside the transaction in
 *  which the job begins or ceases to have it, while both have them. */
int meta_stale_note_job(struct meta_catalog *c, uint64_t job, uint64_t version, struct sc_err *err);
/** Notes the blobs of a new set that have a hash, and so a record, already.  Inside the transaction that adds it. */
int meta_stale_note_set(struct meta_catalog *c, uint64_t set, struct sc_err *err);
/** Notes the blobs of a version that is the head again: the records in their files may name other sets first, or alone.
 *  Looks up each of them.  Inside the transaction that adds the version. */
int meta_stale_note_version(struct meta_catalog *c, uint64_t version, struct sc_err *err);
/** Notes the blobs and the trees of all versions of a job whose name, owner or mode changes, as their records say
 *  these.  Inside the transaction that changes them. */
int meta_stale_note_named(struct meta_catalog *c, uint64_t job, struct sc_err *err);
/** Walks over META_STALE_MAX notes at most, the oldest first. */
int meta_stale_each(struct meta_catalog *c, meta_stale_fn *fn, void *arg, struct sc_err *err);
/** Drops a note, unless the blob was noted again. */
int meta_stale_drop(struct meta_catalog *c, const struct meta_stale *stale, struct sc_err *err);

int meta_config_each(struct meta_catalog *c, uint64_t job, meta_config_fn *fn, void *arg,
		     struct sc_err *err);
int meta_config_set(struct meta_catalog *c, uint64_t job, const char *key, const char *value,
		    struct sc_err *err);
/** Keep, and give, the number of the oldest version that keep= keeps, if an older one stays until the head is verified;
 *  0: none does. */
int meta_job_set_spared(struct meta_catalog *c, uint64_t job, uint64_t before, struct sc_err *err);
int meta_job_spared(struct meta_catalog *c, uint64_t job, uint64_t *ret_before, struct sc_err *err);

/** Finds the layout, or adds it. */
int meta_layout_put(struct meta_catalog *c, const char *source, const char *flat, uint64_t *ret_id,
		    struct sc_err *err);
/** Calls `fn` with the source as `text` and the flat text as `more`. */
int meta_layout_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		    struct sc_err *err);

/** Adds a version; sets row->id, and row->nr, if that is 0, to the job's next number.  Errors: SC_E_EXISTS (the job
 *  has a version of that number). */
int meta_version_add(struct meta_catalog *c, struct meta_version_row *row, struct sc_err *err);
/** Tells whether the command with this random number has made a version: 1, 0 or an error. */
int meta_version_requested(struct meta_catalog *c, uint64_t request, struct sc_err *err);
int meta_version_get(struct meta_catalog *c, uint64_t id, meta_version_fn *fn, void *arg,
		     struct sc_err *err);
/** Tells whether copies of a version are known to differ: 1, 0 or an error. */
int meta_version_differs(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** Tells whether all sets of a version were verified, and are right: 1, 0 or an error. */
int meta_version_is_right(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** Tells whether a file of a version, or of a version below its tree, is marked as damaged: 1, 0 or an error. */
int meta_version_is_damaged(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** Walks over the versions of a job, oldest first. */
int meta_version_each(struct meta_catalog *c, uint64_t job, meta_version_fn *fn, void *arg,
		      struct sc_err *err);
/** Finds the row of a job's version by its number; *ret 0: the job has none of it. */
int meta_version_find(struct meta_catalog *c, uint64_t job, uint64_t nr, uint64_t *ret, struct sc_err *err);
/** Sets the tag of a version, or removes it (NULL).  Errors: SC_E_EXISTS (another version of the job has the tag). */
int meta_version_set_tag(struct meta_catalog *c, uint64_t id, const char *tag, struct sc_err *err);
/** Gives a version another tree. */
int meta_version_set_tree(struct meta_catalog *c, uint64_t id, uint64_t tree, struct sc_err *err);
int meta_version_set_floor(struct meta_catalog *c, uint64_t id, int64_t floor_ns, struct sc_err *err);
/** Takes a version from its job, but keeps its rows: only meta_version_get(), its views and garbage still know it. */
int meta_version_hide(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** Gives it back to its job. */
int meta_version_unhide(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** Walks over the versions that are hidden, of all jobs. */
int meta_version_hidden(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err);
/** Removes the rows of a version, hidden or not. */
int meta_version_remove(struct meta_catalog *c, uint64_t id, struct sc_err *err);
int meta_version_add_set(struct meta_catalog *c, uint64_t version, uint64_t set,
			 struct sc_err *err);
int meta_version_replace_set(struct meta_catalog *c, uint64_t version, uint64_t old_set,
			     uint64_t new_set, struct sc_err *err);
int meta_version_sets(struct meta_catalog *c, uint64_t version, meta_set_fn *fn, void *arg,
		      struct sc_err *err);

int meta_set_add(struct meta_catalog *c, const struct meta_set_row *row, uint64_t *ret_id,
		 struct sc_err *err);
int meta_set_set_verified(struct meta_catalog *c, uint64_t set, enum meta_verified verified,
			  const char *tensors, const char *report, struct sc_err *err);
int meta_set_add_blob(struct meta_catalog *c, uint64_t set, const struct meta_set_blob_row *row,
		      struct sc_err *err);
/** Walks over the files of a set, by rank, then path. */
int meta_set_blobs(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg,
		   struct sc_err *err);
/** Adds a payload, or finds one that is equal.  Inside the transaction that adds a row with its number; one that no
 *  row has is garbage. */
int meta_payload_put(struct meta_catalog *c, const void *payload, size_t bytes, uint64_t *ret_id, struct sc_err *err);
/** Calls `fn` with a payload.  Errors: SC_E_NOT_FOUND, SC_E_CORRUPT (not the bytes that were stored), those of `fn`. */
typedef int meta_payload_fn(void *arg, const void *payload, size_t bytes);
int meta_payload_get(struct meta_catalog *c, uint64_t id, meta_payload_fn *fn, void *arg, struct sc_err *err);
/** Add, and walk over (by rank, then path), the attributes that ranks gave the files of a set that was materialized. */
int meta_set_add_given(struct meta_catalog *c, uint64_t set, const struct meta_set_blob_row *row, struct sc_err *err);
int meta_set_given(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg, struct sc_err *err);

/* (catalog_data.c) Datasets are immutable; a dataset that no version uses is garbage. */
int meta_dataset_add(struct meta_catalog *c, const struct meta_dataset_row *row, uint64_t *ret_id,
		     struct sc_err *err);
int meta_dataset_add_source(struct meta_catalog *c, uint64_t dataset, uint64_t nr,
			    const struct meta_data_source_row *row, struct sc_err *err);
int meta_version_add_data(struct meta_catalog *c, uint64_t version, uint64_t dataset,
			  uint64_t from_epoch, uint64_t from_samples, struct sc_err *err);
/** Walks over the datasets of a version, by name, then epoch. */
int meta_version_data(struct meta_catalog *c, uint64_t version, meta_dataset_fn *fn, void *arg,
		      struct sc_err *err);
int meta_dataset_sources(struct meta_catalog *c, uint64_t dataset, meta_data_source_fn *fn, void *arg,
			 struct sc_err *err);

/** Takes a number for a blob whose file is made before its row, by meta_blob_adopt(); nobody else gets the number while
 *  the catalog is open.  Errors: SC_E_LIMIT. */
int meta_blob_take(struct meta_catalog *c, uint64_t *ret_id, struct sc_err *err);
int meta_blob_add(struct meta_catalog *c, uint64_t *ret_id, struct sc_err *err);
/** Seals a blob: its bytes do not change any more. */
int meta_blob_seal(struct meta_catalog *c, uint64_t blob, uint64_t bytes, struct sc_err *err);
/** Records that a blob was read at this time (seconds since 1970).  `hash16`: the hash that its bytes have or, if it is
 *  `damaged`, should have (NULL: not known). */
int meta_blob_checked(struct meta_catalog *c, uint64_t blob, const void *hash16, int64_t seconds, bool damaged,
		      struct sc_err *err);
/**
 * Removes sets, datasets and trees that no version uses, and blobs that no set, dataset, tree or upper layer uses,
 * unless `on_blob` returns 1 for a blob: it is in use.  It is not asked about blobs that are away (nodes.h).  A file of
 * an upper layer that has no name any more uses its blob, until its row is dropped.
 */
int meta_garbage(struct meta_catalog *c, meta_id_fn *on_blob, void *arg, struct sc_err *err);
struct meta_blob_row {
	uint64_t id, bytes;
	const uint8_t *hash;	/* 16 bytes, NULL: not known yet */
	bool work;		/* of a file of an upper layer, which a program may write to */
	bool away;		/* another node has its bytes (nodes.h): there is no file here */
	bool garbage;		/* nothing uses it any more */
	bool damaged;		/* and no replica could repair it */
};
/** A rank's or job's file, or a dataset, that uses a blob. */
struct meta_blob_use {
	const char *job, *topology, *path;
	uint64_t version;
	int64_t rank;		/* META_SHARED: a file of the job itself, or a dataset */
};

typedef int meta_blob_fn(void *arg, const struct meta_blob_row *row);
/** The contents of the recovery record of a blob, for the newest set of each file and job that uses the blob. */
struct meta_blob_record {
	const char *job, *file, *topology, *path;
	uint64_t uid, gid, job_mode, set, layout;
	uint32_t layers, experts;	/* of the whole version, as in struct meta_set_row */
	int64_t rank, step;	/* step -1: none */
	uint64_t mode, file_uid, file_gid;	/* of this rank's file */
};
typedef int meta_blob_record_fn(void *arg, const struct meta_blob_record *row);
typedef int meta_blob_use_fn(void *arg, const struct meta_blob_use *use);
/* The next three fill only id, bytes and hash of the row. */
/** Calls `fn` for a blob, if it is sealed, and its bytes are here. */
int meta_blob_sealed(struct meta_catalog *c, uint64_t blob, meta_blob_fn *fn, void *arg, struct sc_err *err);
/** Walks over the sealed blobs here that have no hash yet. */
int meta_blob_unhashed(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err);
/** Walks over the blobs that were last read before that time, and damaged ones that were read before the other: damaged
 *  ones first, then oldest first, at most a thousand. */
int meta_blob_due(struct meta_catalog *c, int64_t before_s, int64_t damaged_before_s, meta_blob_fn *fn, void *arg,
		  struct sc_err *err);
int meta_blob_damaged(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err);
/** Walks over other blobs with the same size and hash. */
int meta_blob_twins(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, meta_id_fn *fn,
		    void *arg, struct sc_err *err);
/** Finds an older blob of the same job, rank and file with the same size and hash (of a tree: of the same number or
 *  name in the trees before); 0: none. */
int meta_blob_same_before(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, uint64_t *ret,
			  struct sc_err *err);
/**
 * Walks over the ranks of the newest set (or the head's) of each file and job that uses a blob: sets of heads first,
 * then from new to old, ranks in order.  Walks in the same way over those of each other blob with these bytes (their
 * hash is given) in the same place of other sets of its jobs, and of clones: a rank that wrote the bytes again shares
 * the file (meta_blob_same_before()), so the record in the file is about all of them.
 */
int meta_blob_record(struct meta_catalog *c, uint64_t blob, const void *hash16, meta_blob_record_fn *fn, void *arg,
		     struct sc_err *err);
enum meta_numbered { META_NUMBERED_BLOB, META_NUMBERED_TREE };
/** Gives the last number that blobs, or trees, of this catalog ever had; 0: there was none. */
int meta_last_number(struct meta_catalog *c, enum meta_numbered of, uint64_t *ret, struct sc_err *err);
/** Makes it durable that a blob or tree had this number; it has a row.  No catalog that a power cut leaves has a
 *  smaller last number afterwards.  Flushes the catalog once for all numbers that there are. */
int meta_number_flush(struct meta_catalog *c, enum meta_numbered of, uint64_t number, struct sc_err *err);
/** Keeps numbers up to `last` from being given to new blobs. */
int meta_blob_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err);
/** Keeps numbers up to `last` from being given to new sets. */
int meta_set_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err);
/** Adds a row for a blob whose file exists. */
int meta_blob_adopt(struct meta_catalog *c, uint64_t blob, struct sc_err *err);
/** Replaces `blob` by `other`, which has the same bytes, in all sets, trees and upper layers, and removes the row of
 *  `blob`. */
int meta_blob_become(struct meta_catalog *c, uint64_t blob, uint64_t other, struct sc_err *err);
/** Walks over the files that use a blob: those of sets and datasets, then those of trees; newest versions first. */
int meta_blob_uses(struct meta_catalog *c, uint64_t blob, meta_blob_use_fn *fn, void *arg, struct sc_err *err);
int meta_blob_each(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err);
/** Calls `fn` with each problem that SQLite's integrity check finds, and with each row that refers to a missing one. */
int meta_catalog_check(struct meta_catalog *c, meta_text_fn *fn, void *arg, struct sc_err *err);
/** Gives the hash of a blob: 1, 0 (not known yet) or an error. */
int meta_blob_hash(struct meta_catalog *c, uint64_t blob, uint8_t ret[16], struct sc_err *err);
/** Tells whether the catalog has this blob: 1, 0 or an error. */
int meta_blob_known(struct meta_catalog *c, uint64_t blob, struct sc_err *err);
/** Gives the size of a sealed blob (0 of one that is not).  Errors: SC_E_NOT_FOUND. */
int meta_blob_bytes(struct meta_catalog *c, uint64_t blob, uint64_t *ret, struct sc_err *err);

/** Finds a path, or adds it.  Nodeids are made of ids (numbers.c): functions that add rows fail with SC_E_LIMIT when
 *  all ids are used up. */
int meta_path_put(struct meta_catalog *c, const char *text, uint64_t *ret_id, struct sc_err *err);
int meta_path_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		  struct sc_err *err);
/** Finds or adds the view of a version at a topology ("": its own).  A view takes one number for each of its ranks; its
 *  id is the last of them. */
int meta_view_put(struct meta_catalog *c, uint64_t version, const char *topology, uint32_t ranks, uint64_t *ret_id,
		  struct sc_err *err);
int meta_view_own(struct meta_catalog *c, uint64_t version, uint64_t *ret_id, struct sc_err *err);
/** Finds the view that the number `place` belongs to: the one with the lowest id from `place` on. */
int meta_view_at(struct meta_catalog *c, uint64_t place, meta_view_fn *fn, void *arg, struct sc_err *err);
/** Tells the catalog, before anything of it is shown, that no kernel remembers a number: numbers of removed jobs, and
 *  of paths that no row names any more, may be given again. */
int meta_mount_begins(struct meta_catalog *c, struct sc_err *err);

#endif
