/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two sides of the net for its tests: an asker in this process, and a holder, which is this program run anew: a process
 * that has loaded UCX cannot fork another one that uses it.
 */
#ifndef TEST_NET_SIDES_H
#define TEST_NET_SIDES_H

#include <stdbool.h>
#include <sys/types.h>

#include "reshard/cluster/net/net.h"

#define TENSOR_BYTES (8u << 20)
#define EPOCH 7

struct end {
	bool ended;
	int code;
	char why[200];
};

extern uint8_t *tensor;			/* the same bytes on both sides */
extern struct rs_net *net;		/* the asker */
extern pid_t holder;
extern char address[64];		/* the holder's */
extern int pipe_of_messages[2];		/* what the holder was sent: kind, token, node */
extern const char *tls, *holders_tls;	/* folders of certificates; NULL: without */
extern bool ucx, holders_ucx;

/** Does what all tests of it begin with.  True: this process is a holder that has ended, or UCX is asked for and not
 *  here, which was said: *ret is its status.  False: *ret says whether to go on. */
bool sides_begin(int argc, char **argv, int *ret);

struct rs_net_config config(uint32_t node, uint64_t epoch, uint8_t secret);
void start_holder(void);
void kill_holder(void);
int set_up(void **unused);
int tear_down(void **unused);

struct rs_pull pull_of(uint64_t at, uint32_t bytes, uint32_t ms);
void begin(const struct rs_pull *p, uint8_t *to, struct end *e);
/** Runs the net until the pull has ended, at most so long. */
void wait_for(const struct end *e, int ms);
/** Pulls by a net of its own with certificates of a folder; NULL: without TLS.  Returns the code. */
int pull_with(const char *with, char why[200]);

#endif
