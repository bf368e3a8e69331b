/* SPDX-License-Identifier: Apache-2.0 */
/* The contents of objects.  Texts of parsed objects are an arena's or the object's own. */
#ifndef RS_OBJECTS_I_H
#define RS_OBJECTS_I_H

#include "meta/catalog/nodes.h"
#include "meta/catalog/trees.h"
#include "reshard/exchange/objects/objects.h"
#include "reshard/exchange/objects/text.h"

#define RS_OBJECT_DEPTH_MAX META_CHAIN_MAX	/* objects that a tree is made of */

struct rs_object_blob {
	uint32_t node;			/* 0: none */
	uint64_t number, bytes;
};

struct rs_object_version {
	uint64_t nr, parent;		/* parent 0: none, or it is dropped */
	int64_t step;
	uint64_t samples, request;
	int64_t made_ns, floor_ns;
	const char *made_by, *note, *topology;
	struct rs_object_name layout, tree;
	uint8_t has_tree;
	struct rs_object_parts parts;
	struct rs_object_names sets;	/* by their files */
	struct {
		size_t nr, room;
		struct rs_object_use {
			struct rs_object_name dataset;
			uint64_t from_epoch, from_samples;
		} *at;			/* by name, then epoch */
	} data;
};

struct rs_object_layout {
	const char *source, *flat;
};

struct rs_object_set {
	const char *file, *format;
	struct rs_object_place {	/* under which its files were written, or given */
		struct rs_object_name layout;
		const char *topology;
		uint32_t layers, experts;
	} place, given_place;
	uint8_t has_payload, is_given;
	const char *payload;
	struct meta_bytes tensors;	/* lines of tensor_line.h, without digests */
	struct rs_object_files {
		size_t nr, room;
		struct rs_object_file {
			uint32_t rank, mode, uid, gid;
			struct rs_object_blob blob;
			uint8_t has_payload;
			struct rs_object_name payload;
			const char *path;
		} *at;			/* by rank, then as its node has them */
	} files, given;			/* given: without blobs */
};

/* Rows are those of meta_tree_rows(), encoded; with virtual numbers of job 0, and of a blob the node in `job`, its
 * number there, and the bytes in `rdev`. */
struct rs_object_tree {
	uint8_t has_base;
	struct rs_object_name base, layout;
	uint64_t root;
	const char *topology;
	struct rs_object_blocks {
		size_t nr, room;
		struct rs_object_numbers {
			uint64_t first, nr;
		} *at;			/* blocks of the job, by their first numbers */
	} numbers;
	struct rs_object_paths {
		size_t nr, room;
		struct rs_object_path {
			uint64_t id;	/* in virtual numbers of the rows */
			const char *text;
		} *at;			/* by id */
	} paths;
	struct meta_bytes rows;
};

/* What nodes hand over before it is committed (reshard/exchange/merge/part.h); rows as a tree's, of files that were
 * written with META_OWN_DATA. */
struct rs_object_part {
	uint32_t node;
	uint64_t root, base;		/* of the job; number of the version below, 0: none */
	struct rs_object_blocks numbers;
	struct rs_object_paths paths;
	struct meta_bytes rows;
};

struct rs_object_dataset {
	const char *name, *spec, *form;
	uint32_t uid, gid;
	struct {
		size_t nr, room;
		struct rs_object_source {
			struct rs_object_blob copy, borders;
			uint64_t bytes, samples, sequences, first;
			int64_t mtime_ns;
			uint8_t ends[16], bare;
			const char *path;
		} *at;
	} sources;
};

/* --- walk.c: one walk over what an object says --- */

