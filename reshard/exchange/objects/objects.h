/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts versions into objects, and takes them: all that another node's catalog needs to show a version of this one.
 *
 *     version ──> layout                        an object is bytes, named by their SHA-256; it names others
 *        ├──────> set ──> layouts, payloads     a set and a tree name blobs: node, number there, bytes
 *        ├──────> tree ──> layout, tree below   rows of a tree are taken as they are: numbers of inodes are the
 *        └──────> dataset                       same on all nodes (meta/catalog/nodes.h)
 *
 * Ids of a catalog are in no object.  A set and a tree keep for ever the name with which they were put or taken.  So no
 * object is put twice, and one that comes back from another node is known: its blobs are those that are here.
 *
 * How an object looks is in objects_i.h.  One that is larger than RS_OBJECT_BYTES_MAX is a list of parts.
 *
 * Thread: any, inside a transaction of the catalog.  A function that fails leaves it to be rolled back.
 */
#ifndef RS_OBJECTS_H
#define RS_OBJECTS_H

#include "meta/base/mem.h"
#include "reshard/version/state/state.h"

#define RS_OBJECT_BYTES_MAX (512u << 10)	/* as base64 in a request of etcd's gateway it is below 1 MiB */
#define RS_OBJECT_NAME_BYTES 32

/** Where objects are.  `arg` is the caller's. */
struct rs_object_ops {
	/** Computes the SHA-256 of some bytes. */
	int (*name)(void *arg, const void *at, size_t bytes, uint8_t ret[RS_OBJECT_NAME_BYTES], struct sc_err *err);
	/** Puts an object, before those that name it; it may be there already. */
	int (*put)(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], const void *at, size_t bytes,
		   struct sc_err *err);
	/** Notes an object that is named, and was put before; NULL: nobody wants to know.  0 or an error. */
	int (*refer)(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], struct sc_err *err);
	/** Appends an object to `to`; what it appends is checked.  Errors: SC_E_NOT_FOUND. */
	int (*get)(void *arg, const uint8_t name[RS_OBJECT_NAME_BYTES], struct sc_buf *to, struct sc_err *err);
};

struct rs_object_names {
	size_t nr, room;
	struct rs_object_name {
		uint8_t at[RS_OBJECT_NAME_BYTES];
	} *at;
};

/** The parts of which a version was made, each what a node had uncommitted (reshard/exchange/merge/part.h): by node,
 *  the SHA-256. */
struct rs_object_parts {
	size_t nr, room;
	struct rs_object_from {
		uint32_t node;
		struct rs_object_name part;
	} *at;
};

/**
 * Puts a version of the catalog: its own object, and those that it names and that have no name here yet, which they
 * get.  `node` is this node's number.  Appends the names of its sets, by their files, to ret_sets (NULL: not wanted).
 * `parts` of which it was made (NULL: none).
 * A tree of many objects is made flat first (meta_tree_flatten()).
 * Errors: those of `ops`, of the catalog; SC_E_LIMIT (a set or tree of more than 256 MiB).
 */
int rs_objects_put(struct rs_service *s, uint64_t version, uint32_t node, const struct rs_object_parts *parts,
		   const struct rs_object_ops *ops, void *arg,
		   uint8_t ret_name[RS_OBJECT_NAME_BYTES], struct rs_object_names *ret_sets, struct sc_err *err);

/**
 * Adds a version of a job by its object, with those that it names and that are not here: rows, and numbers of inodes
 * that are the job's from now on.  Neither the job's head nor its tags change.  *ret_version has its own view.
 * `seals`: blobs of this node are sealed that are not yet, and have the bytes that it says; else they are not here.
 * `sets`: what it is stored in by now, NULL: in what the object says.
 * Errors: SC_E_FORMAT (no such object: another kind, other bytes than its name says, or something that no catalog can
 * have), SC_E_CORRUPT (numbers of inodes, or sizes of blobs, that this catalog has otherwise), SC_E_NOT_FOUND (a blob
 * of this node that is not here), SC_E_EXISTS (the job has a version of this number), SC_E_UNSUPPORTED (a format that
 * this program has not), those of `ops`, and of a layout, topology or dataset's options that are none.
 */
int rs_objects_take(struct rs_service *s, struct rs_job *job, const uint8_t name[RS_OBJECT_NAME_BYTES], uint32_t node,
		    bool seals, const struct rs_object_names *sets, const struct rs_object_ops *ops, void *arg,
		    uint64_t *ret_version, struct sc_err *err);
/** Tells whether the part of a node is in a version, by its object: 1, 0 or an error, as above. */
int rs_objects_has_part(const uint8_t name[RS_OBJECT_NAME_BYTES], uint32_t node,
			const uint8_t part[RS_OBJECT_NAME_BYTES], const struct rs_object_ops *ops, void *arg,
			struct sc_err *err);

/** Adds a set of a version of the job by its object, unless it is here.  Inside a transaction; errors as above. */
int rs_objects_take_set(struct rs_service *s, struct rs_job *job, const struct rs_object_name *name, uint32_t node,
			const struct rs_object_ops *ops, void *arg, uint64_t *ret_set, struct sc_err *err);

/** Puts a payload or layout of this catalog once more, by its name: versions that had it were dropped, and it went with
 *  them.  Errors: SC_E_NOT_FOUND (it is none: sets, trees and datasets go when nothing can name them any more). */
int rs_objects_put_again(struct rs_service *s, const struct rs_object_name *name, const struct rs_object_ops *ops,
			 void *arg, struct sc_err *err);

/** Orders names, for qsort(). */
int rs_object_name_order(const void *a, const void *b);

enum rs_object_kind { RS_OBJECT_VERSION, RS_OBJECT_SET, RS_OBJECT_TREE, RS_OBJECT_LEAF };
/** Names that an object names, each with what it is. */
struct rs_object_links {
	size_t nr, room;
	struct rs_object_link {
		struct rs_object_name name;
		enum rs_object_kind kind;
	} *at;
};
/**
 * Reads an object, and appends to `ret` what it names; a leaf (a layout, payload or dataset) names nothing.  Of an
 * object that has parts, `ops->get` is asked for these, too: they are the names that it is asked for after the first
 * one.
 * `ret_parts`: of a version, the parts of which nodes had made it, as rs_objects_put() had them.
 * Errors: those of `ops`, SC_E_FORMAT.
 */
int rs_objects_named_by(const struct rs_object_link *object, const struct rs_object_ops *ops, void *arg,
			struct rs_object_links *ret, struct rs_object_parts *ret_parts, struct sc_err *err);

/** A file that a node keeps of a version which is stored otherwise: blob `number` of node `node`. */
struct rs_object_keep {
	size_t nr, room;
	struct rs_object_kept {
		uint32_t rank, node;	/* rank: the first one whose file has these bytes */
		uint64_t number, bytes;
		const char *path;
	} *at;
};
/** Puts the list of the files that a node keeps of version `nr`. */
int rs_objects_put_keep(uint64_t nr, struct rs_object_keep *keep, const struct rs_object_ops *ops, void *arg,
			struct rs_object_name *ret, struct sc_err *err);
/** Appends to `ret` the files of such a list; paths are in the arena.  Errors: those of `ops`, SC_E_FORMAT. */
int rs_objects_take_keep(uint64_t nr, const struct rs_object_name *name, const struct rs_object_ops *ops, void *arg,
			 struct sc_arena *arena, struct rs_object_keep *ret, struct sc_err *err);

#endif
