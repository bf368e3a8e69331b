/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Serves one conversation with one thread and one pipeline.  It trusts nothing that the daemon sends: messages go
 * through rs_wire_step(), plans are copied and checked, and the tables of a round refuse boxes that lead out of its
 * windows.
 */
#include "reshard/engine/gpu_helper/serve.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "meta/base/text.h"
#include "reshard/engine/gpu/channel.h"
#include "reshard/engine/gpu_helper/device.h"
#include "reshard/engine/gpu_helper/exchange.h"
#include "reshard/engine/gpu_helper/nccl.h"
#include "reshard/engine/gpu_helper/pipeline.h"

#define NAP_US 20	/* between two questions whether the device has ended */

enum { SERVES = 0, ENDS = 1 };

struct serving {
	int fd;
	const char *kernel;
	struct rs_wire wire;
	void *memory;		/* pool and plan */
	uint64_t bytes;
	int idle_ms;
	bool has_named;		/* a pass, which may never begin */
	struct rs_share *shares;	/* of the round that is being put */
	struct rs_pipeline *pipeline;
};

void rs_serve_drop_privileges(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct none[2] = {{0}};

	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	(void)syscall(SYS_capset, &head, none);
}

/* --- messages --- */

static int say_message(struct serving *s, const struct rs_wire_message *m, struct sc_err *err)
{
	int rc = rs_wire_step(&s->wire, m, true, err);

	return rc < 0 ? rc : rs_channel_send(s->fd, m, -1, err);
}

static int say(struct serving *s, enum rs_wire_kind kind, uint64_t nr, struct sc_err *err)
{
	const struct rs_wire_message m = rs_wire_message(kind, nr);

	return say_message(s, &m, err);
}

/* Waits for a message of the daemon: 0, ENDS (the daemon has closed, or nothing came for timeout_ms) or an error. */
static int hear(struct serving *s, int timeout_ms, struct rs_wire_message *ret, int *ret_fd, bool *ret_late,
		struct sc_err *err)
{
	int rc;

	do
		rc = rs_channel_receive(s->fd, timeout_ms, ret, ret_fd, err);
	while (rc == RS_CHANNEL_LATE && timeout_ms < 0);
	if (rc < 0)
		return rc;
	*ret_late = rc == RS_CHANNEL_LATE;
	if (rc != RS_CHANNEL_HERE)
		return ENDS;
	rc = rs_wire_step(&s->wire, ret, false, err);
	if (rc < 0 && ret_fd)
		sc_closep(ret_fd);
	return rc;
}

/* Asks the daemon for something of a round, and waits until the daemon says that it is done. */
static int ask(struct serving *s, enum rs_wire_kind kind, uint64_t nr, struct sc_err *err)
{
	struct rs_wire_message m;
	bool late;
	int rc = say(s, kind, nr, err);

	if (rc == 0)
		rc = hear(s, -1, &m, NULL, &late, err);
	return rc == ENDS ? sc_fail(err, SC_E_CANCELLED, "the daemon has ended") : rc;
}

/* --- what the pipeline asks --- */

static int fill(void *arg, const struct rs_round *round, unsigned slot, struct sc_err *err)
{
	struct serving *s = arg;

	(void)round, (void)slot;
	return ask(s, RS_WIRE_FILL, s->wire.put, err);
}

static int drain(void *arg, unsigned slot, struct sc_err *err)
{
	struct serving *s = arg;

	(void)slot;
	return ask(s, RS_WIRE_DRAIN, s->wire.drained, err);
}

/* Waits a little.  There is no time limit here, as the daemon kills a helper that is late. */
static int idle(void *arg, struct sc_err *err)
{
	struct serving *s = arg;

	return rs_channel_is_closed(s->fd, NAP_US) ? sc_fail(err, SC_E_CANCELLED, "the daemon has ended") : 0;
}

/* --- set-up --- */

/* Maps the shared memory, which cannot become shorter meanwhile, as the daemon has sealed it. */
static int map(struct serving *s, int memory_fd, struct sc_err *err)
{
	struct stat st;

	s->bytes = rs_wire_bytes(&s->wire.pool);
	if (memory_fd < 0 || sc_sys.fstat(memory_fd, &st) < 0 || (uint64_t)st.st_size != s->bytes)
		return sc_fail(err, SC_E_STATE, "SETUP came without memory of %lu bytes", s->bytes);
	s->memory = sc_sys.mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
	if (s->memory == MAP_FAILED)
		s->memory = NULL;
	return s->memory ? 0 : sc_fail_sys(err, errno, "cannot map %lu bytes of shared memory", s->bytes);
}

static int make_pipeline(struct serving *s, const struct rs_wire_message *setup, struct sc_err *err)
{
	struct rs_pipeline_options o = {
		.pool = s->wire.pool, .kernel = s->kernel, .memory = s->memory, .exchange_ms = setup->exchange_ms,
		.fill = fill, .drain = drain, .idle = idle, .arg = s,
	};
	int rc = rs_wire_make_shares(&s->wire.pool, &s->shares, err);

	for (uint32_t k = 0; k < s->wire.pool.peers; k++)
		o.devices[k] = setup->devices[k];
	return rc < 0 ? rc : rs_pipeline_new(&o, &s->pipeline, err);
}

/* Checks and describes all devices; several devices need NCCL, too. */
static int describe(const struct rs_wire_message *setup, char *ret, size_t bytes, struct sc_err *err)
{
	const struct rs_nccl *ignored;
	size_t at = 0;
	int rc = 0;

	for (uint32_t k = 0; rc == 0 && k < setup->peers; k++) {
		rc = rs_device_check(setup->devices[k], ret + at, bytes - at, err);
		at = rc == 0 ? strlen(ret) : 0;
		if (rc == 0 && (setup->peers > 1 || setup->world > 1))
			at += (size_t)snprintf(ret + at, bytes - at, ", ");
	}
	if (rc == 0 && (setup->peers > 1 || setup->world > 1))
		rc = rs_nccl_load(&ignored, ret + at, bytes - at, err);
	return rc;
}

