/* SPDX-License-Identifier: Apache-2.0 */
/* One commit, shared by the files that do it: commit.c (the protocol), read.c, sets.c. */
#ifndef RS_COMMIT_I_H
#define RS_COMMIT_I_H

#include "reshard/command/command_i.h"

struct item {			/* a row of the working tree */
	uint32_t rank;
	struct rs_work w;
	const struct rs_format_ops *format;
	struct rs_blob *blob;	/* of a file of tensors, parsed */
	const char *logical;	/* logical file, once it is inferred; NULL: a plain file */
	size_t row;		/* of c->written: its first tensor */
	uint32_t nr_rows;
	uint64_t bytes;
	uint8_t hash[16];	/* of a plain file */
	struct rs_owner owner;
};

struct commit {
	struct rs_advance a;
	struct rs_service *s;
	struct rs_job *job;
	struct sc_err *err;
	int64_t step;
	const char *note;
	bool has_samples;		/* `samples` was given */
	uint64_t samples;
	const struct rs_view *head;	/* of which this is the next; NULL: none */
	uint64_t layout_id;
	const struct meta_layout *layout;
	struct meta_topology topo;
	struct sc_arena arena;
	struct {
		struct item *at;
		size_t nr, room;
	} items;
	struct {
		struct meta_written *at;
		size_t nr, room;
	} written;
	struct {
		struct rs_seal *at;
		size_t nr, room;
	} seals;
	struct meta_state state;	/* all logical tensors of the new version */
	struct rs_version *version;
};

/** Finds what a rank wrote or removed under a path; NULL: nothing.  Call after step 2 has sorted the items. */
const struct item *rs_commit_item(const struct commit *c, uint32_t rank, const char *path);
/** Does step 2: reads the headers of written files, and infers the logical tensors of the new version (c->state). */
int rs_commit_read(struct commit *c);
/** Makes the sets of the new version (c->version), of files that were written and of those that are taken over. */
int rs_commit_sets(struct commit *c);

#endif
