/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A view places the tensors of a state on the ranks of a topology, under a layout ("presenting" in
 * docs/layout.md, section 4).  Immutable, no I/O.  The view of a blob set under the topology in which
 * it was written says where its bytes are.
 */
#ifndef META_VIEW_H
#define META_VIEW_H

#include "meta/model/state.h"

#define META_HIDDEN "@padding"	/* a file whose name ends so has what no rank is shown */
#define META_FREE UINT32_MAX	/* a coordinate that is not fixed */
#define META_FIXED_BYTES (SC_AXES_MAX * sizeof(uint32_t))

/** A stored tensor that is made of several logical ones, as `join` and `stack` say. */
struct meta_group {
	const struct meta_rule *rule;	/* of what is joined; of the layers that are stacked */
	const char *what;		/* for messages */
	struct meta_caps caps;		/* of its name */
	uint32_t axes;			/* all that its members and their order depend on */
	uint32_t cut_axes;		/* that cut it */
	uint32_t vary;			/* that decide which members a rank has, and how long they are */
	uint32_t nr;			/* members: entries, in their order */
	uint32_t *members;
	struct meta_variant {		/* of each index of `vary` */
		uint32_t nr;
		struct meta_place {
			uint32_t member, bucket;
			struct meta_lie lie;
		} *at;			/* those that ranks have, in order */
	} *variants;
};

/** A logical tensor on the ranks whose coordinates have `fixed`. */
struct meta_entry {
	uint32_t tensor, experts;	/* experts: number in the tensor's family, 0: the tensor is no expert */
	const struct meta_rule *rule;
	const uint32_t *fixed;		/* SC_AXES_MAX of them, which entries of a view share */
	struct meta_group *group;	/* NULL: it is stored on its own */
	uint32_t member;		/* its number in the group */
	const char *file, *name;	/* as stored, of a group its own; if `varies`, for coordinate 0 */
	const struct meta_caps *varies;	/* the stored name has coordinates: render per rank */
	const struct meta_entry *padding; /* of the padding behind it in the same stored tensor, NULL: none */
	/* Of a tensor of padding.  Its first entry is of the rows that ranks show, its second one of those that they
	 * do not: these lie on one rank, in a file that nobody is shown.  Other entries are of tied copies. */
	const struct meta_tensor *behind; /* the tensor that it is behind; NULL: this is no padding */
	uint64_t row, rows;		/* which rows the entry has; rows 0: it is on no rank */
	int8_t dim;
	bool hidden;
};

/** Tells whether a stored file has rows of padding that its topology does not show: it is no file of the rank's. */
bool meta_file_is_hidden(const char *file);

struct meta_view {
	struct sc_arena arena;
	const struct meta_layout *layout;   /* borrowed, as is the state */
	const struct meta_topology *topo;
	const struct meta_state *state;
	uint32_t nr_entries, layers;
	bool has_hidden;		    /* some rows of padding are on no rank */
	struct meta_entry *entries;	    /* by tensor */
	uint32_t *first;		    /* of tensor t: entries first[t] .. first[t + 1] */
	uint32_t *by_stage, *stage_first;   /* entries by fixed pp; the last bucket: pp is free */
	uint32_t nr_files;
	struct meta_file_axes {		    /* what a stored file's contents depend on */
		const char *file;
		uint32_t axes;
		uint32_t *alike;	    /* replica class of each rank; NULL: one mesh has all the axes */
	} *files;
};

/**
 * One stored tensor of a rank, or the part of it that is of one logical tensor: the parts of a stored tensor follow
 * each other, have its names and shape, and boxes of their own.
 */
struct meta_stored {
	const struct meta_entry *entry;
	uint32_t part;			/* 0: the first, or the only one */
	const char *file, *name;
	struct meta_piece piece;
};

struct meta_stored_list {
	size_t nr, room;
	struct meta_stored *at;
};

/**
 * Makes a view and checks every rank of it.
 *
 * Errors: SC_E_STATE (no rule places a tensor, two would be stored under one name, a size does not
 * divide), SC_E_TOPOLOGY (stages), SC_E_LIMIT, SC_E_NO_MEMORY.
 * Owner: *ret is the caller's; layout, topology and state must outlive it.
 */
int meta_view_new(const struct meta_layout *layout, const struct meta_topology *topo,
		  const struct meta_state *state, struct meta_view **ret, struct sc_err *err);
struct meta_view *meta_view_free(struct meta_view *view);

/**
 * Copies the part of the view's state that is one logical file to *ret, a zeroed state.  The part keeps the counts of
 * layers and experts of the whole, so that a view of the part alone has its tensors in the same places.
 * Errors: SC_E_UNSUPPORTED (families of the file differ in size), SC_E_NO_MEMORY.
 */
