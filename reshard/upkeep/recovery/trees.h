/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recovery record of a tree, the file STORE/trees/NUMBER: what a commit added to the tree `base`.  Lines, then rows
 * (meta_changes_encode(); `rdev` of a file is its size), then a hash of all that:
 *
 *     scalai tree 2
 *     job NAME
 *     owner UID GID MODE           of the job
 *     tree NUMBER BASE ROOT
 *     layout NAME                  of its text in STORE/layouts: under which the rows of ranks were made
 *     topology TEXT                under which the rows of ranks were made
 *     head-layout NAME             of the newest version that had the tree when the record was written
 *     head-topology TEXT           of that version
 *     version NUMBER               its number, 0: none
 *     step NUMBER                  its step, -1: none
 *     last-set NUMBER              the newest set that there was then
 *     path NUMBER PATH             that virtual numbers in the rows are made of; a line each
 *     set NUMBER FILE              a set of that version, and its logical file of tensors; a line each
 *     rows BYTES
 *
 * The worker writes the record after the commit, and again when the tree was made flat, or when one more version has
 * it.
 */
#ifndef RS_TREES_H
#define RS_TREES_H

#include "reshard/command/commands/command_i.h"

struct rs_tree_record {
	uint64_t id, base, root, version, last_set;
	uint64_t uid, gid, job_mode;
	int64_t step;
	const char *job, *layout, *topology, *head_layout, *head_topology;
	struct {
		size_t nr, room;
		struct rs_tree_path {
			uint64_t id;
			const char *text;
		} *at;
	} paths;
	struct {
		size_t nr, room;
		struct rs_tree_set {
			uint64_t id;
			const char *file;
		} *at;
	} sets;
	struct meta_changes rows;
	char *text;		/* texts and rows are here */
};

/** Writes the records of trees that have none, or an old one; then removes the records of trees that are gone. */
int rs_trees_keep(struct rs_service *s, struct sc_err *err);
/** Reads a record.  Errors: SC_E_FORMAT (it is damaged), of reading. */
int rs_tree_record_read(struct rs_service *s, uint64_t tree, struct rs_tree_record *ret, struct sc_err *err);
void rs_tree_record_done(struct rs_tree_record *record);

#endif
