/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A helper on the stand-in for CUDA:  fake_helper [ORDER SEED [MISDEED N | at-most MIB]]
 *
 * What the stand-in finds wrong ends it, before it says FINISHED or with status 3.  A misdeed is done in place of the Nth
 * message that it sends (after-...: when it has sent it); of `call`, `run` and `hang`, by the Nth call, copy, kernel or
 * exchange, of `peer-...` by the last GPU, in the Nth exchange.
 */
#include "reshard/engine/gpu_helper/serve.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "reshard/engine/gpu/channel.h"
#include "reshard/engine/gpu/helper.h"
#include "tests/gpu/fake_cuda.h"

static const char *misdeed = "";
static unsigned nth, sent;

/* The arguments of a mount's options: at most so much of the device, and pinned; 0: nobody says. */
static size_t device_most, pinned_most;

static void expect_order(void)
{
	const struct fake_findings found = fake_found();
	const bool small = (!device_most || fake_most(false) <= device_most) && (!pinned_most || fake_most(true) <= pinned_most);

	if (!found.first[0] && small)
		return;
	(void)fprintf(stderr, "helper: %s; %zu bytes of the device, %zu pinned\n", found.first, fake_most(false), fake_most(true));
	_exit(3);
}

/* --- what it sends --- */

int __real_rs_channel_send(int fd, const struct rs_wire_message *m, int pass_fd, struct sc_err *err);
int __wrap_rs_channel_send(int fd, const struct rs_wire_message *m, int pass_fd, struct sc_err *err);

static void end_by(const char *how)
{
	if (strcmp(how, "kill") == 0)
		(void)raise(SIGKILL);
	if (strcmp(how, "stop") == 0)
		(void)raise(SIGSTOP);
	if (strcmp(how, "exit") == 0)
		_exit(0);
	while (strcmp(how, "silent") == 0)
		(void)pause();
}

/* Another message than the one that should be sent. */
static struct rs_wire_message other(const struct rs_wire_message *m)
{
	struct rs_wire_message o = *m;

	if (strcmp(misdeed, "noise") == 0)
		for (size_t i = 0; i < sizeof(o); i++)
			((unsigned char *)&o)[i] = (unsigned char)rand();
	if (strcmp(misdeed, "kind") == 0)
		o.kind = RS_WIRE_SETUP + (m->kind + (uint32_t)rand() % 20) % 20;
	if (strcmp(misdeed, "number") == 0)
		o.nr += 1 + (uint64_t)rand() % 3;
	if (strcmp(misdeed, "text") == 0) {
		o.kind = RS_WIRE_FAILED;
		memset(o.text, 'x', sizeof(o.text));
	}
	return o;
}

int __wrap_rs_channel_send(int fd, const struct rs_wire_message *m, int pass_fd, struct sc_err *err)
{
	const bool now = ++sent == nth;
	struct rs_wire_message o = *m;
	int rc;

	if (m->kind == RS_WIRE_FINISHED)
		expect_order();
	if (now) {
		end_by(misdeed);
		o = other(m);
		if (strcmp(misdeed, "short") == 0)
			return send(fd, m, 100, MSG_NOSIGNAL) == 100 ? 0 : -1;
	}
	rc = __real_rs_channel_send(fd, &o, pass_fd, err);
	if (now && strncmp(misdeed, "after-", 6) == 0)
		end_by(misdeed + 6);
	if (now && strcmp(misdeed, "twice") == 0)
		rc = __real_rs_channel_send(fd, m, pass_fd, err);
	return rc;
}

/* --- its life --- */

static void misbehave(const char *what, unsigned n)
{
	const struct fake_machine none = {0}, old = {11080, 1, 9, false, 0}, empty = {12090, 0, 9, false, 0},
				  ancient = {12090, 1, 7, false, 0}, prohibited = {12090, 1, 9, true, 0},
				  no_nccl = {12090, 4, 9, false, 0}, old_nccl = {12090, 4, 9, false, 21805};

	misdeed = what;
	nth = n;
	srand(n);
	if (strcmp(what, "at-most") == 0)
		device_most = pinned_most = (size_t)n << 20;
	if (strcmp(what, "call") == 0)
		fake_fail_call(n);
	if (strcmp(what, "run") == 0)
		fake_fail_run(n);
	if (strcmp(what, "hang") == 0)
		fake_hang_run(n);
	if (strcmp(what, "no-driver") == 0)
		fake_machine(&none);
	if (strcmp(what, "old-driver") == 0)
		fake_machine(&old);
	if (strcmp(what, "no-device") == 0)
		fake_machine(&empty);
	if (strcmp(what, "old-device") == 0)
		fake_machine(&ancient);
	if (strcmp(what, "prohibited") == 0)
		fake_machine(&prohibited);
	if (strcmp(what, "no-nccl") == 0)
		fake_machine(&no_nccl);
	if (strcmp(what, "old-nccl") == 0)
		fake_machine(&old_nccl);
	if (strcmp(what, "peer-never") == 0)
		fake_peer(FAKE_PEER_NEVER, 0);
	if (strcmp(what, "peer-dies") == 0)
		fake_peer(FAKE_PEER_DIES, n);
	if (strcmp(what, "peer-is-heard") == 0)
		fake_peer(FAKE_PEER_IS_HEARD, n);
	if (strcmp(what, "peer-late") == 0)
		fake_peer(FAKE_PEER_LATE, 0);
}

int main(int argc, char **argv)
{
	struct fake_findings found;
	struct sc_err err = {0};
	int rc;

	fake_begin((enum fake_order)(argc > 2 ? atoi(argv[1]) % FAKE_ORDERS : 0), argc > 2 ? strtoull(argv[2], NULL, 10) : 0);
	if (argc > 4)
		misbehave(argv[3], (unsigned)atoi(argv[4]));
	rs_serve_drop_privileges();
	rc = rs_serve(RS_HELPER_SOCKET, ".version 8.0", &err);
	if (rs_channel_is_closed(RS_HELPER_SOCKET, 0) && !fake_rests())
		_exit(1); /* the device has not ended, and the daemon does not wait: nothing is given back */
	found = fake_end();
	if (found.first[0])
		(void)fprintf(stderr, "helper: %s\n", found.first);
	return found.first[0] ? 3 : rc < 0;
}
