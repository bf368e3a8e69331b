/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalog: what Scalai remembers, in STORE/scalai.db (schema.sql says what each table is).
 * The only user of SQLite.  One connection behind one lock; a transaction holds it.
 *
 * Thread: any.  Errors: SC_E_CATALOG with SQLite's own words (SC_E_NO_SPACE when the disk is
 * full), SC_E_NOT_FOUND, SC_E_EXISTS, SC_E_NO_MEMORY.
 */
#ifndef META_CATALOG_H
#define META_CATALOG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "meta/base/err.h"

struct meta_catalog;

#define META_SHARED INT64_C(-1)	/* the "rank" of files of the job itself */

/** Opens the database; one of another version is refused.  An empty one, or none, is made only if `may_be_new`. */
int meta_catalog_open(const char *path, bool may_be_new, struct meta_catalog **ret, struct sc_err *err);
struct meta_catalog *meta_catalog_close(struct meta_catalog *c);

/** A transaction; `durable`: on stable storage when meta_catalog_commit returns. */
int meta_catalog_begin(struct meta_catalog *c, bool durable, struct sc_err *err);
/** Commits when rc is 0, else rolls back; returns rc or the commit's error. */
int meta_catalog_end(struct meta_catalog *c, int rc, struct sc_err *err);

/** Between these, no other thread reads or writes: what several calls read is of one state. */
void meta_catalog_hold(struct meta_catalog *c);
void meta_catalog_release(struct meta_catalog *c);

/** What was committed without `durable` is on stable storage, too, when this returns. */
int meta_catalog_flush(struct meta_catalog *c, struct sc_err *err);

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
	uint64_t request;	/* of the command that made it, 0: none */
};

enum meta_set_kind { META_SET_TENSORS, META_SET_PLAIN, META_SET_SHARED };
enum meta_verified { META_UNVERIFIED, META_EQUAL, META_DIFFER };

struct meta_set_row {
	uint64_t id, job;
	const char *file;
	enum meta_set_kind kind;
	uint64_t layout;
	const char *topology, *tensors, *metadata;
	uint32_t layers, experts;	/* of the whole version for which it was written, 0: its tensors tell */
	uint64_t given_layout;		/* under which ranks gave their files the attributes of `given` rows; 0: none */
	const char *given_topology;	/* likewise, NULL: none */
	uint32_t given_layers, given_experts;	/* likewise */
	enum meta_verified verified;
	const char *report;
};

struct meta_set_blob_row {
	int64_t rank;
	uint64_t path, blob, bytes;	/* of a `given` row: only the path */
	mode_t mode;
	uid_t uid;
	gid_t gid;
};

enum meta_work_kind { META_WORK_FILE, META_WORK_DIR, META_WORK_LINK, META_WORK_GONE };

struct meta_view_row {
	uint64_t id, version;
	const char *topology;	/* '': the version's own */
};

struct meta_work_row {
	uint64_t id;		/* the blob's */
	uint64_t job;
	int64_t rank;
	uint64_t path;
	enum meta_work_kind kind;
	const char *target;
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t mtime_ns;
};

struct meta_dataset_row {
	uint64_t id;
	const char *name, *spec, *form;
	uid_t uid;
	gid_t gid;
	uint64_t from_epoch, from_samples;	/* of a version's use of it */
};

struct meta_data_source_row {
	const char *path;
	uint64_t blob;		/* its copy in the store, 0: none */
	uint64_t bytes;
	int64_t mtime_ns;
	uint8_t ends[16];	/* hash of its two ends */
	uint64_t samples, sequences, first;
	bool bare;
	uint64_t borders;	/* blob, 0: samples of one size */
};

/* Rows are handed to callbacks; their texts are valid during the call.  A callback that answers
 * non-zero ends the walk, and its answer is returned. */
typedef int meta_job_fn(void *arg, const struct meta_job_row *row);
typedef int meta_config_fn(void *arg, const char *key, const char *value);
typedef int meta_version_fn(void *arg, const struct meta_version_row *row);
typedef int meta_set_fn(void *arg, const struct meta_set_row *row);
typedef int meta_set_blob_fn(void *arg, const struct meta_set_blob_row *row);
typedef int meta_work_fn(void *arg, const struct meta_work_row *row);
typedef int meta_view_fn(void *arg, const struct meta_view_row *row);
typedef int meta_dataset_fn(void *arg, const struct meta_dataset_row *row);
typedef int meta_data_source_fn(void *arg, const struct meta_data_source_row *row);
typedef int meta_text_fn(void *arg, uint64_t id, const char *text, const char *more);
typedef int meta_id_fn(void *arg, uint64_t id);

int meta_job_each(struct meta_catalog *c, meta_job_fn *fn, void *arg, struct sc_err *err);
int meta_job_add(struct meta_catalog *c, const struct meta_job_row *row, uint64_t *ret_id,
		 struct sc_err *err);
