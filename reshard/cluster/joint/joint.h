/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lets several nodes of a cluster make views real together: bytes that one node has and another needs go from GPU to
 * GPU, by NCCL, and are not pulled over TCP.
 *
 *     node 1   offer ───┐          ┌─> vote ──┐           ┌─> id ──┬─> files
 *     node 2   offer ───┴─> plan ──┴─> vote ──┴─ equal? ──┘        └─> files
 *
 * It makes the same files as background/homes.c makes without it, for nodes that all have engine=gpu and gpu_net=.
 * These nodes agree by keys below nccl/JOB/VERSION/ in etcd; a key goes with the registration of the node that put
 * it:
 *
 *	offer-NODE	its GPUs, its windows, and the ranks that have their home there
 *	plan		all offers, by the member with the lowest number, which leads
 *	vote-NODE	a hash of all that nodes would read, send, receive and write, as this one plans it
 *	0, 1, ...	the id of each call, if all votes are equal (it is a secret: who has it can join)
 *	stop		why there are no more calls
 *
 * 1. Nothing is read, sent or written before all members have planned the same, to the byte.
 * 2. Nobody waits for long: a member that does not come, or dies, is given up after a time, and each node makes its
 *    files in the other way, from the beginning.
 * 3. The files that a node made are its own as soon as they are on stable storage; it needs no word of the others.
 */
#ifndef RS_JOINT_H
#define RS_JOINT_H

#include "reshard/upkeep/background/pass.h"

/** As `joint` of struct rs_head_ops. */
int rs_joint_make(void *service, struct rs_pass *p);

#endif
