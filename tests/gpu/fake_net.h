/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of the stand-in's NCCL in other processes.  Who gives an id has a hub, a process of its own at an address of the
 * interface that the environment names; each rank has a connection to it, and what one sends to another goes through it.
 * A hub ends with its last connection, or if nobody comes.
 */
#ifndef TEST_FAKE_NET_H
#define TEST_FAKE_NET_H

#include <stdbool.h>
#include <stddef.h>

/** Starts a hub, and says where it is; false: there is no such interface.  `interface`: a prefix of its name, `=` before it:
 *  all of the name (as NCCL_SOCKET_IFNAME). */
bool fake_net_name(const char *interface, char *ret, size_t bytes);
/** Tells whether an id is of a hub. */
bool fake_net_is(const char *id);

struct fake_net;

/** Joins; NULL: it cannot be reached. */
struct fake_net *fake_net_join(const char *id, int rank, int nr);
/** All ranks are there, or have left as they should; one is gone. */
bool fake_net_all(struct fake_net *n);
bool fake_net_gone(struct fake_net *n);
void fake_net_send(struct fake_net *n, int to, const void *at, size_t bytes);
/** Gives the size of what comes next from a rank; 0: nothing is there yet. */
size_t fake_net_next(struct fake_net *n, int from);
/** Takes it. */
void fake_net_take(struct fake_net *n, int from, void *to);
/** Leaves; `well`: the others need not hear of it. */
void fake_net_leave(struct fake_net *n, bool well);

#endif