/** Removes the job and all rows that are its own; its blobs are then garbage. */
int meta_job_remove(struct meta_catalog *c, uint64_t job, struct sc_err *err);
int meta_job_set_head(struct meta_catalog *c, uint64_t job, uint64_t version, struct sc_err *err);
int meta_job_set_first(struct meta_catalog *c, uint64_t job, uint64_t layout, const char *topology,
		       struct sc_err *err);
int meta_job_set_attr(struct meta_catalog *c, uint64_t job, mode_t mode, uid_t uid, gid_t gid,
		      struct sc_err *err);
int meta_job_set_name(struct meta_catalog *c, uint64_t job, const char *name, struct sc_err *err);

int meta_config_each(struct meta_catalog *c, uint64_t job, meta_config_fn *fn, void *arg,
		     struct sc_err *err);
int meta_config_set(struct meta_catalog *c, uint64_t job, const char *key, const char *value,
		    struct sc_err *err);

/** Finds or adds. */
int meta_layout_put(struct meta_catalog *c, const char *source, const char *flat, uint64_t *ret_id,
		    struct sc_err *err);
/** `text` is the source, `more` the flat text. */
int meta_layout_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		    struct sc_err *err);

/** row->id is set; row->nr is the next of the job. */
int meta_version_add(struct meta_catalog *c, struct meta_version_row *row, struct sc_err *err);
/** Has this command made a version? 1, 0 or an error. */
int meta_version_requested(struct meta_catalog *c, uint64_t request, struct sc_err *err);
int meta_version_get(struct meta_catalog *c, uint64_t id, meta_version_fn *fn, void *arg,
		     struct sc_err *err);
/** Of a job, oldest first. */
int meta_version_each(struct meta_catalog *c, uint64_t job, meta_version_fn *fn, void *arg,
		      struct sc_err *err);
/** NULL takes it away.  SC_E_EXISTS: another version of the job has it. */
int meta_version_set_tag(struct meta_catalog *c, uint64_t id, const char *tag, struct sc_err *err);
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
/** By rank, then path. */
int meta_set_blobs(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg,
		   struct sc_err *err);
/** The attributes that ranks gave their files, where others store the bytes now; likewise. */
int meta_set_add_given(struct meta_catalog *c, uint64_t set, const struct meta_set_blob_row *row, struct sc_err *err);
int meta_set_given(struct meta_catalog *c, uint64_t set, meta_set_blob_fn *fn, void *arg, struct sc_err *err);

/* catalog_data.c: datasets are immutable; those that no version uses are garbage */
int meta_dataset_add(struct meta_catalog *c, const struct meta_dataset_row *row, uint64_t *ret_id,
		     struct sc_err *err);
int meta_dataset_add_source(struct meta_catalog *c, uint64_t dataset, uint64_t nr,
			    const struct meta_data_source_row *row, struct sc_err *err);
int meta_version_add_data(struct meta_catalog *c, uint64_t version, uint64_t dataset,
			  uint64_t from_epoch, uint64_t from_samples, struct sc_err *err);
/** By name, then epoch. */
int meta_version_data(struct meta_catalog *c, uint64_t version, meta_dataset_fn *fn, void *arg,
		      struct sc_err *err);
int meta_dataset_sources(struct meta_catalog *c, uint64_t dataset, meta_data_source_fn *fn, void *arg,
			 struct sc_err *err);

int meta_blob_add(struct meta_catalog *c, uint64_t *ret_id, struct sc_err *err);
/** Its bytes do not change any more. */
int meta_blob_seal(struct meta_catalog *c, uint64_t blob, uint64_t bytes, struct sc_err *err);
/** Its bytes were read at that time (seconds since 1970) and have this hash, or `damaged`: they should have (NULL: it is
 *  not known yet). */
int meta_blob_checked(struct meta_catalog *c, uint64_t blob, const void *hash16, int64_t seconds, bool damaged,
		      struct sc_err *err);
/**
 * Removes sets that no version has and blobs that no set and no working tree has, unless `on_blob`
 * answers 1 of them: somebody holds them.
 */
int meta_garbage(struct meta_catalog *c, meta_id_fn *on_blob, void *arg, struct sc_err *err);
struct meta_blob_row {
	uint64_t id, bytes;
	const uint8_t *hash;	/* 16 bytes, NULL: not known yet */
	int work;		/* of a working tree, not sealed: enum meta_work_kind; -1: sealed */
	bool garbage;		/* nothing has it any more */
	bool damaged;		/* and nothing could mend it */
};
/** A rank file that is this blob, or a dataset that has it. */
struct meta_blob_use {
	const char *job, *topology, *path;
	uint64_t version;
	int64_t rank;		/* META_SHARED: of the job */
};

