/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of the sweep.
 *
 *	sweep.c		the thread, its rounds, and what they remove
 *	glance.c	what etcd has, at one revision
 *	marks.c		the objects of which versions are made
 * Each calls only those below it.
 */
#ifndef RS_SWEEP_I_H
#define RS_SWEEP_I_H

#include "reshard/cluster/peers/peers_i.h"

/* --- marks.c --- */
struct mark;
/** Objects that were found in the last round; zeroed at first. */
struct rs_marks {
	size_t nr, room;
	struct mark **at;
	struct sc_map by_name;
	struct rs_object_links found;	/* of which is not looked at yet what they name */
	uint64_t round;
};
void rs_marks_begin(struct rs_marks *marks);
/** Marks an object, with all that it is made of.  `may_lack`: some of it may have been removed before.  Errors:
 *  SC_E_NOT_FOUND (etcd lacks some), SC_E_SYSTEM, SC_E_FORMAT. */
int rs_marks_add(struct rs_member *m, struct rs_marks *marks, const struct rs_object_link *object, bool may_lack,
		 struct sc_err *err);
/** Gives the parts that nodes had in a version, without marking anything. */
int rs_marks_parts(struct rs_member *m, struct rs_marks *marks, const struct rs_object_link *version,
		   const struct rs_object_parts **ret, struct sc_err *err);
/** Tells whether this round has marked an object. */
bool rs_marks_have(const struct rs_marks *marks, const struct rs_object_name *name);
/** Forgets what this round has not marked. */
void rs_marks_end(struct rs_marks *marks);
void rs_marks_done(struct rs_marks *marks);

/* --- glance.c --- */
struct rs_glance_job {
	uint64_t id, head;		/* head 0: it has no version */
	bool has_row;			/* it is a job */
	bool has_removed;		/* the key that says that it was removed, of that revision: */
	uint64_t removed_mod;
	bool has_more;			/* other keys */
	bool has_ended;			/* it was removed, by either evidence, and is no job */
};
struct rs_glance_version {
	uint64_t job, nr;
	struct rs_object_link object;	/* its record's */
	bool is_stored;			/* it was not dropped */
};
struct rs_glance_named {
	uint64_t job;
	struct rs_object_link object;
};
struct rs_glance_object {
	struct rs_object_name name;
	uint64_t mod;
};
/** What etcd has at one revision. */
struct rs_glance {
	uint64_t revision, ended_mod;
	struct sc_buf ended;		/* text of `all/ended` */
	uint64_t sweeps;		/* value of `all/sweep` */
	uint8_t protocol;		/* that the cluster speaks */
	uint64_t protocol_mod;		/* revision of `all/protocol` */
	struct {
		size_t nr, room;
		struct rs_glance_job *at;
	} jobs;
	struct rs_glance_versions {
		size_t nr, room;
		struct rs_glance_version *at;
	} stores, records;		/* by job and number */
	struct {
		size_t nr, room;
		struct rs_glance_named *at;
	} named;			/* by storages, and first layouts */
	struct {
		size_t nr, room;
		struct rs_glance_object *at;
	} objects;			/* by name */
	bool failed;
};
/** Asks etcd; `objects`: for all objects, too.  Errors: SC_E_SYSTEM; SC_E_STALE (it lacks keys of a job that nobody has
 *  removed). */
int rs_glance(struct rs_member *m, bool objects, struct rs_glance *ret, struct sc_err *err);
const struct rs_glance_job *rs_glance_job(const struct rs_glance *l, uint64_t id);
void rs_glance_done(struct rs_glance *l);

/* --- sweep.c --- */
/** A node's sweep: what it knows of the round before, and of the one that it makes.  Zeroed but for `m`. */
struct rs_sweep {
	struct rs_member *m;
	struct rs_marks marks;
	struct {
		size_t nr, room;
		struct rs_dropped {	/* rounds since nothing of a dropped version is here any more */
			uint64_t job, nr;
			uint32_t rounds;
		} *at;
	} dropped;
	struct rs_object_names unmarked;	/* in the last round; by name */
	struct rs_ended_jobs {
		size_t nr, room;
		uint64_t *at;
	} ended;				/* jobs that had keys in the last round */
	uint64_t tick;				/* as of the last round */
	bool again, said;
	/* of one round: */
	struct rs_glance look;
	struct {
		size_t nr, room;
		struct rs_glance_object *at;
	} goes;					/* objects; by name */
	struct {
		size_t nr, room;
		struct meta_key *at;
	} records;				/* that go */
	uint64_t announced;			/* revision of `all/sweep` */
	struct sc_err *err;
};
/** Makes a round; `again`: there is more to do.  Errors: SC_E_SYSTEM, SC_E_STALE (of rs_glance()). */
int rs_sweep_round(struct rs_sweep *w, struct sc_err *err);
void rs_sweep_done(struct rs_sweep *w);

/* What a sweep does, rule by rule, so that a test can take each one out, as those of the protocol
 * (reshard/cluster/protocol/rules.h). */
#define RS_SWEEP_RULES(X)                                                                                              \
	X(announced)	     /* an object is removed if no sweep was announced since it was */                         \
	X(looks_again)	     /* ... and if nothing names it after it was announced */                                  \
	X(object_compared)   /* ... nor was it put again */                                                            \
	X(record_compared)   /* a record is removed if its version is not stored */                                    \
	X(all_know)	     /* ... and all nodes know of it that have a part in it */                                 \
	X(row_compared)	     /* keys of a job are removed if it has no row */                                          \
	X(removed_compared)  /* ... and the key that it was removed is the one that was found */                       \
	X(ended_compared)    /* its number is added to the others */                                                   \
	X(protocol_spoken)   /* nothing is removed while programs may be members that do not know of this */           \
	X(protocol_compared) /* ... also not by a round that began before */

#ifdef RS_RULES_CAN_BE_OFF
struct rs_sweep_off {
#define X(name) bool name;
	RS_SWEEP_RULES(X)
#undef X
};
extern struct rs_sweep_off rs_sweep_off;
#define SWEEPS(name) (!rs_sweep_off.name)
#else
#define SWEEPS(name) true
#endif

#endif
