/* SPDX-License-Identifier: Apache-2.0 */
/* A model whose tensors lie in several files: what ranks write of it, and what they should see. */
#ifndef PROP_FILES_H
#define PROP_FILES_H

#include "reshard/service/service.h"

#define TENSORS_MAX 400
#define VERSIONS_MAX 64

extern unsigned long seed;
extern char history[8000];
extern unsigned files_read;

/** Adds to the history of this world, which is printed when something is wrong. */
void note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#define broken(fmt, ...) fail_msg("seed %lu\n%s" fmt, seed, history, ##__VA_ARGS__)
#define good(rc, err)                                                                              \
	do {                                                                                       \
		if ((rc) < 0)                                                                      \
			broken("%s: %s", #rc, (err).msg);                                          \
	} while (0)

struct tensor {
	char key[120];
	const char *file;	/* its logical file: a copy */
	struct meta_shape shape;
	int layer;		/* -1: none */
	size_t like;		/* it has the bytes of this one: mostly itself */
};

struct version {
	uint64_t nr;
	char topology[200];
	uint32_t salt[TENSORS_MAX];	/* of its bytes, 0: the version does not have it */
};

struct world {
	char dir[64], layout_text[4000];
	struct rs_service *s;
	struct rs_job *job;
	struct meta_layout *layout;
	bool local;			/* layers are numbered by each stage */
	bool spread;			/* experts lie in files of their own */
	bool never;			/* materialize=never */
	unsigned keep;
	unsigned layers, experts;
	size_t nr;
	struct tensor of[TENSORS_MAX];
	struct version now, old[VERSIONS_MAX];
	size_t nr_old;
	uint32_t salts;
};

struct shown {			/* a version at a topology, as it should be */
	struct meta_state state;
	size_t where[TENSORS_MAX];
	struct meta_topology topo;
	struct meta_view *view;
};

struct names {
	size_t nr;
	char at[64][60];
};

/** Cuts a version for a topology; false: this layout can't.  Free it by shown_done(). */
bool show(const struct world *w, const struct version *v, const char *topology, struct shown *ret);
void shown_done(struct shown *x);

bool has_name(const struct names *names, const char *name);
void put_name(struct names *names, const char *name);

/** Puts a name that rs_list() found into `arg`, a struct names. */
int on_name(void *arg, const char *name, mode_t type);

enum who {
	ALL_RANKS,		/* each rank */
	ONE_OF_EACH,		/* of each class of replicas some ranks, at least one */
	SOME_RANKS,		/* any: the bytes must be those of the head */
};
/** Writes, as ranks do, the logical files that `touched` names, or removes them.  Returns how many files. */
size_t write_ranks(struct world *w, const struct version *v, const struct shown *x, const struct names *touched,
		   enum who who, bool removed);

/** Looks at each rank file of a view, which is freed: it is listed and has, bit for bit, what the version has. */
void expect_view(struct world *w, struct rs_view *view, bool head, const struct version *v, const char *topology);

#endif
