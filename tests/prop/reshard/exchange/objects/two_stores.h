/* SPDX-License-Identifier: Apache-2.0 */
/* Two stores of one namespace in a process: objects go from one to the other, and blobs are read where they are. */
#ifndef PROP_TWO_STORES_H
#define PROP_TWO_STORES_H

#include "reshard/service/service.h"
#include "reshard/exchange/objects/objects.h"

struct node {
	uint32_t number;
	char dir[64];
	struct rs_service *s;
	struct rs_job *job;
};

#define NODES 3
extern struct node nodes[NODES];	/* number i + 1 */

/** Makes the store of a node, with the job `j`; `root` 0: its folder objects_got a number, else it has this one. */
void open_node(struct node *n, uint64_t root);
void restart_node(struct node *n);
void close_node(struct node *n);

/* --- objects: in memory, for all nodes --- */

extern const struct rs_object_ops in_memory;
extern unsigned objects_put, objects_got;
/** Objects are got as `spoil` makes them, under any name; NULL: as they are. */
extern void (*spoil)(struct sc_buf *object);
/** The names are not checked. */
extern bool any_name;
void forget_objects(void);

/** Puts the newest version of a node; *ret is its name. */
void put_head(struct node *n, struct rs_object_name *ret);
/** Takes a version as the head of a node, and shows it. */
int take(struct node *n, const struct rs_object_name *name, struct sc_err *err);
/** Takes it, and takes it back: 0 if it could be taken.  What the catalog has meanwhile passes its check. */
int try_take(struct node *n, const struct rs_object_name *name, struct sc_err *err);

/** Removes some of the versions `all`, with what no other one is made of: `n`, which has nothing, takes others of them
 *  all the same; the last stays. */
void remove_versions(const struct rs_object_names *all, struct node *from, struct node *n);

/* --- what a view shows --- */

/** All that a view (NULL: the working tree over the head) shows, as text. */
char *text_of(struct node *n, struct rs_view *view);

/** What is read from now on, also by commands, is read on this node: from the blobs of those that have them. */
void read_on(struct node *n);
/** Tells whether padding rows of the head are in files of another node, from which no node here reads: a commit keeps
 *  them, and has to read them. */
bool lacks_padding(struct node *n);

#endif