typedef int meta_blob_fn(void *arg, const struct meta_blob_row *row);
/** All that a blob's file has to say of itself: of the newest set of each job that has it. */
struct meta_blob_record {
	const char *job, *file, *topology, *path;
	uint64_t uid, gid, job_mode, set, kind, layout;
	uint32_t layers, experts;	/* of the set's whole version */
	int64_t rank, step;	/* step -1: none */
	uint64_t mode, file_uid, file_gid;	/* of this rank's file */
};
typedef int meta_blob_record_fn(void *arg, const struct meta_blob_record *row);
typedef int meta_blob_use_fn(void *arg, const struct meta_blob_use *use);
/* Of these only id, bytes and hash are filled. */
/** Sealed ones that nobody has looked at since: they have no hash. */
int meta_blob_unhashed(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err);
/** Those that were last looked at before that time, a thousand at most, longest ago first. */
int meta_blob_due(struct meta_catalog *c, int64_t before_s, meta_blob_fn *fn, void *arg, struct sc_err *err);
int meta_blob_damaged(struct meta_catalog *c, meta_id_fn *fn, void *arg, struct sc_err *err);
/** Others with the same bytes, by size and hash. */
int meta_blob_twins(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, meta_id_fn *fn,
		    void *arg, struct sc_err *err);
/** An older one of the same rank, file and job that has the same size and hash; 0: none. */
int meta_blob_same_before(struct meta_catalog *c, uint64_t blob, uint64_t bytes, const void *hash16, uint64_t *ret,
			  struct sc_err *err);
/** Once for each rank of the newest set that has it, of each job; newest set first, ranks in order. */
int meta_blob_record(struct meta_catalog *c, uint64_t blob, meta_blob_record_fn *fn, void *arg, struct sc_err *err);
/** Numbers up to this one are not given to new blobs. */
int meta_blob_reserve(struct meta_catalog *c, uint64_t last, struct sc_err *err);
/** A row for a file that is there; a working tree's until it is sealed. */
int meta_blob_adopt(struct meta_catalog *c, uint64_t blob, struct sc_err *err);
/** Wherever a set has `blob` it has `other` instead, which has the same bytes; `blob` has no row any more. */
int meta_blob_become(struct meta_catalog *c, uint64_t blob, uint64_t other, struct sc_err *err);
/** Newest versions first. */
int meta_blob_uses(struct meta_catalog *c, uint64_t blob, meta_blob_use_fn *fn, void *arg, struct sc_err *err);
int meta_blob_each(struct meta_catalog *c, meta_blob_fn *fn, void *arg, struct sc_err *err);
/** Calls `fn` with each complaint of SQLite's integrity check, and of rows that lead nowhere. */
int meta_catalog_check(struct meta_catalog *c, meta_text_fn *fn, void *arg, struct sc_err *err);
/** 1, 0: it has none yet, or an error. */
int meta_blob_hash(struct meta_catalog *c, uint64_t blob, uint8_t ret[16], struct sc_err *err);
/** Is there a row for this blob? 1, 0 or an error. */
int meta_blob_known(struct meta_catalog *c, uint64_t blob, struct sc_err *err);

/** Inside a transaction: adds a row; that of the same path goes, with its blob's row. */
int meta_work_put(struct meta_catalog *c, const struct meta_work_row *row, struct sc_err *err);
/** Its blob's row goes, too: the file is the caller's to remove. */
int meta_work_remove(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** The same inside a transaction. */
int meta_work_drop(struct meta_catalog *c, uint64_t id, struct sc_err *err);
/** All but the folders. */
int meta_work_clear(struct meta_catalog *c, uint64_t job, struct sc_err *err);
int meta_work_each(struct meta_catalog *c, uint64_t job, meta_work_fn *fn, void *arg,
		   struct sc_err *err);

/** Finds or adds; ids are numbers of nodeids (numbers.c), and the functions that add answer SC_E_LIMIT when none is left. */
int meta_path_put(struct meta_catalog *c, const char *text, uint64_t *ret_id, struct sc_err *err);
int meta_path_get(struct meta_catalog *c, uint64_t id, meta_text_fn *fn, void *arg,
		  struct sc_err *err);
/** A version at a topology ('': its own) takes a place for each of its ranks; its id is the last of them. */
int meta_view_put(struct meta_catalog *c, uint64_t version, const char *topology, uint32_t ranks, uint64_t *ret_id,
		  struct sc_err *err);
int meta_view_own(struct meta_catalog *c, uint64_t version, uint64_t *ret_id, struct sc_err *err);
/** The view whose id is the next from `place` on: the only one that can have it. */
int meta_view_at(struct meta_catalog *c, uint64_t place, meta_view_fn *fn, void *arg, struct sc_err *err);
/** No kernel remembers anything: numbers of removed jobs may be given again. */
int meta_mount_begins(struct meta_catalog *c, struct sc_err *err);

#endif