int meta_view_part(const struct meta_view *view, const char *file, struct meta_state *ret, struct sc_err *err);
/** Tells whether every tensor of `part` has the same place, file and name in `whole`. */
bool meta_view_agrees(const struct meta_view *part, const struct meta_view *whole);

bool meta_entry_is_on(const struct meta_view *view, const struct meta_entry *e,
		      const uint32_t coords[SC_AXES_MAX]);

/** Gives the stored file and name on a rank, rendered in `arena` only if they vary by rank.  -1: out of memory. */
int meta_entry_stored(const struct meta_view *view, const struct meta_entry *e,
		      const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena,
		      const char **ret_file, const char **ret_name);

/** Finds what is stored as one; part of meta_view_new().  Errors: SC_E_STATE, SC_E_LIMIT, SC_E_NO_MEMORY. */
int meta_join_entries(struct meta_view *view, struct sc_err *err);

int meta_entry_piece(const struct meta_view *view, const struct meta_entry *e,
		     const uint32_t coords[SC_AXES_MAX], struct sc_arena *arena,
		     struct meta_piece *ret, struct sc_err *err);

/** Walks over the entries that a rank may hold, those of its stage, then those of no stage; *at is 0 at first. */
const struct meta_entry *meta_view_next(const struct meta_view *view, uint32_t stage, uint32_t *at);

/**
 * Lists the tensors that a rank stores in one file or (file NULL) in all, with their pieces.
 * Owner: everything is in `arena` but ret->at, which sc_vec_done() ends.
 */
int meta_view_rank(const struct meta_view *view, uint32_t rank, const char *file,
		   struct sc_arena *arena, struct meta_stored_list *ret, struct sc_err *err);

/**
 * Finds the replica classes of every file; part of meta_view_new().  Errors: SC_E_NO_MEMORY.
 */
int meta_alike_index(struct meta_view *view, struct sc_err *err);
/**
 * Returns the replica class of a rank: the lowest rank whose file of this (stored) name has the same
 * contents, because the ranks differ only in coordinates that nothing in the file depends on.
 */
uint32_t meta_view_alike(const struct meta_view *view, uint32_t rank, const char *file);

/**
 * Calls `each` once for every file that a rank holds tensors of, until one call returns non-zero,
 * and returns that.
 */
int meta_view_files(const struct meta_view *view, uint32_t rank,
		    int (*each)(void *arg, const char *file, const char *logical_file), void *arg);

/**
 * Calls `each` for every holder of a region of an entry's tensor: its coordinates (those that the
 * entry fixes set, those that it does not use 0) and the parts of its boxes inside the region.
 */
typedef int meta_source_fn(void *arg, const struct meta_entry *e,
			   const uint32_t coords[SC_AXES_MAX], const struct meta_box *box);
int meta_view_sources(const struct meta_view *view, const struct meta_entry *e,
		      const uint64_t *off, const uint64_t *ext, meta_source_fn *each, void *arg,
		      struct sc_err *err);

/** Finds the entry of the tensor of which an entry's tensor tells how it is read (`of=`), in its file or in any; NULL:
 *  it is not there.  `names` begins empty and ends by sc_map_done().  -1: out of memory. */
int meta_view_told(const struct meta_view *view, const struct meta_entry *e, struct sc_map *names,
		   struct sc_arena *arena, const struct meta_entry **ret);
/**
 * Refuses scales of blocks that are not as many as their tensor has, in any dimension: of one size in all dimensions,
 * and in all tensors with such scales (blocks.c).  `block`: rows and columns of a block of `weight_scale_inv`, NULL:
 * nothing is known of them.  Errors: SC_E_STATE, SC_E_NO_MEMORY.
 */
int meta_view_check_blocks(const struct meta_view *view, const uint64_t block[2], struct sc_err *err);

/** Returns the axes that cut an entry's pieces, as a bit set. */
uint32_t meta_entry_cut_axes(const struct meta_entry *e);
/** Returns the axes that an entry depends on, those that cut it and those that it fixes, as a bit set. */
uint32_t meta_entry_axes(const struct meta_view *view, const struct meta_entry *e);
/** Returns the axes in which ranks may differ and still hold the same bytes of an entry, as a bit set of one mesh. */
uint32_t meta_entry_replica_axes(const struct meta_view *view, const struct meta_entry *e);
/** Tells whether a rank is the first one of those that hold the same elements of an entry. */
bool meta_entry_is_first(const struct meta_view *view, const struct meta_entry *e, const uint32_t coords[SC_AXES_MAX]);
/** Tells whether plans read an entry, and not only its copies: of each tensor the first one, of padding also the hidden
 *  one. */
bool meta_entry_is_read(const struct meta_view *view, const struct meta_entry *e);

#endif