static int set_up(struct serving *s, struct sc_err *err)
{
	struct rs_wire_message m, ready = rs_wire_message(RS_WIRE_READY, 0);
	sc_cleanup(sc_closep) int memory_fd = -1;
	bool late;
	int rc = hear(s, -1, &m, &memory_fd, &late, err);

	if (rc != 0)
		return rc;
	s->idle_ms = m.idle_ms > INT32_MAX ? INT32_MAX : (int)m.idle_ms;
	rc = map(s, memory_fd, err);
	if (rc == 0)
		rc = describe(&m, ready.text, sizeof(ready.text), err);
	if (rc == 0)
		rc = make_pipeline(s, &m, err);
	return rc < 0 ? rc : say_message(s, &ready, err);
}

/* --- the conversation --- */

static int put(struct serving *s, const struct rs_wire_message *m, struct sc_err *err)
{
	const struct rs_round round = {s->wire.pool.peers, s->shares};
	int rc = rs_wire_take_plan(&s->wire.pool, s->memory, m->nr, s->shares, err);

	if (rc == 0)
		rc = rs_pipeline_put(s->pipeline, &round, err);
	return rc < 0 ? rc : say(s, RS_WIRE_TAKEN, m->nr, err);
}

/* Tells whether the helper may end when nothing comes: not before the daemon that started it has asked for
 * something. */
static bool is_idle(const struct serving *s)
{
	return s->wire.phase == RS_WIRE_IDLE && (s->wire.put || s->has_named) && !s->wire.buffers;
}

static int load(struct serving *s, const struct rs_wire_message *m, struct sc_err *err)
{
	struct rs_wire_message answer = rs_wire_message(RS_WIRE_LOADED, 0);
	int rc;

	rc = rs_pipeline_load(s->pipeline, (uint32_t)m->nr, m->window_bytes, answer.text, err);
	if (rc == SC_E_NO_MEMORY) {
		answer.kind = RS_WIRE_REFUSED;
		(void)snprintf(answer.text, sizeof(answer.text), "%s", err->msg);
		rc = 0;
	}
	return rc < 0 ? rc : say_message(s, &answer, err);
}

/* Makes the id of a pass, by which the other nodes find this process. */
static int name_pass(struct serving *s, struct sc_err *err)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_NAMED, 0);
	unsigned char id[RS_EXCHANGE_ID_BYTES];
	int rc = rs_exchange_id(id, err);

	if (rc == 0)
		(void)sc_hex(m.text, id, sizeof(id));
	s->has_named = true;
	return rc < 0 ? rc : say_message(s, &m, err);
}

static unsigned digit(char c)
{
	return (unsigned)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Begins a pass; if it is of several nodes, the message's text is its id. */
static int begin(struct serving *s, const struct rs_wire_message *m, struct sc_err *err)
{
	const bool has_id = rs_pool_world(&s->wire.pool) > s->wire.pool.peers;
	unsigned char id[RS_EXCHANGE_ID_BYTES];
	int rc;

	for (size_t i = 0; has_id && i < sizeof(id); i++)
		id[i] = (unsigned char)(digit(m->text[2 * i]) << 4 | digit(m->text[2 * i + 1]));
	rc = rs_pipeline_begin(s->pipeline, (uint32_t)m->nr, has_id ? id : NULL, err);
	return rc < 0 ? rc : say(s, RS_WIRE_BEGUN, 0, err);
}

static int serve_one(struct serving *s, struct sc_err *err)
{
	struct rs_wire_message m;
	bool late;
	int rc = hear(s, is_idle(s) ? s->idle_ms : -1, &m, NULL, &late, err);

	if (rc == ENDS && late)
		(void)say(s, RS_WIRE_BYE, 0, err);
	if (rc != 0)
		return rc;
	switch ((enum rs_wire_kind)m.kind) {
	case RS_WIRE_BEGIN:
		return begin(s, &m, err);
	case RS_WIRE_ID:
		return name_pass(s, err);
	case RS_WIRE_LOAD:
		return load(s, &m, err);
	case RS_WIRE_FREE:
		rc = rs_pipeline_unload(s->pipeline, (uint32_t)m.nr, err);
		return rc < 0 ? rc : say(s, RS_WIRE_FREED, 0, err);
	case RS_WIRE_ROUND:
		return put(s, &m, err);
	default: /* FINISH: all others are answers, or come before */
		rc = rs_pipeline_finish(s->pipeline, err);
		return rc < 0 ? rc : say(s, RS_WIRE_FINISHED, 0, err);
	}
}

static void say_failed(struct serving *s, const struct sc_err *why)
{
	struct rs_wire_message m = rs_wire_message(RS_WIRE_FAILED, 0);
	struct sc_err ignored;

	(void)snprintf(m.text, sizeof(m.text), "%s", why->msg);
	(void)say_message(s, &m, &ignored);
}

int rs_serve(int fd, const char *kernel, struct sc_err *err)
{
	struct serving s = {.fd = fd, .kernel = kernel};
	struct sc_err left;
	int rc = set_up(&s, err);

	while (rc == SERVES)
		rc = serve_one(&s, err);
	if (rc < 0)
		say_failed(&s, err);
	/* a device that does not end may still write there */
	if (rs_pipeline_close(s.pipeline, &left) == 0 && s.memory)
		(void)sc_sys.munmap(s.memory, s.bytes);
	sc_sys.release(s.shares);
	return rc < 0 ? rc : 0;
}
