/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_PROP_NODES_H
#define TESTS_PROP_NODES_H

#include "reshard/overlay/overlay.h"

#define ROOT 100u		/* number of the job's folder; it has two ranks */

struct tree {
	uint64_t next;			/* number */
	struct rs_overlay_log log;
	struct rs_lower lower;
	struct rs_overlay *o;
};
/** Opens an overlay of a node over another one, whose files are committed then (NULL: over an empty job). */
void tree_open(struct tree *t, unsigned node, struct rs_overlay *below);

#define PATHS 20u
extern const char *const paths[PATHS];

struct request {
	unsigned what, a, b, value;	/* a, b: of paths */
};
/** Plays a request; returns its error.  Attributes become other ones at each time. */
int play(struct tree *t, int64_t now, const struct request *r);

#endif
