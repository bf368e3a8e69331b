/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/gpu/far.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "meta/base/sys.h"

/* What the processes of a call share: node 0 gives the others the id. */
static struct shared {
	volatile int named;	/* 1: there is an id; -1: there is none */
	char id[RS_POOL_ID_DIGITS + 1];
	struct far_node nodes[FAR_NODES_MAX];
} *shared;

static uint32_t first_of(const struct far *f, uint32_t node)
{
	uint32_t nr = 0;

	for (uint32_t k = 0; k < node; k++)
		nr += f->nodes[k].devices;
	return nr;
}

uint32_t far_world(const struct far *f)
{
	return first_of(f, f->nr);
}

uint32_t far_reader(const struct far *f, const struct rs_place *place)
{
	return (uint32_t)(place->id * 7919u >> 2) % far_world(f);
}

uint32_t far_writer(const struct far *f, size_t target)
{
	const uint32_t node = (uint32_t)target % f->nr;

	return first_of(f, node) + (uint32_t)(target / f->nr) % f->nodes[node].devices;
}

static uint32_t reader(void *arg, const struct rs_place *place)
{
	return far_reader(arg, place);
}

static void configure(const struct far *f, const struct far_node *n, char script[])
{
	struct rs_gpu_options o = rs_gpu_options_default();
	const int fd = mkstemp(script);
	FILE *s = fdopen(fd, "w");

	if (!s)
		abort();
	o.stop_ms = 60000; /* as in tests/support/kinds/gpu.c */
	(void)fprintf(s, "#!/bin/sh\nexec %s %s\n", getenv("FAR_HELPER") ? getenv("FAR_HELPER") : HELPER, n->args);
	(void)fchmod(fd, 0700);
	(void)fclose(s);
	(void)snprintf(o.program, sizeof(o.program), "%s", script);
	(void)snprintf(o.net, sizeof(o.net), "=lo"); /* the stand-in takes it for a net: not "lo" */
	o.nr_devices = n->devices;
	for (uint32_t k = 0; k < n->devices; k++)
		o.devices[k] = (uint8_t)k;
	o.window_bytes = n->window_bytes ? n->window_bytes : f->window_bytes;
	o.boxes_max = f->boxes_max;
	o.timeout_ms = f->timeout_ms;
	rs_gpu_configure(&o);
}

static int take_part(struct far *f, uint32_t node, const struct rs_target *all, size_t nr, struct rs_written *written,
		     struct sc_err *err)
{
	struct rs_target targets[FAR_TARGETS_MAX];
	uint32_t writers[FAR_TARGETS_MAX];
	struct rs_joint joint = {.world = far_world(f), .first = first_of(f, node), .writers = writers, .reader = reader, .arg = f,
				 .window_bytes = f->window_bytes, .boxes_max = f->boxes_max, .id = shared->id};
	const struct rs_write_options how = {.joint = &joint};
	struct rs_engine *e;
	int rc = 0;

	for (size_t i = 0; i < nr; i++) {
		writers[i] = far_writer(f, i);
		targets[i] = (struct rs_target){all[i].image, i % f->nr == node ? all[i].fd : -1};
	}
	if (node == 0) {
		rc = rs_gpu_joint_id(&how, shared->id, err);
		shared->named = rc == 0 ? 1 : -1;
	}
	while (!shared->named)
		(void)usleep(500);
	if (rc == 0 && shared->named < 0)
		rc = sc_fail(err, SC_E_UNSUPPORTED, "there is no id");
	if (rc == 0)
		rc = rs_engine_open(&rs_engine_gpu, NULL, 0, &e, err);
	if (rc < 0)
		return rc;
	rc = rs_engine_write(e, targets, nr, &how, written, err);
	rs_engine_close(e);
	return rc;
}

static void be(struct far *f, uint32_t node, const struct rs_target *targets, size_t nr)
{
	char script[] = "/tmp/scalai-far.XXXXXX";
	struct far_node *n = &shared->nodes[node];
	const int64_t began = sc_now_ns();
	struct rs_written written = {0};
	struct sc_err err = {0};

	configure(f, n, script);
	n->rc = take_part(f, node, targets, nr, &written, &err);
	n->ms = (uint64_t)(sc_now_ns() - began) / 1000000;
	n->copied = written.copied + written.cloned;
	(void)snprintf(n->why, sizeof(n->why), "%s", n->rc < 0 ? err.msg : "");
	n->ended_well = rs_gpu_stop();
	(void)unlink(script);
	_exit(0);
}

void far_write(struct far *f, const struct rs_target *targets, size_t nr)
{
	pid_t nodes[FAR_NODES_MAX];

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED || nr > FAR_TARGETS_MAX)
		abort();
	memcpy(shared->nodes, f->nodes, sizeof(f->nodes));
	for (uint32_t k = 0; k < f->nr; k++) {
		shared->nodes[k].rc = SC_E_STATE; /* it has not come to its end */
		nodes[k] = f->nodes[k].args ? fork() : -1;
		if (nodes[k] == 0)
			be(f, k, targets, nr);
	}
	for (uint32_t k = 0; k < f->nr; k++)
		if (nodes[k] > 0)
			(void)waitpid(nodes[k], NULL, 0);
	memcpy(f->nodes, shared->nodes, sizeof(f->nodes));
	(void)munmap(shared, sizeof(*shared));
}
