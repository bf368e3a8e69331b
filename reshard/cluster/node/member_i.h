/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared by the files of a member.
 *
 *	member.c	start, end, what control files say
 *	head.c		the kind "etcd" of head.h: commands of this node
 *	join.c		what other nodes have uncommitted, for a commit of this one
 *	worker.c	the worker: what the core wants of jobs, one after the other
 *	rows.c		what is changed of jobs' rows, followed until it is saved
 *	take.c		jobs and versions that other nodes made, changed or removed
 *	node.c		the node's thread: etcd, the net and the core
 *	restore.c	etcd's keys, made anew from the backup of a store that nobody has mounted
 * Each calls only those below it, and the rooms below (reshard/cluster/jobs/rows_i.h, reshard/cluster/peers/peers_i.h).
 */
#ifndef RS_MEMBER_I_H
#define RS_MEMBER_I_H

#include "reshard/cluster/copies/copies_i.h"
#include "reshard/cluster/joint/joint.h"
#include "reshard/cluster/node/member.h"
#include "reshard/cluster/peers/peers_i.h"
#include "reshard/cluster/stored/stored_i.h"
#include "reshard/cluster/jobs/rows_i.h"

/* --- member.c --- */
/** Makes a client of etcd; `whole`: it follows all keys of the cluster. */
int rs_member_connect(const struct rs_member_options *o, bool whole, struct meta_etcd **ret, struct sc_err *err);

/* --- node.c --- */
int rs_node_start(struct rs_member *m, struct sc_err *err);
void rs_node_stop(struct rs_member *m);
/** Ends this node's registration, so that others need not wait for that: after rs_node_stop(), when it is unmounted and
 *  nothing is read or written here any more.  False: etcd has not said so. */
bool rs_node_goodbye(struct rs_member *m);
/** Gives an event to the core and does what it answers; the node's thread. */
void rs_node_give(struct rs_member *m, const struct rs_event *e);
/** Takes a message of another node: for struct rs_net_config; `arg` is the member. */
void rs_node_message(void *arg, const struct rs_node_id *peer, const struct rs_net_frame *f);

/* --- rows.c: the worker --- */
/** Takes a change of a job's row (TODO_JOB, FIRST, CONFIG, TAGS), and its text; or notes that it is to be taken
 *  again. */
int rs_rows_take(struct rs_member *m, struct rs_shared *j, struct rs_todo *todo, struct sc_err *err);
/** Tries again what could not be taken.  Returns whether there is more to do. */
bool rs_rows_again(struct rs_member *m, struct rs_shared *j);
/** Forgets what is to be taken again: the job has ended, or the member. */
void rs_rows_drop(struct rs_shared *j);

/* --- take.c: the worker --- */
int rs_take_job(struct rs_member *m, struct rs_shared *j, const char *text, uint64_t mod, struct sc_err *err);
/** Takes the end of a job, which is not in etcd any more, as of a revision. */
int rs_take_end(struct rs_member *m, struct rs_shared *j, uint64_t mod, struct sc_err *err);
int rs_take_config(struct rs_member *m, struct rs_shared *j, char *text, uint64_t mod, struct sc_err *err);
int rs_take_tags(struct rs_member *m, struct rs_shared *j, struct sc_err *err);
int rs_take_first(struct rs_member *m, struct rs_shared *j, const struct meta_hash *layout, const char *topology,
		  uint64_t mod, struct sc_err *err);
/** Writes into the catalog that the commit of the command `token` is prepared here over version `base`; token 0: none
 *  is. */
int rs_take_note(struct rs_member *m, const struct rs_shared *j, uint64_t token, uint64_t base,
		 struct sc_err *err);
/** Forgets the commit that was prepared here: its outcome is known, and taken. */
void rs_take_forget(struct rs_member *m, struct rs_shared *j);
/** Makes version `nr`, which the command `token` made, the head here. */
int rs_take_version(struct rs_member *m, struct rs_shared *j, uint64_t nr, uint64_t token, struct sc_err *err);
/** Takes the rows of versions before the newest one that this node lacks, the newest first, until the core wants
 *  something; *ret_more: it was stopped so. */
int rs_take_missed(struct rs_member *m, struct rs_shared *j, bool *ret_more, struct sc_err *err);
/** Asks etcd for the token of a version's command; 0: there is no such version any more. */
int rs_version_token(struct rs_member *m, uint64_t id, uint64_t nr, uint64_t *ret, struct sc_err *err);

/* --- worker.c --- */
int rs_follow_start(struct rs_member *m, struct sc_err *err);
void rs_follow_stop(struct rs_member *m);

/* --- head.c --- */
extern const struct rs_head_ops rs_head_etcd;
/** Wakes the thread that waits for a command, whose outcome the core knows.  The node's thread. */
void rs_move_done(struct rs_member *m, const struct rs_act *a);
/** Saves the version of a command of this node; the worker. */
int rs_move_save(struct rs_member *m, struct rs_move *move, struct sc_err *err);

/* --- join.c --- */
/** Gets what all nodes have uncommitted, and joins it: move->parts, joined.  The command's thread.
 *  Errors: SC_E_BUSY (of join.h), those of pulls. */
int rs_member_join(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err);
/** Refuses a commit (SC_E_BUSY) if other nodes have uncommitted files now, or other ones, than rs_member_join()
 *  read. */
int rs_member_join_check(struct rs_member *m, struct rs_shared *j, struct rs_move *move, struct sc_err *err);
void rs_member_join_done(struct rs_member *m, struct rs_move *move);

#endif