void rs_object_walk_version(struct rs_text *t, struct rs_object_version *v);
void rs_object_walk_layout(struct rs_text *t, struct rs_object_layout *l);
void rs_object_walk_set(struct rs_text *t, struct rs_object_set *s);
void rs_object_walk_tree(struct rs_text *t, struct rs_object_tree *x);
void rs_object_walk_part(struct rs_text *t, struct rs_object_part *x);
void rs_object_walk_payload(struct rs_text *t, struct meta_bytes *payload);
void rs_object_walk_dataset(struct rs_text *t, struct rs_object_dataset *d);
void rs_object_version_done(struct rs_object_version *v);
void rs_object_set_done(struct rs_object_set *s);
void rs_object_tree_done(struct rs_object_tree *x);
void rs_object_part_done(struct rs_object_part *x);
void rs_object_dataset_done(struct rs_object_dataset *d);

/* --- whole.c: objects of any size --- */

struct rs_object_io {
	const struct rs_object_ops *ops;
	void *arg;
	struct sc_err *err;
};

/** Puts a printed object, in parts if it is large; ends `text`. */
int rs_object_put(const struct rs_object_io *io, struct sc_buf *text, struct rs_object_name *ret);
/** Gets an object, and checks that it has this name. */
int rs_object_get(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *ret);
/** Gets an object, and begins to parse it. */
int rs_object_read(const struct rs_object_io *io, const struct rs_object_name *name, struct sc_buf *buf,
		   struct sc_arena *arena, struct rs_text *ret);
/** Ends the parsing: 0 if all of the text was such an object; `what` it is, for the error. */
int rs_object_parsed(const struct rs_object_io *io, const struct rs_object_name *name, const struct rs_text *t,
		     const char *what);
/** Says that an object is no good. */
int rs_object_bad(const struct rs_object_io *io, const struct rs_object_name *name, const char *what);

/* --- numbers.c: numbers of inodes in rows --- */

/** Returns a number as objects have it: a virtual one without this catalog's job. */
uint64_t rs_object_number(uint64_t ino);

struct rs_object_take;
struct rs_object_renumbering {
	struct rs_object_take *t;
	const struct rs_object_paths *paths;
	uint64_t *path_ids;		/* here, of each of them */
	struct rs_object_blocks blocks;	/* the job's, by their first numbers */
};
/** Takes the blocks as the job's, and the paths; inside a transaction. */
int rs_object_renumber_begin(struct rs_object_take *t, const struct rs_object_blocks *blocks,
			     const struct rs_object_paths *paths, struct rs_object_renumbering *ret);
/** Makes a number of an object the number that it is here; false: it is none of the job's. */
bool rs_object_renumber(const struct rs_object_renumbering *r, uint64_t *ino);
void rs_object_renumber_done(struct rs_object_renumbering *r);

/* --- take_tree.c --- */

struct rs_object_take {
	struct rs_service *s;
	struct rs_job *job;
	uint32_t node;
	bool seals;			/* blobs of this node that are no version's yet */
	int64_t step;			/* of the version */
	struct rs_object_io io;
	struct sc_arena arena;		/* texts of what is being taken */
	struct {
		uint64_t id;
		struct meta_layout *layout;
	} last;				/* the layout that was asked for last */
};

/** Find, or take, the number here of what a name or a blob means. */
int rs_object_take_layout(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id);
int rs_object_take_blob(struct rs_object_take *t, const struct rs_object_blob *blob, uint64_t *ret_id);
int rs_object_take_set(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id);
int rs_object_take_dataset(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id);
int rs_object_take_tree(struct rs_object_take *t, const struct rs_object_name *name, uint64_t *ret_id);
/** Parses a topology of a layout, which lives until the next call.  Errors: SC_E_FORMAT. */
int rs_object_topology(struct rs_object_take *t, uint64_t layout, const char *text, struct meta_topology *ret,
		       const struct meta_layout **ret_layout);
/** Reads a version's object; rs_object_version_done() ends it.  Texts are the arena's. */
int rs_object_read_version(const struct rs_object_io *io, const uint8_t name[RS_OBJECT_NAME_BYTES],
			   struct sc_arena *arena, struct rs_object_version *ret);
/** Gives a row that was taken the name of its object. */
int rs_object_name_it(struct rs_object_take *t, enum meta_object_kind kind, uint64_t id,
		      const struct rs_object_name *name, uint32_t depth);

#endif
