/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine takes for the rank files of a topology, without a mount, a transaction or a flush.  Kind `null` reads all
 * and writes nothing: the ceiling of a reshard.
 *
 *     engine STORE JOB TOPOLOGY KIND        one JSON line: bytes, seconds
 *
 * Files are made in STORE, where they have no names.  The store is not mounted meanwhile.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "meta/base/log.h"
#include "reshard/engine/io/engine.h"
#include "reshard/service/service.h"
#include "reshard/version/state/state_i.h"
#include "tests/support/kinds/null_engine.h"

#define FILES_MAX 4096
#define BUDGET_BYTES (256u << 20)	/* as buffer_mib=256, the default */

static struct rs_service *s;
static struct rs_view *view;
static struct rs_target targets[FILES_MAX];
static size_t nr_targets, next;		/* next: atomic */
static const struct rs_engine_ops *kind;

static void must(int rc, const struct sc_err *err)
{
	if (rc == 0)
		return;
	(void)fprintf(stderr, "engine: %s\n", err->msg);
	exit(1);
}

static int on_name(void *arg, const char *name, mode_t type)
{
	struct rs_image *im;
	struct sc_err err;

	if (S_ISDIR(type) || nr_targets == FILES_MAX)
		return 1;
	must(rs_view_image(s, view, *(const uint32_t *)arg, name, true, true, &im, &err), &err);
	targets[nr_targets++].image = im;
	return 0;
}

static void *write_some(void *unused)
{
	const struct rs_write_options how = {0};
	struct rs_engine *e;
	struct sc_err err;

	(void)unused;
	must(rs_engine_open(kind, rs_service_store(s), BUDGET_BYTES / kind->threads, &e, &err), &err);
	for (;;) {
		size_t at = __atomic_fetch_add(&next, kind->targets, __ATOMIC_RELAXED), nr = kind->targets;
		struct rs_written written;

		if (at >= nr_targets)
			break;
		if (nr > nr_targets - at)
			nr = nr_targets - at;
		must(rs_engine_write(e, &targets[at], nr, &how, &written, &err), &err);
	}
	rs_engine_close(e);
	return NULL;
}

static double now(void)
{
	struct timespec t;

	(void)clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double write_all(void)
{
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	double began = now();
	pthread_t threads[64];
	unsigned nr = 0;

	while (nr < kind->threads - 1 && nr < cores - 1 && nr < 64 && pthread_create(&threads[nr], NULL, write_some, NULL) == 0)
		nr++;
	(void)write_some(NULL);
	while (nr)
		(void)pthread_join(threads[--nr], NULL);
	return now() - began;
}

int main(int argc, char **argv)
{
	struct rs_options options = {.store = argc == 5 ? argv[1] : NULL, .quiet_worker = true};
	struct rs_job *job;
	uint64_t bytes = 0;
	const char *why;
	struct sc_err err;

	if (argc != 5)
		return 2;
	sc_log_level(SC_LOG_ERROR);
	kind = strcmp(argv[4], "null") == 0 ? &null_engine : rs_engine_choose(argv[4], &why);
	must(rs_service_new(&options, &s, &err), &err);
	job = rs_job_by_name(s, argv[2]);
	if (!job)
		return 1;
	must(rs_view_as(s, job, argv[3], &rs_form_ranks, &view, &err), &err);
	for (uint32_t rank = 0; rank < view->topo.ranks; rank++)
		must(rs_list(s, job, view, rank, "", on_name, &rank, &err), &err);
	for (size_t i = 0; i < nr_targets; i++) {
		targets[i].fd = open(argv[1], O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
		if (targets[i].fd < 0)
			return 1;
		bytes += targets[i].image->bytes;
	}
	(void)printf("{\"bytes\": %llu, \"seconds\": %.6f}\n", (unsigned long long)bytes, write_all());
	for (size_t i = 0; i < nr_targets; i++) {
		(void)close(targets[i].fd);
		rs_image_unref(s, (struct rs_image *)targets[i].image);
	}
	rs_view_unref(s, view);
	rs_service_free(s);
	return 0;
}
