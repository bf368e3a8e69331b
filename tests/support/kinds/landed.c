/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Landings (reshard/engine/remote) in the place of a store's own files, linked to tests of these: the blobs are taken for another
 * node's, and a puller (tests/support/puller.h) brings their bytes.  There is room for two chunks of each.  The program
 * fails if nothing was pulled.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include "meta/base/mem.h"
#include "reshard/engine/io/sources.h"
#include "tests/support/puller.h"

#define OPEN_MAX 65536

struct landed {
	struct rs_bytes bytes;		/* first */
	struct rs_place from, place;
	struct rs_bytes *bytes_of, *landing; /* the blob's own, and what others see */
	struct fake_puller *puller;
	struct rs_landings *set;
	uint32_t node;			/* its number in `opened` */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct landed *opened[OPEN_MAX];
static uint32_t next;
static uint64_t pulled;
static struct meta_store here; /* of landings' files */

static int bytes_of(const struct rs_away *what, uint64_t at, uint64_t bytes, void *to, struct sc_err *err)
{
	struct landed *l;

	(void)pthread_mutex_lock(&lock);
	l = opened[what->node];
	pulled++;
	(void)pthread_mutex_unlock(&lock);
	return rs_bytes_read(l->bytes_of, at, bytes, to, err);
}

static void number(struct landed *l)
{
	(void)pthread_mutex_lock(&lock);
	while (opened[next % OPEN_MAX])
		next++;
	l->node = next++ % OPEN_MAX;
	opened[l->node] = l;
	(void)pthread_mutex_unlock(&lock);
}

static void end(struct landed *l)
{
	if (l->landing)
		rs_place_close(&l->place, l->landing);
	if (l->set)
		rs_landings_stop(l->set);
	(void)rs_landings_free(l->set);
	(void)fake_puller_free(l->puller);
	if (l->bytes_of)
		rs_place_close(&l->from, l->bytes_of);
	(void)pthread_mutex_lock(&lock);
	opened[l->node] = NULL;
	(void)pthread_mutex_unlock(&lock);
	sc_sys.release(l);
}

static int landed_open(void *arg, uint64_t id, uint64_t bytes_expected, struct rs_bytes **ret, struct sc_err *err)
{
	struct landed *l = sc_zalloc(sizeof(*l));
	struct rs_landing_config config = {.bytes_max = 2 * RS_CHUNK_BYTES, .pulls_max = 2};
	int rc;

	if (!l)
		return sc_nomem(err);
	number(l);
	l->puller = fake_puller_new(bytes_of, 1, 0, 0);
	l->from = (struct rs_place){rs_source_kinds[0], arg, id, bytes_expected, 0};
	config.store = &here;
	config.puller = fake_puller_of(l->puller);
	rc = rs_place_open(&l->from, &l->bytes_of, err);
	if (rc == 0)
		rc = rs_landings_new(&config, &l->set, err);
	if (rc == 0)
		rc = rs_landing_place(l->set, &(struct rs_away){l->node, id, bytes_expected}, 0, &l->place, err);
	if (rc == 0)
		rc = rs_place_open(&l->place, &l->landing, err);
	if (rc < 0) {
		end(l);
		return rc;
	}
	l->bytes = (struct rs_bytes){rs_source_extra, l->landing->map, bytes_expected, id};
	*ret = &l->bytes;
	return 0;
}

static void landed_close(void *arg, struct rs_bytes *b)
{
	(void)arg;
	end((struct landed *)b);
}

static int landed_fd(struct rs_bytes *b, int *ret_fd, struct sc_err *err)
{
	return rs_bytes_fd(((struct landed *)b)->landing, ret_fd, err);
}

static int landed_need(struct rs_bytes *b, uint64_t at, uint64_t bytes, struct rs_done *done, struct sc_err *err)
{
	return rs_bytes_need(((struct landed *)b)->landing, at, bytes, done, err);
}

static void landed_release(struct rs_bytes *b, uint64_t at, uint64_t bytes)
{
	rs_bytes_release(((struct landed *)b)->landing, at, bytes);
}

static const struct rs_source_ops landed = {
	.name = "landed",
	.open = landed_open,
	.close = landed_close,
	.fd = landed_fd,
	.need = landed_need,
	.release = landed_release,
};

__attribute__((constructor)) static void choose(void)
{
	here.dir = open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	rs_source_extra = &landed;
}

__attribute__((destructor)) static void expect_use(void)
{
	if (pulled)
		return;
	(void)fprintf(stderr, "nothing was pulled\n");
	_exit(1);
}
