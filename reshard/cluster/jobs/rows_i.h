/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes in etcd what commands of a node change of jobs, but for their heads.
 *
 *	amend.c		rows of jobs, their first layouts and settings
 *	tags.c		tags of versions
 *	edit.c		keys that are changed if they are as they were read; answers that are lost
 * Each calls only those below it.
 */
#ifndef RS_ROWS_I_H
#define RS_ROWS_I_H

#include "reshard/cluster/peers/peers_i.h"

/* --- edit.c --- */
/** Makes a random number that no other job or command has. */
int rs_member_token(uint64_t *ret, struct sc_err *err);
/** What became of a change of keys, or of a read of one. */
enum rs_edited {
	RS_EDIT_DONE,
	RS_EDIT_AGAIN,		/* others were first, and nothing was changed: what is there is to be read again */
	RS_EDIT_DEAF,		/* etcd does not answer, and nothing was changed */
	RS_EDIT_LOST,		/* no answer came: it was done, will be, or never will */
	RS_EDIT_FULL,		/* etcd is out of space: it was not done, or was the last one that was */
};
/** The value of a key that was read; the caller releases `text`, which keys of a kind without fields have. */
struct rs_got {
	bool is, failed;
	uint64_t mod, token;		/* token: of PROPOSAL; the number of NAME, JOBS and REMOVED */
	char *text;			/* of FIRST: the topology */
	struct meta_hash layout;	/* of FIRST */
};
struct meta_key rs_key_of(enum meta_key_kind kind, uint64_t job);
/** Reads a key: RS_EDIT_DONE, RS_EDIT_DEAF or an error. */
int rs_member_get(struct rs_member *m, struct meta_key key, struct rs_got *ret, struct sc_err *err);
/** A transaction as it grows: rs_edit_expect() adds that a key is as it was read (its MOD; 0: absent), rs_edit_op() a
 *  META_PUT or META_DELETE.  rs_edit_make() says what became of it (enum rs_edited), and sets the `revision` at which
 *  it was done. */
struct rs_edit {
	struct meta_compare compares[META_TXN_OPS_MAX];
	struct meta_op then[META_TXN_OPS_MAX];
	uint32_t nr_compares, nr_then;
	uint64_t revision;
};
#define RS_EDIT_TRIES 10
void rs_edit_expect(struct rs_edit *c, struct meta_key key, uint64_t mod);
struct meta_op *rs_edit_op(struct rs_edit *c, int what, struct meta_key key);
int rs_edit_make(struct rs_member *m, struct rs_edit *c);
/** Reads what there is, and changes it by one transaction, unless it is as it is to be: enum rs_edited, or an error. */
typedef int rs_edit_fn(void *arg, struct sc_err *err);
/**
 * Calls `once` until it is known what became of it, for two registrations' time at most.  Each transaction of it
 * compares the row of `job`; 0: a key that it changes; RS_EDIT_SETTLES: `once` finds out itself what became of one
 * whose answer was lost, before it fails.
 * Errors: those of `once`; SC_E_BUSY, SC_E_NO_SPACE (nothing was changed); `unknown` (an answer was lost, and etcd
 * does not answer, or `once` fails since); SC_E_CANCELLED (and the mount ends).
 */
#define RS_EDIT_SETTLES UINT64_MAX
int rs_edit_until(struct rs_member *m, uint64_t job, rs_edit_fn *once, void *arg, int unknown, struct sc_err *err);
/** Fail a command: etcd did not answer, and nothing was changed; or nobody knows whether (with `code`). */
int rs_edit_deaf(struct sc_err *err);
int rs_edit_unknown(struct rs_member *m, int code, struct sc_err *err);

/* A change of a job, for rs_edit_until(). */
struct rs_amending {
	struct rs_member *m;
	struct rs_shared *j;
	const struct rs_amend *change;
};

/* --- tags.c: job->command is held --- */
int rs_member_tag(struct rs_member *m, struct rs_shared *j, const struct rs_amend *change, struct sc_err *err);
/** Makes the tags of versions here those that etcd has. */
int rs_member_follow_tags(struct rs_member *m, struct rs_shared *j, struct sc_err *err);

/* --- amend.c --- */
/** As `amend` of head.h, but for the removal of a job of the cluster. */
int rs_member_amend(struct rs_member *m, struct rs_job *job, const struct rs_amend *change, struct sc_err *err);
/** Removes a job's name and row, while its proposal `token` stands: 0; 1, no answer came; or an error, and nothing has
 *  changed. */
int rs_member_unname(struct rs_member *m, uint64_t id, uint64_t token, struct sc_err *err);
/** Tells whether etcd has the row of a job: 1, 0 or an error.  Asks for two registrations' time at most; then
 *  SC_E_SYSTEM says that nobody knows what became of the job. */
int rs_member_is_named(struct rs_member *m, uint64_t id, struct sc_err *err);
/** Tells whether a job was removed from the cluster, and is kept here as its files are not committed. */
bool rs_member_keeps(struct rs_member *m, const struct rs_job *job);
int rs_job_row_read(char *text, struct meta_job_row *ret, struct sc_err *err);

#endif
