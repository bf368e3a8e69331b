/* SPDX-License-Identifier: Apache-2.0 */
#include "reshard/engine/gpu/helper.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "meta/base/turns.h"
#include "reshard/engine/gpu/channel.h"
#include "reshard/engine/gpu/child.h"

#define TICK_MS 100
#define LAST_WORDS_MS 1000	/* from the end of its socket to that of the process */

static int late(const struct rs_helper *h, struct sc_err *err)
{
	return sc_fail(err, SC_E_SYSTEM, "scalai-gpu has not answered for %u s", (h->timeout_ms + 999) / 1000);
}

static int has_ended(const struct rs_helper *h, struct sc_err *err)
{
	char how[64] = "its end of the conversation";

	if (rs_child_wait(h->child, LAST_WORDS_MS))
		(void)rs_child_ended_well(h->child, how, sizeof(how));
	return sc_fail(err, SC_E_SYSTEM, "scalai-gpu ended %s", how);
}

int rs_helper_say(struct rs_helper *h, const struct rs_wire_message *m, struct sc_err *err)
{
	int rc = rs_wire_step(&h->wire, m, false, err);

	if (rc == 0)
		rc = rs_channel_send(h->fd, m, -1, err);
	if (rc == SC_E_SYSTEM && (err->errnum == EPIPE || err->errnum == ECONNRESET))
		rc = has_ended(h, err);
	return rc;
}

int rs_helper_hear(struct rs_helper *h, rs_helper_tick_fn *tick, void *arg, struct rs_wire_message *ret,
		   struct sc_err *err)
{
	struct sc_turns turns = {.turn_ns = TICK_MS * INT64_C(1000000)};
	int rc;

	for (;;) {
		(void)sc_turn_begin(&turns);
		rc = rs_channel_receive(h->fd, TICK_MS, ret, NULL, err);
		sc_turn_end(&turns);
		if (rc != RS_CHANNEL_LATE)
			break;
		if (tick && tick(arg))
			return sc_fail(err, SC_E_CANCELLED, "stopped");
		if (turns.waited_ns >= h->timeout_ms * INT64_C(1000000))
			return late(h, err);
	}
	if (rc == RS_CHANNEL_ENDED)
		return has_ended(h, err);
	if (rc == RS_CHANNEL_HERE)
		rc = rs_wire_step(&h->wire, ret, true, err);
	if (rc == 0 && ret->kind == RS_WIRE_FAILED)
		return sc_fail(err, SC_E_UNSUPPORTED, "%s", ret->text);
	return rc;
}

/* --- start --- */

/* Makes the shared memory, and seals its length, so that a helper can map it safely. */
static int make_memory(struct rs_helper *h, const struct rs_pool *pool, int *ret_fd, struct sc_err *err)
{
	sc_cleanup(sc_closep) int fd = sc_sys.memfd("scalai-gpu", MFD_ALLOW_SEALING);

	h->bytes = rs_wire_bytes(pool);
	if (fd < 0 || sc_sys.ftruncate(fd, (off_t)h->bytes) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return sc_fail_sys(err, errno, "cannot make %lu bytes of shared memory", h->bytes);
	h->memory = sc_sys.mmap(NULL, h->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (h->memory == MAP_FAILED) {
		h->memory = NULL;
		return sc_fail_sys(err, errno, "cannot map %lu bytes of shared memory", h->bytes);
	}
	*ret_fd = sc_steal_fd(&fd);
	return 0;
}

/* Starts the process.  Where no other node takes part, NCCL listens where only this machine reaches it. */
static int make_process(struct rs_helper *h, const struct rs_helper_options *o, struct sc_err *err)
{
	char variable[sizeof("NCCL_SOCKET_IFNAME=") + RS_POOL_NET_BYTES];
	int pair[2], rc;

	(void)snprintf(variable, sizeof(variable), "NCCL_SOCKET_IFNAME=%s", o->net ? o->net : "lo");
	if (sc_sys.socket_pair(pair) < 0)
		return sc_fail_sys(err, errno, "cannot make a socket pair");
	h->fd = pair[0];
	rc = rs_child_start(o->program, variable, pair[1], RS_HELPER_SOCKET, &h->child, err);
	sc_closep(&pair[1]);
	return rc;
}

static int set_up(struct rs_helper *h, const struct rs_helper_options *o, int memory_fd, struct sc_err *err)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_SETUP, 0);
	int rc;

	m.window_bytes = o->pool.window_bytes;
	m.boxes_max = o->pool.boxes_max;
	m.peers = o->pool.peers;
	m.world = o->pool.world;
	m.first = o->pool.first;
	m.exchange_ms = o->timeout_ms / 2; /* so that it is the helper that says what is late */
	memcpy(m.devices, o->devices, sizeof(m.devices));
	m.idle_ms = o->idle_ms;
	rc = rs_wire_step(&h->wire, &m, false, err);
	if (rc == 0)
		rc = rs_channel_send(h->fd, &m, memory_fd, err);
	if (rc == SC_E_SYSTEM && err->errnum == EPIPE)
		rc = has_ended(h, err);
	return rc;
}

int rs_helper_start(const struct rs_helper_options *o, rs_helper_tick_fn *tick, void *arg, struct rs_helper **ret,
		    struct sc_err *err)
{
	struct rs_helper *h = sc_zalloc(sizeof(*h));
	sc_cleanup(sc_closep) int memory_fd = -1;
	struct rs_wire_message m;
	int rc;

	if (!h)
		return sc_nomem(err);
	h->fd = -1;
	h->timeout_ms = o->timeout_ms;
	rc = make_memory(h, &o->pool, &memory_fd, err);
	if (rc == 0)
		rc = make_process(h, o, err);
	if (rc == 0)
		rc = set_up(h, o, memory_fd, err);
	if (rc == 0)
		rc = rs_helper_hear(h, tick, arg, &m, err);
	if (rc < 0) {
		(void)rs_helper_end(h, 0);
		return rc;
	}
	memcpy(h->device, m.text, sizeof(h->device)); /* READY: it ends with 0 */
	*ret = h;
	return 0;
}

bool rs_helper_end(struct rs_helper *h, unsigned wait_ms)
{
	bool well = true;
	char how[64];

	if (!h)
		return true;
	sc_closep(&h->fd);
	if (h->child) {
		well = rs_child_wait(h->child, wait_ms) && rs_child_ended_well(h->child, how, sizeof(how));
		rs_child_kill(h->child);
		rs_child_leave(h->child);
	}
	if (h->memory)
		(void)sc_sys.munmap(h->memory, h->bytes);
	sc_sys.release(h);
	return well;
}
